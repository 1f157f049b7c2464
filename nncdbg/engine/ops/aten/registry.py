"""Names and documentation of the operators that the installed torch has."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import all_operator_names, schema_of
from nncdbg.engine.ops.aten.names import DOMAINS


@cache
def operator_names(domain: str) -> tuple[str, ...]:
    """Return the names of all operators of a library, such as ``aten``, in program text; sorted."""
    prefix = f"{domain}::"
    names = (name.partition(prefix) for name in all_operator_names())
    found = {rest for before, mark, rest in names if mark and not before}
    return tuple(sorted(f"{domain}.{_with_overload(each)}" for each in found))


def registered_names() -> set[str]:
    """Return the names of all operators that are registered now, in program text."""
    split = (name.partition("::") for name in all_operator_names())
    return {
        ".".join((*(() if library in DOMAINS else ("torch",)), library, _with_overload(rest)))
        for library, _, rest in split
    }


def _with_overload(name: str) -> str:
    return name if "." in name else f"{name}.default"


def documentation(overload: Any) -> str:
    """Return torch's documentation of the function with the operator's name, and the operator's schema."""
    schema = str(schema_of(overload))
    name = schema_of(overload).name.partition("::")[2].strip("_")
    for place in (torch, torch.nn.functional, torch.special, torch.linalg, torch.Tensor):
        found = getattr(place, name, None)
        if found is not None and (text := inspect.getdoc(found)):
            return f"{schema}\n\n{text}"
    return schema
