"""Ops of the nncdbg domain for cotangents of sequences; the same in every opset."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from nncdbg.engine.errors import RunError
from nncdbg.engine.ops.cotangent import full_like
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.gradient import Applied, Emit, nothing
from nncdbg.engine.ops.influence import (
    ALL_MOVED,
    MOVED,
    NOTHING,
    Application,
    Content,
    Influence,
    Marked,
    of_first,
)
from nncdbg.engine.ops.types import Attributes
from nncdbg.ir.records import Literal, Operand, SequenceType, Type


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


def _placed_vjp(emit: Emit, at: Applied) -> Sequence[Operand]:
    return emit("SequenceAt", at.d, at.operand(1)), None, None


@op(
    "nncdbg.SequencePlaced",
    infer=lambda attributes, types: (types[2],),
    vjp=_placed_vjp,
    influence=of_first(MOVED, 2),
    content=Content.BOUNDED,
    types={"value": "V", "position": "I", "like": "S", "output": "S"},
)
def sequence_placed(xp: Any, value: Any, position: Any, like: Any) -> Any:
    """Zeros in the shapes of the elements of `like`, with `value` at `position`."""
    found = full_like(xp, like, value=0.0)
    found[_index(position)] = value
    return found


def _padded_vjp(emit: Emit, at: Applied) -> Sequence[Operand]:
    return emit("SequenceErase", at.d, at.operand(1)), None, None


@op(
    "nncdbg.SequencePadded",
    infer=lambda attributes, types: (types[2],),
    vjp=_padded_vjp,
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


def _split_like_vjp(emit: Emit, at: Applied) -> Sequence[Operand]:
    return emit("ConcatFromSequence", at.d, axis=at.attributes["axis"]), None


@op(
    "nncdbg.SplitLike",
    infer=lambda attributes, types: (types[1],),
    vjp=_split_like_vjp,
    influence=of_first(MOVED),
    types={"like": "S", "output": "S"},
)
def split_like(xp: Any, x: Any, like: Any, *, axis: int) -> Any:
    """Parts of `x` along `axis`, of the sizes of the tensors of the sequence `like` along it."""
    ends = np.cumsum([each.shape[axis] for each in like])[:-1].tolist()
    return list(xp.split(x, ends, axis=axis))


def _sequence_of_first(attributes: Attributes, types: Sequence[Type | None]) -> Sequence[Type | None]:
    return (None if types[0] is None else SequenceType(types[0]),)


@op(
    "nncdbg.EmptySequenceOf",
    infer=_sequence_of_first,
    vjp=nothing,
    influence=NOTHING,
    types={"like": "V", "output": "S"},
)
def empty_sequence_of(xp: Any, like: Any) -> Any:
    """An empty sequence of values of the type of `like`, which may be a sequence itself."""
    return []


def _append_vjp(emit: Emit, at: Applied) -> Sequence[Operand]:
    return emit("SequenceErase", at.d), emit("SequenceAt", at.d, Literal(-1))


@op(
    "nncdbg.SequenceAppend",
    infer=lambda attributes, types: (types[0],),
    vjp=_append_vjp,
    influence=ALL_MOVED,
    content=Content.BOUNDED,
    types={"sequence": "S", "value": "V", "output": "S"},
)
def sequence_append(xp: Any, sequence: Any, value: Any) -> Any:
    """The sequence with `value` at its end, which may be a sequence itself."""
    return [*sequence, value]
