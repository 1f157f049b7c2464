"""Outliers in the data of a training: a sample that is far larger than the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nncdbg.nan_watch.measuring.loop_history import LoopHistory
from nncdbg.nan_watch.measuring.norms import is_float_tensor

_FAR = 1e3
"""Least largest element of an outlier, as a multiple of the median of the samples."""

_FEWEST = 4
"""Least number of samples for a median."""


@dataclass(frozen=True, slots=True)
class Outlier:
    """A sample whose largest element is `largest`, used first in the iteration `at` of the history.

    `index` is its place along the first axis of the data; `median` is that of the samples of the batches.
    """

    name: str
    index: int
    at: int
    largest: float
    median: float


def outlier_in(history: LoopHistory) -> Outlier | None:
    """Return the first outlier in the latest batches of a training; None if there is none."""
    found = [each for each in _outliers(history) if each is not None]
    return min(found, key=lambda each: each.at, default=None)


def _outliers(history: LoopHistory) -> Iterator[Outlier | None]:
    for name, data, batches in history.batches():
        if is_float_tensor(data):
            sizes = [_sizes(batch, data) for batch in batches]
            yield _outlier(name, data, sizes)


def _outlier(name: str, data: Any, sizes: Sequence[Any]) -> Outlier | None:
    """Return the first outlier among the batches with these sizes of their samples."""
    every = np.concatenate(sizes)
    every = every[np.isfinite(every)]
    median = float(np.median(every)) if len(every) >= _FEWEST else 0.0
    for at, each in enumerate(sizes):
        largest = float(np.max(each, initial=0.0))
        if median and _FAR * median <= largest < np.inf:
            index = int(np.argmax(_sizes(data, data) == largest))
            return Outlier(name, index, at, largest, median)
    return None


def _sizes(batch: Any, data: Any) -> Any:
    """Return f64[samples]: the largest magnitude of each sample of a batch; empty for a lost batch."""
    if batch is None or not np.size(data):
        return np.zeros(0)
    one = np.ndim(batch) < np.ndim(data)
    rows = np.asarray(batch, np.float64).reshape(1 if one else len(batch), -1)
    return np.abs(rows).max(axis=1, initial=0.0)
