"""The data of constants."""

from __future__ import annotations

from nncdbg.errors import GraphError
from nncdbg.ir.records import Array, Constant, Inline, Program
from nncdbg.text.lexemes import name_text


def initial_data(constant: Constant, program: Program) -> Array:
    """Return the read-only data of a constant, read through the program's stores."""
    if isinstance(constant.data, Inline):
        return constant.data.array
    reference = constant.data
    if reference.store >= len(program.readers):
        raise GraphError(
            f'%{name_text(constant.value.name)} = data("{reference.key}") reads a store that is not open',
            hint="load the program from its file, or correct the path in its `store` line",
        )
    array: Array = program.readers[reference.store].read(reference.key)
    return array
