"""Gradient rules of ops that move, reshape, reduce or convert elements, and of ops on sequences.

The cotangent of a sequence is a sequence of the same length: the cotangents of its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nncdbg.dtypes import FLOATS
from nncdbg.engine.ops.declaration import Vjp
from nncdbg.engine.ops.gradient import (
    Applied,
    Emit,
    cast_like,
    number,
    other_factors,
    positions_of,
    rank_of,
    reshaped_like,
    shape_of,
    summed_like,
)
from nncdbg.engine.ops.types import element_type
from nncdbg.errors import GraphError, UnsupportedOp
from nncdbg.ir.records import Attribute, Literal, Operand
from nncdbg.text.lexemes import name_text


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


def _reduced_again(emit: Emit, at: Applied, op: str, value: str) -> str:
    """Reduce another value over the same axes, which keep size 1."""
    attributes: dict[str, Attribute] = {"keepdims": 1}
    if at.attributes.get("noop_with_empty_axes"):
        attributes["noop_with_empty_axes"] = 1
    return emit(op, value, *([_axes(at)] if _axes(at) is not None else []), **attributes)


def reduced_sum(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent repeated along the summed axes."""
    return (emit("Expand", _with_axes(emit, at, at.d), shape_of(emit, at.x)),)


def reduced_extreme(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For ReduceMax and ReduceMin: equal shares to the elements that equal the result."""
    hits = cast_like(emit, emit("Equal", at.x, _with_axes(emit, at, at.y)), at.d)
    ties = _reduced_again(emit, at, "ReduceSum", hits)
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
    zeros = _reduced_again(emit, at, "ReduceSum", cast_like(emit, is_zero, at.x))
    nonzero = _reduced_again(emit, at, "ReduceProd", emit("Where", is_zero, number(1), at.x))
    others = other_factors(emit, at.x, _with_axes(emit, at, at.y), nonzero, zeros)
    return (emit("Mul", _with_axes(emit, at, at.d), others),)


def ascending(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For Range: the sum of the cotangent to the start, weighted by the step number to the delta."""
    start, _, delta = at.operands
    steps = emit("Range", Literal(0), emit("Size", at.d), Literal(1))
    weighted = emit("Mul", at.d, cast_like(emit, steps, at.d))
    to_start, to_delta = (emit("ReduceSum", each, keepdims=0) for each in (at.d, weighted))
    return reshaped_like(emit, to_start, start), None, reshaped_like(emit, to_delta, delta)


FLAT = Literal((-1,))


def moved(op: str, index: int = 0) -> Vjp:
    """Return the rule of an op that only moves elements of operand `index`.

    Each cotangent is added at the source position of its element.
    """

    def vjp(emit: Emit, at: Applied) -> Sequence[Operand]:
        before, source, after = at.operands[:index], at.operands[index], at.operands[index + 1 :]
        sources = emit(op, *before, positions_of(emit, source), *after, **at.given)
        return (*(None,) * index, emit("nncdbg.SumAt", at.d, sources, source))

    return vjp


def top(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For TopK: the cotangents at the indices of the greatest elements."""
    found = at.output(1) or emit.output(1, "TopK", *at.operands, **at.given)
    zeros = emit("nncdbg.FullLike", at.x, value=0.0)
    return (emit("ScatterElements", zeros, found, at.d, axis=at.attributes["axis"]),)


def unique(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For Unique: the cotangent of each value, at its first occurrence."""
    first = at.output(1) or emit.output(1, "Unique", at.x, **at.given)
    axis = at.attributes["axis"]
    if axis is not None:
        first = emit("Gather", positions_of(emit, at.x), first, axis=axis)
    return (emit("nncdbg.SumAt", at.d, first, at.x),)


def unpooled(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For MaxUnpool: the cotangents at the indices, in the shape without `output_shape`."""
    x, indices, asked = at.x, at.operands[1], at.operand(2)
    d: Operand = at.d
    if asked is not None:
        whole = emit("MaxUnpool", x, indices, **at.given)
        rank = emit("Size", shape_of(emit, x))
        zeros = emit("Mul", shape_of(emit, x), Literal(0))
        d = emit("Slice", d, zeros, shape_of(emit, whole), emit("Range", Literal(0), rank, Literal(1)))
    return (emit("Gather", emit("Reshape", d, FLAT), indices),)


Take = Callable[[Operand], str]
"""Return the elements of a value at the positions of the updates."""


def scattered(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For ScatterElements: the updates get the elements at their positions."""
    indices, axis = at.operands[1], at.attributes["axis"]
    return _scattered(emit, at, "ScatterElements", lambda v: emit("GatherElements", v, indices, axis=axis))


def scattered_tuples(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For ScatterND: the updates get the slices at their positions."""
    indices = at.operands[1]
    return _scattered(emit, at, "ScatterND", lambda v: emit("GatherND", v, indices))


def _scattered(emit: Emit, at: Applied, op: str, take: Take) -> Sequence[Operand]:
    reduction = at.attributes.get("reduction", "none")
    if reduction == "none":
        zeros = emit("nncdbg.FullLike", at.operands[2], value=0.0)
        return emit(op, at.d, at.operands[1], zeros, **at.given), None, take(at.d)
    if reduction == "add":
        return at.d, None, take(at.d)
    if reduction == "mul":
        return _scattered_product(emit, at, op, take)
    # Equal shares to the elements and updates that equal the result.
    x, _, updates = at.operands
    hits = cast_like(emit, emit("Equal", x, at.y), x)
    update_hits = cast_like(emit, emit("Equal", updates, take(at.y)), x)
    added = emit("nncdbg.SumAt", update_hits, take(positions_of(emit, x)), x)
    share = emit("Div", at.d, emit("Add", hits, added))
    return emit("Mul", share, hits), None, emit("Mul", take(share), update_hits)


def _scattered_product(emit: Emit, at: Applied, op: str, take: Take) -> Sequence[Operand]:
    """The product of the other factors of each element."""
    x, indices, updates = at.operands
    ones = emit("nncdbg.FullLike", x, value=1.0)
    to_x = emit("Mul", at.d, emit(op, ones, indices, updates, **at.given))
    where_x, where_updates = (emit("Equal", each, number(0)) for each in (x, updates))
    added = emit("nncdbg.SumAt", cast_like(emit, where_updates, x), take(positions_of(emit, x)), x)
    zeros = emit("Add", cast_like(emit, where_x, x), added)
    kept = emit("Where", where_x, number(1), x)
    nonzero = emit(op, kept, indices, emit("Where", where_updates, number(1), updates), **at.given)
    others = other_factors(emit, updates, take(at.y), take(nonzero), take(zeros))
    return to_x, None, emit("Mul", take(at.d), others)


def tensor_scattered(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For TensorScatter: the update gets what it wrote, the cache the rest."""
    cache, update, rest = at.operands[0], at.operands[1], at.operands[2:]
    kept = emit("nncdbg.FullLike", positions_of(emit, cache), value=-1.0)
    sources = emit("TensorScatter", kept, positions_of(emit, update), *rest, **at.given)
    return _overwritten(emit, at, sources, update)


def scattered_before(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For Scatter, in ops of its opsets: the updates get what they wrote, x the rest."""
    x, indices, updates = at.operands
    kept = emit("nncdbg.FullLike", positions_of(emit, x), value=-1.0)
    sources = emit("Scatter", kept, indices, positions_of(emit, updates), **at.given)
    to_x, to_updates = _overwritten(emit, at, sources, updates)
    return to_x, None, to_updates


def _overwritten(emit: Emit, at: Applied, sources: str, update: Operand) -> tuple[str, str]:
    """Return the parts of the cotangent for what an update has kept, and for the update.

    `sources` has the position in the update of each element that it wrote, and -1 for the others.
    """
    written = emit("Greater", sources, Literal(-1))
    to_update = emit("Where", written, at.d, number(0))
    places = emit("Where", written, sources, Literal(0))
    return emit("Where", written, number(0), at.d), emit("nncdbg.SumAt", to_update, places, update)


def from_columns(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For Col2Im: the windows of the cotangent."""
    given: dict[str, Attribute] = dict(at.given)
    return (emit("nncdbg.Im2Col", at.d, at.operands[2], **given),)


def unit_rank(emit: Emit, operand: Operand) -> bool:
    """Return True for a scalar, or a tensor that is known to have one element."""
    known = emit.type_of(operand)
    if known is None or known.shape is None:
        raise UnsupportedOp(f"the shape of %{name_text(str(operand))} is not known before the run")
    return all(size == 1 for size in known.shape)


def dequantized(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For the scale: the shifted integers times the cotangent, summed over the elements of each scale."""
    x, scale, rest = at.operands[0], at.operands[1], at.operands[2:]
    ones = emit("nncdbg.FullLike", scale, value=1.0)
    shifted = emit("DequantizeLinear", x, ones, *rest, **at.given)
    parts = cast_like(emit, emit("Mul", at.d, shifted), scale)
    places = positions_of(emit, scale)
    axis, size = at.attributes.get("axis", 1), at.attributes.get("block_size", 0)
    if size:
        length = emit("Gather", shape_of(emit, x), Literal(axis))
        block = emit("Div", emit("Range", Literal(0), length, Literal(1)), Literal(size))
        places = emit("Gather", places, block, axis=axis)
    elif not unit_rank(emit, scale):
        rank = rank_of(emit, x)
        places = emit("Reshape", places, Literal((-1, *(1,) * (rank - 1 - axis % rank))))
    return None, emit("nncdbg.SumAt", parts, emit("Expand", places, shape_of(emit, x)), scale)


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


def sequence_split(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangents of the parts, joined."""
    dropped = at.operand(1) is None and not at.attributes["keepdims"]
    axis = at.attributes["axis"]
    return emit("ConcatFromSequence", at.d, axis=axis, new_axis=int(dropped)), None


def sequence_joined(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The parts of the cotangent."""
    axis = at.attributes["axis"]
    if at.attributes["new_axis"]:
        return (emit("SplitToSequence", at.d, axis=axis, keepdims=0),)
    return (emit("nncdbg.SplitLike", at.d, at.x, axis=axis),)
