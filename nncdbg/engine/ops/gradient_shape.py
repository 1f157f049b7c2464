"""Gradient rules of ops that move, reshape, reduce or convert elements."""

from __future__ import annotations

from collections.abc import Sequence

from nncdbg.engine.dtypes import FLOATS
from nncdbg.engine.errors import GraphError, UnsupportedOp
from nncdbg.engine.ops.gradient import (
    Applied,
    Emit,
    cast_like,
    number,
    other_factors,
    positions_of,
    reshaped_like,
    shape_of,
    summed_like,
)
from nncdbg.engine.ops.types import element_type
from nncdbg.ir.records import Attribute, Literal, Operand


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
    if not at.output(1):
        raise UnsupportedOp("its second output, the mask, has no name")
    part = number(0.5) if ratio is None else cast_like(emit, ratio, at.d) if isinstance(ratio, str) else ratio
    kept = emit("Mul", at.d, cast_like(emit, at.output(1), at.d))
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
    names = at.outputs
    if not all(name or d for name, d in zip(names, at.cotangents, strict=True)):
        names = tuple(emit.outputs(len(names), "Split", *at.operands, **at.given))
    parts = [
        d or emit("nncdbg.FullLike", name, value=0.0) for name, d in zip(names, at.cotangents, strict=True)
    ]
    return (emit("Concat", *parts, axis=at.attributes["axis"] or 0),)


def padded(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For Pad: the elements that are no padding; the padded value gets the sum of the others."""
    pads, value, axes = at.operands[1], at.operand(2), at.operand(3)
    mode = at.attributes["mode"]
    if mode != "constant":
        given = (pads,) if axes is None else (pads, None, axes)
        sources = emit("Pad", positions_of(emit, at.x), *given, mode=mode)
        return (emit("nncdbg.SumAt", at.d, sources, at.x),)
    back = Literal(tuple(-pad for pad in pads.data)) if isinstance(pads, Literal) else emit("Neg", pads)
    tail = () if axes is None else (axes,)
    to_x = emit("Pad", at.d, back, number(0), *tail)
    if not isinstance(value, str):
        return (to_x,)
    inside = emit("Pad", emit("nncdbg.FullLike", at.x, value=1.0), pads, number(0), *tail)
    around = emit("Where", emit("Equal", inside, number(0)), at.d, number(0))
    return to_x, None, reshaped_like(emit, emit("ReduceSum", around), value)


def padded_by_attribute(emit: Emit, at: Applied) -> Sequence[Operand]:
    """As for Pad, with the pads in an attribute."""
    name = "paddings" if "paddings" in at.given else "pads"
    given = at.attributes
    if given["mode"] == "constant":
        back: dict[str, Attribute] = {name: tuple(-pad for pad in given[name])}
        return (emit("Pad", at.d, **back),)
    sources = emit("Pad", positions_of(emit, at.x), **at.given)
    return (emit("nncdbg.SumAt", at.d, sources, at.x),)


def triangle(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The same triangle of the cotangent."""
    return (emit("Trilu", at.d, *at.operands[1:], **at.given),)


# Running sums and products ----------------------------------------------------------------------


def _back(emit: Emit, at: Applied, value: str) -> str:
    """Emit the running sum in the opposite direction."""
    given: dict[str, Attribute] = {**at.given, "reverse": 1 - at.attributes["reverse"]}
    return emit("CumSum", value, at.operands[1], **given)


def running_sum(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The running sum of the cotangent in the opposite direction."""
    return (_back(emit, at, at.d),)


def running_product(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The sum of d y from each element on, divided by the element.

    At the first 0 along the axis, the products without it; at a later 0, the derivative is 0.
    """
    is_zero = emit("Equal", at.x, number(0))
    counted = cast_like(emit, is_zero, at.x)
    before = emit("CumSum", counted, at.operands[1], exclusive=1, reverse=at.attributes["reverse"])
    first = emit("And", is_zero, emit("Equal", before, number(0)))
    without = emit("CumProd", emit("Where", first, number(1), at.x), at.operands[1], **at.given)
    at_first = _back(emit, at, emit("Mul", at.d, without))
    divisor = emit("Where", is_zero, number(1), at.x)
    elsewhere = emit("Div", _back(emit, at, emit("Mul", at.d, at.y)), divisor)
    return (emit("Where", first, at_first, emit("Where", is_zero, number(0), elsewhere)),)


def reduced_norm(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For ReduceL2: the share x / y of each element; 0 where the norm is 0."""
    y = _with_axes(emit, at, at.y)
    share = emit("Div", at.x, emit("Where", emit("Equal", y, number(0)), number(1), y))
    return (emit("Mul", _with_axes(emit, at, at.d), share),)


def reduced_product(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The product of the other elements; exact also where elements are 0."""
    is_zero = emit("Equal", at.x, number(0))
    rest: list[Operand] = [_axes(at)] if _axes(at) is not None else []
    attributes: dict[str, Attribute] = {"keepdims": 1}
    if at.attributes.get("noop_with_empty_axes"):
        attributes["noop_with_empty_axes"] = 1
    zeros = emit("ReduceSum", cast_like(emit, is_zero, at.x), *rest, **attributes)
    nonzero = emit("ReduceProd", emit("Where", is_zero, number(1), at.x), *rest, **attributes)
    others = other_factors(emit, at.x, _with_axes(emit, at, at.y), nonzero, zeros)
    return (emit("Mul", _with_axes(emit, at, at.d), others),)


def ascending(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For Range: the sum of the cotangent to the start, weighted by the step number to the delta."""
    start, _, delta = at.operands
    steps = emit("Range", Literal(0), emit("Size", at.d), Literal(1))
    weighted = emit("Mul", at.d, cast_like(emit, steps, at.d))
    to_start, to_delta = (emit("ReduceSum", each, keepdims=0) for each in (at.d, weighted))
    return reshaped_like(emit, to_start, start), None, reshaped_like(emit, to_delta, delta)
