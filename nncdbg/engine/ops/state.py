"""The statements of programs with states: ``update``, and the batches of a ``run`` line."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from nncdbg.dtypes import NUMPY
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.influence import ALL_MOVED, moved
from nncdbg.engine.ops.types import Attributes, Types
from nncdbg.errors import GraphError
from nncdbg.ir.records import Array, TensorType, tensor_only, type_of
from nncdbg.text.lexemes import name_text


def _fits(state: TensorType, new: TensorType) -> bool:
    """Return whether a value has the type of a state; a size that is no number fits any size."""
    if state.dtype != new.dtype or state.shape is None or new.shape is None:
        return state.dtype == new.dtype
    sizes = [(size, other) for size, other in zip(state.shape, new.shape, strict=False)]
    same = all(size == other or not isinstance(size, int) for size, other in sizes)
    return same and len(state.shape) == len(new.shape)


@op("update", infer=lambda attributes, types: types, influence=ALL_MOVED)
def update(xp: Any, *values: Any, states: Sequence[tuple[str, TensorType]] = ()) -> Any:
    """The new values of states, which every later statement reads.  Written ``update %w = %w.1``.

    `states` are the names and types of the states.  Raises GraphError for a value of another type.
    """
    for (name, wanted), value in zip(states, values, strict=False):
        if value.shape == wanted.shape and value.dtype is NUMPY[wanted.dtype]:
            continue
        given = type_of(value)
        if given is not None and not _fits(wanted, given):
            raise GraphError(
                f"%{name_text(name)} is {wanted}, but its new value is {given}",
                hint="a state keeps its shape and element type: reshape or convert the value",
            )
    return values if len(values) > 1 else values[0]


def _batch_types(attributes: Attributes, types: Types) -> Types:
    return [_batch_type(tensor_only(each), attributes) for each in types[1:]]


def _batch_type(data: TensorType | None, attributes: Attributes) -> TensorType | None:
    if data is None or data.shape is None:
        return data
    if not data.shape:
        raise GraphError(
            f"a batch needs an axis of samples, but its data has the type {data}",
            hint="give data with the samples along the first axis",
        )
    samples, *others = data.shape
    size = attributes["size"]
    if not size:
        return TensorType(data.dtype, tuple(others))
    whole = attributes["drop_last"] or (isinstance(samples, int) and samples % size == 0)
    return TensorType(data.dtype, (size if whole else None, *others))


def steps_of_epoch(samples: int, size: int, drop_last: bool) -> int:
    """Return the number of batches of `size` samples.  Raises GraphError if there is none."""
    steps = samples // size if drop_last else -(-samples // size)
    if not steps:
        raise GraphError(
            f"{samples} samples are fewer than one batch of {size}",
            hint="use more samples or a smaller batch",
        )
    return steps


@lru_cache(maxsize=8)
def _order(samples: int, seed: int, epoch: int) -> Array:
    """Return the order of the samples in an epoch: the same for one seed on every machine."""
    order = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(samples)
    order.flags.writeable = False
    return order


@op(
    "nncdbg.Batch",
    infer=_batch_types,
    influence=moved(every=True, first=1),
    host_operands=(0,),
    results=("batches...",),
)
def batch(xp: Any, step: Any, *data: Any, size: int = 0, shuffle: int = -1, drop_last: int = 0) -> Any:
    """The batch of step `step` of each of `data`, which have the samples along their first axis.

    `size` samples (0: one sample, without the axis).  An epoch uses each sample once; its last batch may have
    fewer samples, or is left out with `drop_last`.  `shuffle` is the seed of the order of an epoch, -1 for
    the order of the data.
    """
    samples, count = data[0].shape[0], size or 1
    for other in data[1:]:
        if other.shape[0] != samples:
            raise GraphError(
                f"the data of a batch has {samples} and {other.shape[0]} samples",
                hint="give the same number of samples along the first axis",
            )
    epoch, number = divmod(int(step), steps_of_epoch(samples, count, bool(drop_last)))
    place: Any = slice(number * count, (number + 1) * count)
    if shuffle >= 0:
        place = xp.asarray(_order(samples, shuffle, epoch)[place])
    found = tuple(each[place] if size else each[place][0] for each in data)
    return found if len(found) > 1 else found[0]
