"""The binary ops of opsets 1 to 6: `broadcast` and `axis` attributes instead of NumPy broadcasting.

`b` is broadcast to `a` only if `broadcast` is 1: its axes match those of `a` from `axis` on, or the last
ones.  The result has the shape of `a`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import nncdbg.engine.ops.elementwise
import nncdbg.engine.ops.logic  # noqa: F401 - both declare the later versions
from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops.declaration import declared, op
from nncdbg.engine.ops.integer_faults import IntegerFault, divides_by_zero
from nncdbg.engine.ops.types import Attributes, Types, at, typed
from nncdbg.ir.records import TensorType


def _under(a: Any, b: Any, axis: int | None) -> Any:
    """Append axes of size 1 to `b`, so that its first axis is aligned with `axis` of `a`."""
    if axis is None:
        return b
    return b.reshape(b.shape + (1,) * (a.ndim - axis % max(a.ndim, 1) - b.ndim))


def _divides_by_zero(attributes: Attributes, inputs: Sequence[Any]) -> IntegerFault | None:
    """Return the zeros of an integer divisor, and the result elements that `axis` aligns with them."""
    fault = divides_by_zero(attributes, inputs)
    if fault is None or not attributes["broadcast"]:
        return fault
    return replace(fault, results=_under(inputs[0], fault.elements, attributes.get("axis")))


def _declare(name: str, dtype: str | None) -> None:
    """Declare the early versions of an op; `dtype` is that of the result, None for that of `a`."""
    newer = declared(name)[0]

    def kernel(
        xp: Any, a: Any, b: Any, *, broadcast: int, axis: int | None, consumed_inputs: Any = None
    ) -> Any:
        if not broadcast and a.shape != b.shape:
            raise GraphError(f"shapes {list(a.shape)} and {list(b.shape)} differ", hint="set broadcast=1")
        return xp.asarray(newer.bind(xp, {})(a, _under(a, b, axis) if broadcast else b))

    def infer(attributes: Attributes, types: Types) -> Types:
        like = at(types, 0)
        shape = None if like is None else like.shape
        return (typed(like, shape) if dtype is None else TensorType(dtype, shape),)

    kernel.__doc__ = f"{name} with `broadcast` and `axis` as attributes.  ONNX {name} 1 to 6."
    fault = _divides_by_zero if newer.integer_fault is divides_by_zero else None
    op(name, since=1, infer=infer, influence=newer.influence, integer_fault=fault)(kernel)


for _name in ("Add", "Sub", "Mul", "Div", "Pow"):
    _declare(_name, None)
for _name in ("And", "Or", "Xor", "Equal", "Less", "Greater"):
    _declare(_name, "bool")
