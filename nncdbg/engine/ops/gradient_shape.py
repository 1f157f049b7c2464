"""Gradient rules of ops that move, reshape, reduce or convert elements."""

from __future__ import annotations

from collections.abc import Sequence

from nncdbg.engine.dtypes import FLOATS
from nncdbg.engine.errors import GraphError, UnsupportedOp
from nncdbg.engine.graph import Attribute, Literal, Operand
from nncdbg.engine.ops.declaration import Vjp
from nncdbg.engine.ops.gradient import (
    Applied,
    Emit,
    cast_like,
    number,
    reshaped_like,
    shape_of,
    summed_like,
)
from nncdbg.engine.ops.types import element_type

FLAT = Literal((-1,))


def identity(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent itself."""
    return (at.d,)


def reshaped(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent, reshaped to the shape of the operand."""
    return (reshaped_like(emit, at.d, at.x),)


def transposed(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent with the inverse permutation."""
    order = at.attributes["perm"]
    if order is None:
        return (emit("Transpose", at.d),)
    if sorted(order) != list(range(len(order))):
        raise GraphError(f"perm {list(order)} is not a permutation")
    return (emit("Transpose", at.d, perm=tuple(order.index(axis) for axis in range(len(order)))),)


def expanded(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The sum over the axes along which the operand was repeated."""
    return (summed_like(emit, at.d, at.x),)


def spread(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For a sum: the cotangent repeated, in the shape of the operand."""
    return (emit("Expand", at.d, shape_of(emit, at.x)),)


def cast(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent cast back; none through a type that is not a float."""
    if element_type(at.attributes["to"]) not in FLOATS:
        return ()
    return (cast_like(emit, at.d, at.x),)


def cast_as_other(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent cast back; none to the operand that gives the type."""
    return (cast_like(emit, at.d, at.x), None)


def dropout(emit: Emit, at: Applied) -> Sequence[Operand]:
    """In training, the kept elements with the same scale; otherwise the cotangent itself."""
    ratio, training = at.operand(1), at.operand(2)
    if training is None:
        return (at.d,)
    if len(at.outputs) < 2 or not at.outputs[1]:
        raise UnsupportedOp("its second output, the mask, has no name")
    part = number(0.5) if ratio is None else cast_like(emit, ratio, at.d) if isinstance(ratio, str) else ratio
    kept = emit("Mul", at.d, cast_like(emit, at.outputs[1], at.d))
    scaled = emit("Div", kept, emit("Sub", number(1), part))
    return (emit("Where", training, scaled, at.d),)


# Reductions -----------------------------------------------------------------------------------


def _axes(at: Applied) -> Operand:
    """Return the axes as an operand, None for all axes."""
    if len(at.operands) > 1:
        return at.operands[1]
    listed = at.attributes.get("axes")
    return Literal(tuple(listed)) if listed else None


def _with_axes(emit: Emit, at: Applied, value: str) -> str:
    """Give a reduced value axes of size 1, so that it broadcasts with the operand."""
    axes = _axes(at)
    return value if axes is None or at.attributes["keepdims"] else emit("Unsqueeze", value, axes)


def reduced_sum(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent repeated along the summed axes."""
    return (emit("Expand", _with_axes(emit, at, at.d), shape_of(emit, at.x)),)


def reduced_extreme(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For ReduceMax and ReduceMin: equal shares to the elements that equal the result."""
    hits = cast_like(emit, emit("Equal", at.x, _with_axes(emit, at, at.y)), at.d)
    attributes: dict[str, Attribute] = {"keepdims": 1}
    if at.attributes.get("noop_with_empty_axes"):
        attributes["noop_with_empty_axes"] = 1
    ties = emit("ReduceSum", hits, *([_axes(at)] if _axes(at) is not None else []), **attributes)
    # Where the result is NaN, no element equals it, and 0 / 0 is NaN.
    return (emit("Div", emit("Mul", hits, _with_axes(emit, at, at.d)), ties),)


def reduced_log_sum_exp(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The share exp(x - y) of each element in the sum, which does not overflow."""
    share = emit("Exp", emit("Sub", at.x, _with_axes(emit, at, at.y)))
    return (emit("Mul", _with_axes(emit, at, at.d), share),)


# Movement -------------------------------------------------------------------------------------


def _size(emit: Emit, operand: Operand, axis: int) -> Operand:
    """Return the size along an axis as a list of one; a number if it is known."""
    known = emit.type_of(operand)
    if known is not None and known.shape is not None and isinstance(size := known.shape[axis], int):
        return Literal((size,))
    return emit("Gather", shape_of(emit, operand), Literal((axis,)))


def _sum_of(emit: Emit, a: Operand, b: Operand) -> Operand:
    if isinstance(a, Literal) and isinstance(b, Literal):
        return Literal((a.data[0] + b.data[0],))
    return emit("Add", a, b)


def joined(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For Concat: each operand gets its part."""
    axis = 1 if at.attributes["axis"] is None else at.attributes["axis"]
    start: Operand = Literal((0,))
    parts: list[Operand] = []
    for operand in at.operands:
        end = _sum_of(emit, start, _size(emit, operand, axis))
        parts.append(emit("Slice", at.d, start, end, Literal((axis,))))
        start = end
    return parts


def split(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The joined cotangents of the parts, with zeros for parts that have none."""
    parts = []
    for output, cotangent in zip(at.outputs, at.cotangents, strict=True):
        if not output:
            raise UnsupportedOp("one of its parts has no name")
        parts.append(cotangent or emit("nncdbg.FullLike", output, value=0.0))
    return (emit("Concat", *parts, axis=at.attributes["axis"] or 0),)


def moved(op: str, *, repeats: bool = False) -> Vjp:
    """Return the rule of an op that only moves elements; moving positions the same way gives the sources.

    `repeats`: an element may move to several positions, and their cotangents are summed.
    """

    def vjp(emit: Emit, at: Applied) -> Sequence[Operand]:
        if repeats and emit.version < 16:
            raise UnsupportedOp("it needs ScatterElements with a reduction (opset 16)")
        count = emit("Size", at.x)
        ascending = emit("Range", Literal(0), count, Literal(1))
        positions = emit("Reshape", ascending, shape_of(emit, at.x))
        sources = emit("Reshape", emit(op, positions, *at.operands[1:], **at.given), FLAT)
        zeros = emit("Reshape", emit("nncdbg.FullLike", at.x, value=0.0), FLAT)
        attributes: dict[str, Attribute] = {"reduction": "add"} if repeats else {}
        flat = emit("ScatterElements", zeros, sources, emit("Reshape", at.d, FLAT), **attributes)
        return (reshaped_like(emit, flat, at.x),)

    return vjp


def triangle(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The same triangle of the cotangent."""
    return (emit("Trilu", at.d, *at.operands[1:], **at.given),)


def scattered(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For ScatterElements that sets or adds: the updates get the elements at their positions."""
    _, indices, updates = at.operands
    axis, reduction = at.attributes["axis"], at.attributes.get("reduction", "none")
    to_updates = emit("GatherElements", at.d, indices, axis=axis)
    if reduction == "add":
        return at.d, None, to_updates
    if reduction != "none":
        raise UnsupportedOp(f"its rule is not for the reduction {reduction}")
    kept = emit("ScatterElements", at.d, indices, emit("nncdbg.FullLike", updates, value=0.0), axis=axis)
    return kept, None, to_updates


def gathered_elements(emit: Emit, at: Applied) -> Sequence[Operand]:
    """Each cotangent, added at the source position of its element."""
    if emit.version < 16:
        raise UnsupportedOp("it needs ScatterElements with a reduction (opset 16)")
    zeros = emit("nncdbg.FullLike", at.x, value=0.0)
    axis = at.attributes["axis"]
    added = emit("ScatterElements", zeros, at.operands[1], at.d, axis=axis, reduction="add")
    return (added,)
