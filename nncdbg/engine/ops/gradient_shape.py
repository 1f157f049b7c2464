"""Gradient rules of ops that move, shape, reduce or convert elements."""

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
    """The cotangent in the shape of the operand."""
    return (reshaped_like(emit, at.d, at.x),)


def transposed(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The axes put back."""
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
    """Of a sum: the cotangent repeated, in the shape of the operand."""
    return (emit("Expand", at.d, shape_of(emit, at.x)),)


def cast(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent cast back; nothing goes back through a type that is no float."""
    if element_type(at.attributes["to"]) not in FLOATS:
        return ()
    return (cast_like(emit, at.d, at.x),)


def cast_as_other(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent cast back; nothing to the operand that gives the type."""
    return (cast_like(emit, at.d, at.x), None)


def dropout(emit: Emit, at: Applied) -> Sequence[Operand]:
    """In training what was kept, scaled as it was; else the cotangent itself."""
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
    """The axes as an operand, None where all are meant."""
    if len(at.operands) > 1:
        return at.operands[1]
    listed = at.attributes.get("axes")
    return Literal(tuple(listed)) if listed else None


def _with_axes(emit: Emit, at: Applied, value: str) -> str:
    """A value of the reduced shape so that it broadcasts with the operand."""
    axes = _axes(at)
    return value if axes is None or at.attributes["keepdims"] else emit("Unsqueeze", value, axes)


def reduced_sum(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent repeated along the axes that were summed."""
    return (emit("Expand", _with_axes(emit, at, at.d), shape_of(emit, at.x)),)


def reduced_extreme(emit: Emit, at: Applied) -> Sequence[Operand]:
    """Of ReduceMax and ReduceMin: equal shares to the elements that equal the result."""
    hits = cast_like(emit, emit("Equal", at.x, _with_axes(emit, at, at.y)), at.d)
    attributes: dict[str, Attribute] = {"keepdims": 1}
    if at.attributes.get("noop_with_empty_axes"):
        attributes["noop_with_empty_axes"] = 1
    ties = emit("ReduceSum", hits, *([_axes(at)] if _axes(at) is not None else []), **attributes)
    # Where the result is NaN nobody equals it, and 0 / 0 is NaN.
    return (emit("Div", emit("Mul", hits, _with_axes(emit, at, at.d)), ties),)


def reduced_log_sum_exp(emit: Emit, at: Applied) -> Sequence[Operand]:
    """To each element its part exp(x - y) of the sum, which does not overflow."""
    share = emit("Exp", emit("Sub", at.x, _with_axes(emit, at, at.y)))
    return (emit("Mul", _with_axes(emit, at, at.d), share),)


# Movement -------------------------------------------------------------------------------------


def _size(emit: Emit, operand: Operand, axis: int) -> Operand:
    """The size along an axis as a list of one: a number if it is known."""
    known = emit.type_of(operand)
    if known is not None and known.shape is not None and isinstance(size := known.shape[axis], int):
        return Literal((size,))
    return emit("Gather", shape_of(emit, operand), Literal((axis,)))


def _sum_of(emit: Emit, a: Operand, b: Operand) -> Operand:
    if isinstance(a, Literal) and isinstance(b, Literal):
        return Literal((a.data[0] + b.data[0],))
    return emit("Add", a, b)


def joined(emit: Emit, at: Applied) -> Sequence[Operand]:
    """Of Concat: to each its part."""
    axis = 1 if at.attributes["axis"] is None else at.attributes["axis"]
    start: Operand = Literal((0,))
    parts: list[Operand] = []
    for operand in at.operands:
        end = _sum_of(emit, start, _size(emit, operand, axis))
        parts.append(emit("Slice", at.d, start, end, Literal((axis,))))
        start = end
    return parts


def split(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangents of the parts joined, zeros where a part does not matter."""
    parts = []
    for output, cotangent in zip(at.outputs, at.cotangents, strict=True):
        if not output:
            raise UnsupportedOp("one of its parts has no name")
        parts.append(cotangent or emit("nncdbg.FullLike", output, value=0.0))
    return (emit("Concat", *parts, axis=at.attributes["axis"] or 0),)


def moved(op: str, *, repeats: bool = False) -> Vjp:
    """Of an op that only moves elements: where each went is found by moving their positions alike.

    `repeats`: an element may go to several places, and their cotangents are summed.
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
    """Of ScatterElements that sets or adds: to the updates what stands at their places."""
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
    """Each cotangent added where its element came from."""
    if emit.version < 16:
        raise UnsupportedOp("it needs ScatterElements with a reduction (opset 16)")
    zeros = emit("nncdbg.FullLike", at.x, value=0.0)
    axis = at.attributes["axis"]
    added = emit("ScatterElements", zeros, at.operands[1], at.d, axis=axis, reduction="add")
    return (added,)
