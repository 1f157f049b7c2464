"""Statistics of large tensors piece by piece, so that a caller can cancel in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nncdbg.stats.histogram import Histogram, histogram
from nncdbg.stats.plain import combine
from nncdbg.stats.summarization import summarize
from nncdbg.stats.summary import Summary

Between: TypeAlias = "Callable[[], None]"
"""Called before each piece; an exception from it ends the pass."""

_PIECE = 1 << 23
"""Elements of a piece: about 10 ms of the compiled pass, 100 ms of the plain one."""


def summarize_by_pieces(array: npt.NDArray[Any], between: Between) -> Summary:
    """Return the same as `summarize`, up to rounding in mean and std."""
    return combine(summarize(piece) for piece in _pieces(array, between))


def histogram_by_pieces(
    array: npt.NDArray[Any],
    bins: int,
    limits: tuple[float, float] | None,
    between: Between,
) -> Histogram:
    """Return the same as `histogram` over `bins` equal bins, up to rounding of the edges.

    Raises UsageError as `histogram` does.
    """
    if array.size <= _PIECE:
        return histogram(array, bins, limits)
    if limits is None:
        summary = summarize_by_pieces(array, between)
        limits = (0.0, 1.0) if summary.min is None or summary.max is None else (summary.min, summary.max)
    # Over the same range each piece has the same edges.
    found = [histogram(piece, bins, limits) for piece in _pieces(array, between)]
    return Histogram(
        found[0].edges,
        np.sum([each.counts for each in found], axis=0),
        sum(each.nan for each in found),
        sum(each.posinf for each in found),
        sum(each.neginf for each in found),
    )


def _pieces(array: npt.NDArray[Any], between: Between) -> Iterator[npt.NDArray[Any]]:
    """Yield views of at most `_PIECE` elements; contiguous memory stays contiguous."""
    if array.size <= _PIECE:
        between()
        yield array
        return
    axis = max(
        (each for each in range(array.ndim) if array.shape[each] > 1),
        key=lambda each: abs(array.strides[each]),
    )
    half = array.shape[axis] // 2
    for part in (slice(None, half), slice(half, None)):
        yield from _pieces(array[(slice(None),) * axis + (part,)], between)
