"""Statements on torch without Python between their kernels: the types of the library torch_kernels.cpp.

The library does what functions of Python do as well, with the same bits.  It is compiled in the background
once a program has many statements; until then, and without a compiler, these functions run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nncdbg.engine.ops.aten.cpp_libraries import OptionalLibrary
from nncdbg.engine.ops.aten.internals import out_form, pointwise_tag
from nncdbg.engine.ops.aten.operators import overwrites
from nncdbg.engine.ops.aten.signatures import Signature

if TYPE_CHECKING:
    from nncdbg.engine.backends import Call, Execute
    from nncdbg.engine.backends.torch_calls import CallArguments

LIBRARY = OptionalLibrary(
    Path(__file__).with_name("torch_kernels.cpp"),
    "nncdbg.engine.backends.torch_statements",
    "the backend torch",
    "the loop over its kernels",
    patience=1000,  # statements
)

_TENSORS = frozenset({"Tensor", "List[Tensor]", "Optional[Tensor]"})
"""The types of results that the library accepts."""


def kernel_of(
    call: Call, found: Signature, arguments: CallArguments, direct: bool, otherwise: Execute
) -> Execute | None:
    """Return the call of an operator by the library; None without it, and for a call that only Python makes.

    `direct` tells that the operands come first.  `otherwise` is the function in Python.
    """
    library = LIBRARY.module()
    if library is None or found.random or found.allocates or not _TENSORS.issuperset(found.results):
        return None
    # In the order of the schema, None for the default.
    positional = iter(arguments.positional)
    sources = [
        arguments.keywords.get(argument.name) if argument.keyword_only else next(positional)
        for argument in found.arguments
    ]
    if any(source is not None and source.numbers for source in sources):
        return None
    replaces = direct and found.in_place
    into = out_form(found.overload) if replaces else None
    try:
        kernel: Execute = library.Kernel(
            operator=_name(found.overload),
            into=None if into is None else _name(into),
            sources=tuple(
                [
                    each and (each.start, each.stop, each.written, each.several, each.constant)
                    for each in sources
                ]
            ),
            operands=len(call.node.inputs),
            outputs=len(call.node.outputs) if call.several else -1,
            overwrites=replaces and overwrites(found.name),
            has_results=bool(found.results),
            replaced=0 if replaces and pointwise_tag in found.overload.tags else -1,
            otherwise=otherwise,
        )
        return kernel
    except (TypeError, ValueError, RuntimeError):
        # Torch does not accept an argument: `otherwise` raises its error when the statement runs.
        return None


def _name(overload: Any) -> tuple[str, str]:
    """Return the name of an operator and of its overload, as torch's dispatcher has them."""
    schema = overload._schema
    return schema.name, schema.overload_name
