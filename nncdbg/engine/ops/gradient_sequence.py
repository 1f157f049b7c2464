"""Gradient rules of ops on sequences.

The cotangent of a sequence is a sequence of the same length: the cotangents of its elements.
"""

from __future__ import annotations

from collections.abc import Sequence

from nncdbg.engine.ops.gradient import Applied, Emit
from nncdbg.ir.records import Literal, Operand


def construct(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The elements of the cotangent."""
    return [
        emit("SequenceAt", at.d, Literal(index)) if isinstance(operand, str) else None
        for index, operand in enumerate(at.operands)
    ]


def element(emit: Emit, at: Applied) -> Sequence[Operand]:
    """Zeros, with the cotangent in the place of the element."""
    return emit("nncdbg.SequencePlaced", at.d, at.operand(1), at.x), None


def inserted(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent without the element, and the element."""
    position = at.operand(2)
    # A negative position counts from the end of the operand, which is one element shorter than the result.
    if position is None:
        place: Operand = Literal(-1)
    elif isinstance(position, Literal) and isinstance(position.data, int):
        place = Literal(position.data if position.data >= 0 else position.data - 1)
    else:
        negative = emit("Less", position, Literal(0))
        place = emit("Where", negative, emit("Sub", position, Literal(1)), position)
    return emit("SequenceErase", at.d, place), emit("SequenceAt", at.d, place), None


def erased(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent, with zeros in the place of the element that was erased."""
    place = Literal(-1) if at.operand(1) is None else at.operand(1)
    return emit("nncdbg.SequencePadded", at.d, place, at.x), None


def split(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangents of the parts, joined."""
    dropped = at.operand(1) is None and not at.attributes["keepdims"]
    axis = at.attributes["axis"]
    return emit("ConcatFromSequence", at.d, axis=axis, new_axis=int(dropped)), None


def joined(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The parts of the cotangent."""
    axis = at.attributes["axis"]
    if at.attributes["new_axis"]:
        return (emit("SplitToSequence", at.d, axis=axis, keepdims=0),)
    return (emit("nncdbg.SplitLike", at.d, at.x, axis=axis),)
