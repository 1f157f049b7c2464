"""The binary ops of opsets 1 to 6: no NumPy broadcasting, but `broadcast` and `axis` attributes.

`b` is spread over `a` only if `broadcast` is 1: its axes stand under those of `a` from `axis` on,
or under the last ones.  The result has the shape of `a`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nncdbg.engine.errors import GraphError
from nncdbg.engine.graph import TensorType
from nncdbg.engine.ops.declaration import Kernel, op
from nncdbg.engine.ops.elementwise import ARITHMETIC_ROWS, divide, power
from nncdbg.engine.ops.integer_faults import IntegerFault, divides_by_zero
from nncdbg.engine.ops.logic import LOGIC_ROWS
from nncdbg.engine.ops.types import Attributes, Types, at, typed


def _function(ufunc: str) -> Kernel:
    """The kernel that is the function `ufunc` of the array namespace."""
    return lambda xp, a, b: getattr(xp, ufunc)(a, b)


_ARITHMETIC = {
    "Add": _function("add"),
    "Sub": _function("subtract"),
    "Mul": _function("multiply"),
    "Div": divide,
    "Pow": power,
}
_PREDICATES = {
    "And": _function("logical_and"),
    "Or": _function("logical_or"),
    "Xor": _function("logical_xor"),
    "Equal": _function("equal"),
    "Less": _function("less"),
    "Greater": _function("greater"),
}


def _under(a: Any, b: Any, axis: int | None) -> Any:
    """`b` with axes of size 1 appended, so that its first axis stands under `axis` of `a`."""
    if axis is None:
        return b
    return b.reshape(b.shape + (1,) * (a.ndim - axis % max(a.ndim, 1) - b.ndim))


def _divides_by_zero(attributes: Attributes, inputs: Sequence[Any]) -> IntegerFault | None:
    """The zeros of an integer divisor, and the elements of the result that `axis` puts them under."""
    fault = divides_by_zero(attributes, inputs)
    if fault is None or not attributes["broadcast"]:
        return fault
    return replace(fault, results=_under(inputs[0], fault.elements, attributes.get("axis")))


def _declare(name: str, compute: Kernel, dtype: str | None) -> None:
    """`dtype` is that of the result; None for that of `a`."""

    def kernel(
        xp: Any, a: Any, b: Any, *, broadcast: int, axis: int | None, consumed_inputs: Any = None
    ) -> Any:
        if not broadcast and a.shape != b.shape:
            raise GraphError(f"shapes {list(a.shape)} and {list(b.shape)} differ", hint="set broadcast=1")
        return xp.asarray(compute(xp, a, _under(a, b, axis) if broadcast else b))

    def infer(attributes: Attributes, types: Types) -> Types:
        like = at(types, 0)
        shape = None if like is None else like.shape
        return (typed(like, shape) if dtype is None else TensorType(dtype, shape),)

    kernel.__doc__ = f"{name} with `broadcast` and `axis` as attributes.  ONNX {name} 1 to 6."
    row = ARITHMETIC_ROWS.get(name) or LOGIC_ROWS[name]
    fault = _divides_by_zero if name == "Div" else None
    op(name, since=1, infer=infer, influence=row, integer_fault=fault)(kernel)


for _name, _kernel in _ARITHMETIC.items():
    _declare(_name, _kernel, None)
for _name, _kernel in _PREDICATES.items():
    _declare(_name, _kernel, "bool")
