"""Histograms of the finite elements of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nncdbg.errors import UsageError
from nncdbg.stats.summary import Summary, absolute, combine, summarize

_MANY = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """`counts[i]` finite elements are in ``[edges[i], edges[i + 1])``; the last bin includes its end.

    `edges` is f64[bins + 1], `counts` i64[bins]; non-finite elements are counted separately.
    """

    edges: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]
    nan: int
    posinf: int
    neginf: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, as JSON values."""
        lists = {"edges": self.edges.tolist(), "counts": self.counts.tolist()}
        return {**lists, "nan": self.nan, "posinf": self.posinf, "neginf": self.neginf}


def histogram(
    array: npt.ArrayLike,
    bins: int | Sequence[float] = 32,
    range: tuple[float, float] | None = None,
) -> Histogram:
    """Return the histogram of the finite elements, counted as `numpy.histogram` does.

    `bins` is a number of equal bins or the increasing edges; `range` excludes elements outside of it.
    Narrow floats are counted in f32, absolute values of complex numbers in f64. Data too close together
    for the number of bins is spread like equal data, 0.5 to each side. Raises UsageError for invalid
    bins, an invalid range or a dtype without a histogram.
    """
    tensor = np.asarray(array)
    if tensor.dtype.kind in "OUST":
        raise UsageError("strings have no histogram", hint="pass a tensor of numbers")
    _check(bins, range)
    of = summarize(tensor)
    with np.errstate(over="ignore", invalid="ignore"):
        edges, counts = _spread(_finite_numbers(tensor), bins, range)
    edges, counts = np.asarray(edges, np.float64), np.asarray(counts, np.int64)
    return Histogram(edges, counts, of.nan, of.posinf, of.neginf)


def _check(bins: int | Sequence[float], limits: tuple[float, float] | None) -> None:
    if isinstance(bins, (int, np.integer)):
        if not 1 <= bins <= _MANY:
            raise UsageError(f"a histogram cannot have {bins} bins", hint=f"use 1 to {_MANY} bins")
    else:
        edges = np.asarray(bins, np.float64)
        if edges.ndim != 1 or edges.size < 2 or not np.all(np.diff(edges) > 0):
            raise UsageError("the bin edges do not increase", hint="use two or more increasing edges")
    if limits is not None and not (np.all(np.isfinite(limits)) and limits[0] <= limits[1]):
        raise UsageError(
            f"a histogram cannot have the range {limits}", hint="use a finite range, lower end first"
        )


def _finite_numbers(tensor: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the finite elements, flat, in a dtype that `numpy.histogram` can divide into bins."""
    kind = tensor.dtype.kind
    if kind in "iu":
        return tensor.reshape(-1)
    if kind == "b":
        return np.asarray(tensor.view(np.uint8) != 0).astype(np.uint8).reshape(-1)
    if kind == "c":
        wide: npt.NDArray[Any] = absolute(tensor)
    else:
        wide = tensor if tensor.dtype.itemsize >= 4 else tensor.astype(np.float32)
    finite = np.isfinite(wide)
    return np.asarray(wide.reshape(-1) if finite.all() else wide[finite])


def _spread(
    numbers: npt.NDArray[Any], bins: int | Sequence[float], limits: tuple[float, float] | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    low, high = limits or ((numbers.min(), numbers.max()) if numbers.size else (0, 1))
    if isinstance(bins, (int, np.integer)) and not np.isfinite(
        float(high) - float(low)
    ):  # The range itself is beyond f64; a quarter of it is not.
        edges, counts = _spread(numbers / 4, bins, (float(low) / 4, float(high) / 4))
        return edges * 4, counts
    # "Too many bins for data range", in f32 or f64; NumPy 2.0 does not check this.
    with suppress(ValueError, IndexError):
        counts, edges = np.histogram(numbers, bins, limits)
        if np.all(np.diff(edges) > 0):
            return edges, counts
    if numbers.dtype != np.float64:
        return _spread(numbers.astype(np.float64), bins, limits)
    counts, edges = np.histogram(numbers, bins, _widened(float(low), float(high), bins))
    return edges, counts


def _widened(low: float, high: float, bins: int | Sequence[float]) -> tuple[float, float]:
    """Widen a range so that it has room for the bins, however large the numbers."""
    count = bins if isinstance(bins, (int, np.integer)) else len(bins)
    margin = max(0.5, 2.0 * float(np.spacing(max(abs(low), abs(high)))) * count)
    most = float(np.finfo(np.float64).max)
    return max(low - margin, -most), min(high + margin, most)


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
