"""Ops of the nncdbg domain that backward graphs use; the same in every opset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import NUMPY
from nncdbg.engine.errors import UnsupportedOp
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.formula import formula_text, in_precision, sizes_at, type_at
from nncdbg.engine.ops.gradient import Applied, Emit, nothing, shape_of
from nncdbg.engine.ops.influence import EVERYTHING, NOTHING, Content, of_first, probed
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.types import Attributes, Types, at, fixed, same_as, shape_at, shaped
from nncdbg.ir.records import Inline, Literal, Operand
from nncdbg.textual_repr.literals import attribute_text


def _full_like_formula(attributes: Attributes, types: Types) -> str:
    """A constant of the element type, in the shape of the operand."""
    data = Inline(np.full(1, attributes["value"], NUMPY[type_at(types, 0).dtype]))
    lines = ["%shape = Shape(%x)", f"%y = ConstantOfShape(%shape, value={attribute_text(data)})"]
    return formula_text("FullLike", [("x", at(types, 0))], lines, ["y"])


@op(
    "nncdbg.FullLike",
    infer=same_as(0),
    formula=_full_like_formula,
    vjp=nothing,
    influence=NOTHING,
    types={"x": "V", "output": "V"},
    cause="constants.constant",
    legal="constants.infinite",
)
def full_like(xp: Any, x: Any, *, value: float) -> Any:
    """A tensor with the shape and element type of `x`, filled with `value`; of a sequence, a sequence."""
    if isinstance(x, (list, tuple)):
        return [full_like(xp, each, value=value) for each in x]
    return xp.full(x.shape, value, dtype=x.dtype)


def _axes(shape: Sequence[int], like: Sequence[int]) -> tuple[int, ...]:
    """Return the axes of `shape` along which `like` was broadcast."""
    lead = len(shape) - len(like)
    return (*range(lead), *(lead + i for i, size in enumerate(like) if size == 1 != shape[lead + i]))


def _sum_like_formula(attributes: Attributes, types: Types) -> str:
    """Sum over the broadcast axes, in the shape of the operand."""
    given = [("x", type_at(types, 0)), ("like", type_at(types, 1))]
    known = all(each.concrete for _, each in given)
    summed = _static_sum(types) if known else _dynamic_sum()
    last = "%sum" if summed else "%x.wide"
    lines = ["%shape = Shape(%like)", *summed, f"%y.wide = Reshape({last}, %shape, allowzero=1)"]
    return formula_text("SumLike", given, in_precision(given[0][1].dtype, ["x"], lines, ["y"]), ["y"])


def _static_sum(types: Types) -> list[str]:
    """The sum over axes that are known; no statement if there are none."""
    axes = _axes(sizes_at(types, 0), sizes_at(types, 1))
    return [f"%sum = ReduceSum(%x.wide, {list(axes)})"] if axes else []


def _dynamic_sum() -> list[str]:
    """The sum over axes that depend on the sizes: those that `like` lacks or in which it has size 1."""
    return [
        "%sizes = Shape(%x)",
        "%rank = Shape(%sizes)",
        "%rank.like = Shape(%shape)",
        "%lead = Sub(%rank, %rank.like)",
        "%ones = ConstantOfShape(%lead, value=i64[1] [1])",
        "%padded = Concat(%ones, %shape, axis=0)",
        "%single = Equal(%padded, 1)",
        "%positions = NonZero(%single)",
        "%axes = Reshape(%positions, [-1])",
        "%sum = ReduceSum(%x.wide, %axes, keepdims=1, noop_with_empty_axes=1)",
    ]


def _sum_like_vjp(emit: Emit, at: Applied) -> Sequence[Operand]:
    return emit("Expand", at.d, shape_of(emit, at.x)), None


@op(
    "nncdbg.SumLike",
    infer=shaped(lambda attributes, types: shape_at(types, 1)),
    formula=_sum_like_formula,
    vjp=_sum_like_vjp,
    influence=of_first(probed(0)),
    cause="reductions.sum_over_broadcast",
)
def sum_like(xp: Any, x: Any, like: Any) -> Any:
    """`x` summed over the axes along which a tensor of the shape of `like` was broadcast to that of `x`."""
    axes = _axes(x.shape, like.shape)
    if not axes:
        return x
    return settled(xp, widened(xp, x).sum(axis=axes), x.dtype).reshape(like.shape)


def _positions_formula(attributes: Attributes, types: Types) -> str:
    """Count the elements, in the shape of the operand."""
    lines = [
        "%count = Size(%x)",
        "%flat = Range(0, %count, 1)",
        "%shape = Shape(%x)",
        "%y = Reshape(%flat, %shape, allowzero=1)",
    ]
    return formula_text("Positions", [("x", type_at(types, 0))], lines, ["y"])


@op(
    "nncdbg.Positions",
    infer=fixed("i64", lambda attributes, types: shape_at(types, 0)),
    formula=_positions_formula,
    vjp=nothing,
    influence=NOTHING,
    content=Content.GENERATED,
)
def positions(xp: Any, x: Any) -> Any:
    """The flat position of each element, i64 in the shape of `x`: 0, 1, 2 ... in row-major order."""
    return xp.arange(x.size, dtype=xp.int64).reshape(x.shape)


def _sum_at_formula(attributes: Attributes, types: Types) -> str:
    """Add each element to a flat tensor of zeros, in the shape of the operand."""
    lines = [
        "%zeros = nncdbg.FullLike(%like, value=0.0)",
        "%flat = Reshape(%zeros, [-1])",
        "%places = Reshape(%positions, [-1])",
        "%values = Reshape(%x, [-1])",
        '%sums = ScatterElements(%flat, %places, %values, reduction="add")',
        "%shape = Shape(%like)",
        "%y = Reshape(%sums, %shape, allowzero=1)",
    ]
    names = ("x", "positions", "like")
    return formula_text("SumAt", zip(names, types, strict=True), lines, ["y"])


def _sum_at_vjp(emit: Emit, at: Applied) -> Sequence[Operand]:
    return emit("Gather", emit("Reshape", at.d, Literal((-1,))), at.operands[1]), None, None


@op(
    "nncdbg.SumAt",
    infer=shaped(lambda attributes, types: shape_at(types, 2)),
    formula=_sum_at_formula,
    vjp=_sum_at_vjp,
    influence=of_first(probed(0), 2),
)
def sum_at(xp: Any, x: Any, positions: Any, like: Any) -> Any:
    """Zeros in the shape of `like`, with each element of `x` added at its flat position."""
    wide = widened(xp, x)
    sums = xp.zeros(math.prod(like.shape), wide.dtype)
    xp.add.at(sums, positions.reshape(-1), wide.reshape(-1))
    return settled(xp, sums, x.dtype).reshape(like.shape)


@op("nncdbg.NoGradientRule", infer=lambda attributes, types: [types[-1]], influence=EVERYTHING)
def no_gradient_rule(xp: Any, cotangent: Any, like: Any = None, *, name: str, reason: str = "") -> Any:
    """Marks a gradient that cannot pass back through the op `name`, to its operand `like`."""
    message = f"the gradient cannot go back through {name}"
    raise UnsupportedOp(
        f"{message}: {reason}" if reason else f"{message}, which has no gradient rule",
        hint="add the result of this op to `zs` as a constant, or differentiate a graph without this op",
    )
