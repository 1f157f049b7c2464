"""Gradient rule of DFT."""

from __future__ import annotations

from collections.abc import Sequence

from nncdbg.engine.ops.gradient import Applied, Emit, cast_like, fitted_like, number, shape_of
from nncdbg.ir.records import Attribute, Literal, Operand


def transformed(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The transform in the other direction, multiplied by the length, or for an inverse divided by it.

    A real operand takes the real part; a longer or shorter one, the elements that were transformed.
    """
    inverse, onesided = at.attributes["inverse"], at.attributes["onesided"]
    along = _axis(at)
    length = at.operand(1)
    if length is None:
        length = emit("Gather", shape_of(emit, at.d if inverse else at.x), along)
    given: dict[str, Attribute] = {"axis": at.attributes["axis"]} if "axis" in at.attributes else {}
    axis = () if at.operand(2) is None else (at.operand(2),)
    if inverse and onesided:
        given["onesided"] = 1
    elif not inverse:
        given["inverse"] = 1
    back = emit("DFT", at.d, length, *axis, **given)
    count = number(length.data) if isinstance(length, Literal) else cast_like(emit, length, at.d)
    back = emit("Div" if inverse else "Mul", back, count)
    if inverse and onesided:
        back = emit("Mul", back, _multiplicity(emit, back, along, count))
    return (fitted_like(emit, back, at.x),)


def _axis(at: Applied) -> Operand:
    """Return the transformed axis; an attribute until opset 19, then an operand with the default -2."""
    if "axis" in at.attributes:
        return Literal(at.attributes["axis"])
    given = at.operand(2)
    return Literal(-2) if given is None else given


def _multiplicity(emit: Emit, half: str, axis: Operand, length: Operand) -> str:
    """Emit how often each number of a half spectrum occurs in the whole: once at both ends, else twice."""
    ones = emit("nncdbg.FullLike", half, value=1.0)
    places = emit("CumSum", ones, axis, exclusive=1)
    last = emit("Equal", emit("Mul", places, number(2)), length)
    once = emit("Or", emit("Equal", places, number(0)), last)
    return emit("Where", once, ones, emit("Add", ones, ones))
