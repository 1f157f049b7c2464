"""An op with a gradient, in a domain of its own."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import nncdbg
from nncdbg.engine.ops.gradient import Applied, Emit, number
from nncdbg.engine.ops.types import same_as


def softclip_gradient(emit: Emit, at: Applied) -> Sequence[Any]:
    """The gradient of limit * tanh(x / limit): d * (1 - (y / limit)^2)."""
    ratio = emit("Div", at.y, number(at.attributes["limit"]))
    slope = emit("Sub", number(1.0), emit("Mul", ratio, ratio))
    return (emit("Mul", at.d, slope),)


@nncdbg.op("org.example.calculator.SoftClip", infer=same_as(0), vjp=softclip_gradient)
def softclip(xp: ModuleType, x: Any, *, limit: float) -> Any:
    """limit * tanh(x / limit): nearly x near 0, and always between -limit and limit."""
    return (limit * xp.tanh(x / limit)).astype(x.dtype)
