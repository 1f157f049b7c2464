"""Names of statements and blocks in tables of times and in timelines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nncdbg.dtypes import NUMPY
from nncdbg.escaping import printable_line
from nncdbg.ir.records import TensorType
from nncdbg.presentation.source_files import short_path
from nncdbg.text.lexemes import name_text
from nncdbg.text.torch_names import origin_text

if TYPE_CHECKING:
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.execution.loaded import Loaded


def result_names(code: Code, pc: int) -> str:
    """Return the results of a statement, as `%q, %k`; empty for none."""
    names = [value.name for value in code.nodes[pc].outputs if value.name]
    return printable_line(", ".join(f"%{name_text(name)}" for name in names))


def op_name(code: Code, pc: int) -> str:
    """Return the op of a statement, as in the program text."""
    return printable_line(code.nodes[pc].op)


def shapes(code: Code, pc: int) -> str:
    """Return the sizes of operands and results known before the run, as `[2,4] [4,3] -> [2,3]`."""
    node = code.nodes[pc]
    operands = [_shape(code, name) for name in node.inputs if isinstance(name, str) and name]
    results = [_shape(code, value.name) for value in node.outputs if value.name]
    return f"{' '.join(operands)} -> {' '.join(results)}".strip()


def _shape(code: Code, name: str) -> str:
    known = code.types.get(name)
    return str(known)[len(known.dtype) :] if isinstance(known, TensorType) else "[...]"


def result_bytes(code: Code, pc: int) -> int | None:
    """Return the bytes of the results of a statement; None if a size is not known before the run."""
    total = 0
    for value in code.nodes[pc].outputs:
        known = code.types.get(value.name) if value.name else None
        if not value.name:
            continue
        if not isinstance(known, TensorType) or known.shape is None or known.dtype not in NUMPY:
            return None
        sizes = [size for size in known.shape if isinstance(size, int)]
        if len(sizes) < len(known.shape):
            return None
        total += math.prod(sizes) * NUMPY[known.dtype].itemsize
    return total


def origin(code: Code, pc: int) -> str:
    """Return the place of a statement in the user's model, else its graph: `net.py:12` or `@layer1`."""
    node = code.nodes[pc]
    place = origin_text(node).replace(node.location.place, source_line(code, pc), 1) if node.location else ""
    return printable_line(place or f"@{name_text(str(code.path[0]))}")


def line_title(loaded: Loaded, code: Code, pc: int) -> str:
    """Return the line of the user's model, as `net.py:12`, else of the listing, as `line 5`."""
    return source_line(code, pc) or f"line {loaded.line(code, pc)}"


def source_line(code: Code, pc: int) -> str:
    """Return the line of the user's model that a statement comes from, as `net.py:12`; empty for none."""
    location = code.nodes[pc].location
    if location is None or not location.file:
        return ""
    return printable_line(f"{short_path(location.file)}:{location.line}")


def block_title(loaded: Loaded, code: Code) -> str:
    """Return `@layer1` for a graph; for a loop or branch `@refine, line 9`, or `while, line 9`."""
    name = f"@{name_text(code.graph.name)}" if code.graph.name else ""
    if len(code.path) == 1:
        return printable_line(name)
    pc, body = code.path[-2:]
    line = loaded.listing.line(code.path[:-2], int(pc))
    kind = "while" if code.is_loop else "else" if body else "then"
    return printable_line(f"{name or kind}, line {line}")
