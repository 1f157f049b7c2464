"""Gradient rules of ops that move elements by indices: sources are found by moving positions the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nncdbg.engine.errors import UnsupportedOp
from nncdbg.engine.ops.declaration import Vjp
from nncdbg.engine.ops.gradient import (
    Applied,
    Emit,
    cast_like,
    number,
    other_factors,
    positions_of,
    shape_of,
)
from nncdbg.engine.text.lexemes import name_text
from nncdbg.ir.records import Attribute, Literal, Operand

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
    return _scattered_extreme(emit, at, take)


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


def _scattered_extreme(emit: Emit, at: Applied, take: Take) -> Sequence[Operand]:
    """Equal shares to the elements and updates that equal the result."""
    x, _, updates = at.operands
    hits = cast_like(emit, emit("Equal", x, at.y), x)
    update_hits = cast_like(emit, emit("Equal", updates, take(at.y)), x)
    added = emit("nncdbg.SumAt", update_hits, take(positions_of(emit, x)), x)
    share = emit("Div", at.d, emit("Add", hits, added))
    return emit("Mul", share, hits), None, emit("Mul", take(share), update_hits)


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
        behind = rank_behind(emit, x, axis)
        places = emit("Reshape", places, Literal((-1, *(1,) * behind)))
    return None, emit("nncdbg.SumAt", parts, emit("Expand", places, shape_of(emit, x)), scale)


def rank_behind(emit: Emit, operand: Operand, axis: int) -> int:
    """Return the number of axes after `axis`."""
    known = emit.type_of(operand)
    if known is None or known.shape is None:
        raise UnsupportedOp(f"the number of axes of %{name_text(str(operand))} is not known before the run")
    return len(known.shape) - 1 - axis % len(known.shape)
