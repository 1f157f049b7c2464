"""Ops of the nncdbg domain that backward graphs use; the same in every opset."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import lru_cache, reduce
from math import comb
from typing import Any

import numpy as np

from nncdbg.dtypes import NUMPY
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.formula import formula_text, in_precision, sizes_at, type_at
from nncdbg.engine.ops.gradient import nothing, shape_of
from nncdbg.engine.ops.influence import (
    ALL_MOVED,
    EVERYTHING,
    MOVED,
    NOTHING,
    Application,
    Content,
    Influence,
    Marked,
    of_first,
    probed,
)
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.types import Attributes, Types, at, fixed, same_as, shape_at, shaped
from nncdbg.errors import RunError, UnsupportedOp
from nncdbg.ir.records import Inline, Literal, SequenceType
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
    cause="pointwise.constant",
    legal="pointwise.infinite",
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
    summed = _DYNAMIC_SUM
    if all(type_.concrete for _, type_ in given):
        axes = _axes(sizes_at(types, 0), sizes_at(types, 1))
        summed = [f"%sum = ReduceSum(%x.wide, {list(axes)})"] if axes else []
    last = "%sum" if summed else "%x.wide"
    lines = ["%shape = Shape(%like)", *summed, f"%y.wide = Reshape({last}, %shape, allowzero=1)"]
    return formula_text("SumLike", given, in_precision(given[0][1].dtype, ["x"], lines, ["y"]), ["y"])


_DYNAMIC_SUM = [
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
"""The sum over axes that depend on the sizes: those that `like` lacks or in which it has size 1."""


@op(
    "nncdbg.SumLike",
    infer=shaped(lambda attributes, types: shape_at(types, 1)),
    formula=_sum_like_formula,
    vjp=lambda emit, at: (emit("Expand", at.d, shape_of(emit, at.x)), None),
    influence=of_first(probed(0)),
    cause="sums.sum_over_broadcast",
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


@op(
    "nncdbg.SumAt",
    infer=shaped(lambda attributes, types: shape_at(types, 2)),
    formula=_sum_at_formula,
    vjp=lambda emit, at: (emit("Gather", emit("Reshape", at.d, Literal((-1,))), at.operands[1]), None, None),
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


def _added(values: Sequence[Any]) -> Any:
    if not isinstance(values[0], (list, tuple)):
        return reduce(operator.add, values)
    lengths = dict.fromkeys(map(len, values))
    if len(lengths) > 1:
        raise RunError(
            f"cannot add sequences of {' and '.join(map(str, lengths))} elements",
            hint="pass sequences of the same length",
        )
    return [_added(each) for each in zip(*values, strict=True)]


def _marks_of_sum(total: Any, marked: Sequence[Marked]) -> Marked:
    given = [marks for marks in marked if marks is not None]
    if isinstance(total, (list, tuple)):
        return [_marks_of_sum(each, [marks[i] for marks in given]) for i, each in enumerate(total)]
    return reduce(operator.or_, given, np.zeros(np.shape(total), bool))


def _sum_influence(application: Application) -> Sequence[Marked]:
    return [_marks_of_sum(application.results[0], application.marked)]


@op(
    "nncdbg.SequenceSum",
    infer=lambda attributes, types: (types[0],),
    vjp=lambda emit, at: [at.d for _ in at.operands],
    influence=Influence("element by element, in each tensor of a sequence", _sum_influence),
    types={"inputs": "S", "output": "S"},
)
def sequence_sum(xp: Any, *inputs: Any) -> Any:
    """The sum of sequences of the same length, tensor by tensor."""
    return _added(inputs)


@op(
    "nncdbg.SequencePlaced",
    infer=lambda attributes, types: (types[2],),
    vjp=lambda emit, at: (emit("SequenceAt", at.d, at.operand(1)), None, None),
    influence=of_first(MOVED, 2),
    content=Content.BOUNDED,
    types={"value": "V", "position": "I", "like": "S", "output": "S"},
)
def sequence_placed(xp: Any, value: Any, position: Any, like: Any) -> Any:
    """Zeros in the shapes of the elements of `like`, with `value` at `position`."""
    found = full_like(xp, like, value=0.0)
    found[_index(position)] = value
    return found


@op(
    "nncdbg.SequencePadded",
    infer=lambda attributes, types: (types[2],),
    vjp=lambda emit, at: (emit("SequenceErase", at.d, at.operand(1)), None, None),
    influence=of_first(MOVED, 2),
    content=Content.BOUNDED,
    types={"x": "S", "position": "I", "like": "S", "output": "S"},
)
def sequence_padded(xp: Any, x: Any, position: Any, like: Any) -> Any:
    """`x` with zeros at `position` of the sequence `like`, which has one element more."""
    index = range(len(like))[_index(position)]
    return [*x[:index], full_like(xp, like[index], value=0.0), *x[index:]]


def _index(position: Any) -> int:
    return int(np.asarray(position).reshape(()).item())


@op(
    "nncdbg.SplitLike",
    infer=lambda attributes, types: (types[1],),
    vjp=lambda emit, at: (emit("ConcatFromSequence", at.d, axis=at.attributes["axis"]), None),
    influence=of_first(MOVED),
    types={"like": "S", "output": "S"},
)
def split_like(xp: Any, x: Any, like: Any, *, axis: int) -> Any:
    """Parts of `x` along `axis`, of the sizes of the tensors of the sequence `like` along it."""
    ends = np.cumsum([each.shape[axis] for each in like])[:-1].tolist()
    return list(xp.split(x, ends, axis=axis))


@op(
    "nncdbg.EmptySequenceOf",
    infer=lambda attributes, types: (None if types[0] is None else SequenceType(types[0]),),
    vjp=nothing,
    influence=NOTHING,
    types={"like": "V", "output": "S"},
)
def empty_sequence_of(xp: Any, like: Any) -> Any:
    """An empty sequence of values of the type of `like`, which may be a sequence itself."""
    return []


@op(
    "nncdbg.SequenceAppend",
    infer=lambda attributes, types: (types[0],),
    vjp=lambda emit, at: (emit("SequenceErase", at.d), emit("SequenceAt", at.d, Literal(-1))),
    influence=ALL_MOVED,
    content=Content.BOUNDED,
    types={"sequence": "S", "value": "V", "output": "S"},
)
def sequence_append(xp: Any, sequence: Any, value: Any) -> Any:
    """The sequence with `value` at its end, which may be a sequence itself."""
    return [*sequence, value]


# A reverse sweep needs the values that a loop carries, from the last iteration to the first.  With `s`
# checkpoints, the iteration before which each is kept decides how many iterations are computed again.  For
# `n` iterations the least number is ``t(n, s) = r * n - beta(s + 1, r - 1)`` with ``beta(s, r) = binomial(s +
# r, s)`` and the unique `r` for which ``beta(s, r - 1) < n <= beta(s, r)``: Griewank and Walther, Algorithm
# 799: revolve.  The debugger's own checkpoints (`engine/time/checkpoints.py`) follow another rule: their run
# has no known end, and goes back to any moment instead of through all of them in reverse.


def reach(checkpoints: int, repetitions: int) -> int:
    """Return beta(s, r): the most iterations that a sweep reverses if it repeats none more than `r` times."""
    return comb(checkpoints + repetitions, checkpoints) if repetitions >= 0 else 0


def repetitions_of(iterations: int, checkpoints: int) -> int:
    """Return the least number `r` of repetitions for which ``beta(s, r)`` is at least `iterations`."""
    if checkpoints == 1:
        return max(0, iterations - 1)
    found = 0
    while reach(checkpoints, found) < iterations:
        found += 1
    return found


def recomputations(iterations: int, checkpoints: int) -> int:
    """Return t(n, s): how many iterations a reverse sweep computes again to get what each carries in.

    One of the checkpoints is before the first iteration.  The iterations that are reversed are not counted.
    """
    if iterations < 2:
        return 0
    repetitions = repetitions_of(iterations, checkpoints)
    return repetitions * iterations - reach(checkpoints + 1, repetitions - 1)


@lru_cache(maxsize=256)
def kept_before(iterations: int, checkpoints: int) -> frozenset[int]:
    """Return the iterations before which a sweep to the last one keeps a checkpoint, without the first.

    The next checkpoint is as far ahead as the least number of recomputations allows: at most
    ``beta(s, r - 1)`` iterations are before it, and at least ``beta(s - 1, r - 1)`` behind it.
    """
    kept, start = set(), 0
    while checkpoints > 1 and iterations > 1:
        repetitions = repetitions_of(iterations, checkpoints)
        rest = iterations - reach(checkpoints - 1, repetitions - 1)
        ahead = min(reach(checkpoints, repetitions - 1), rest)
        start, iterations, checkpoints = start + ahead, iterations - ahead, checkpoints - 1
        kept.add(start)
    return frozenset(kept)


@op(
    "nncdbg.KeepsCheckpoint",
    infer=fixed("bool", lambda attributes, types: ()),
    vjp=nothing,
    influence=NOTHING,
)
def keeps_checkpoint(xp: Any, step: Any, ahead: Any, free: Any) -> Any:
    """Whether a binomial plan keeps a checkpoint before iteration `step`: a bool scalar.

    The sweep computes `ahead` iterations again, from a checkpoint before iteration 0 to the iteration that is
    reversed next; `free` is the number of checkpoints that can still be kept.  All are i64 scalars.  A
    backward loop that follows this op computes the least number of iterations again.

    Source: Griewank and Walther, Algorithm 799: revolve, ACM TOMS 26(1), 2000.  Raises RunError for negative
    numbers.
    """
    number, iterations, checkpoints = int(step), int(ahead) + 1, int(free) + 1
    if min(number, iterations - 1, checkpoints - 1) < 0:
        raise RunError(
            f"step={number}, ahead={iterations - 1} and free={checkpoints - 1} must not be negative"
        )
    return xp.asarray(number in kept_before(iterations, checkpoints))
