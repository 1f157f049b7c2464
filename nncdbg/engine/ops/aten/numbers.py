"""Functions of Python's numbers in exported programs, such as the arithmetic of sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from nncdbg.engine.errors import GraphError

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(operator, name)
        for name in (
            *("add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "neg", "pos", "abs"),
            *("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "xor", "not_"),
        )
    },
    **{
        name: getattr(torch, name)
        for name in ("sym_max", "sym_min", "sym_not", "sym_ite", "sym_float", "sym_int")
    },
    **{name: getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt")},
    "round": round,
}
"""Name in program text to the function."""

_NAMES = {function: name for name, function in _FUNCTIONS.items()}


def function_name(target: Any) -> str | None:
    """Return the name of a function of numbers in program text; None for another object."""
    return _NAMES.get(target)


def number_function(name: Any) -> Callable[..., Any]:
    """Return the function with this name.  Raises GraphError for an unknown one."""
    found = _FUNCTIONS.get(name)
    if found is None:
        known = ", ".join(_FUNCTIONS)
        raise GraphError(
            f"{name!r} is not a function of numbers", hint=f"use one of {known}", attribute="function"
        )
    return found
