"""A series of numbers as a plot of several lines, with the scale on the left and the steps below."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from rich.text import Text

from nncdbg.presentation.elements import BAD, DIM, Layout, element
from nncdbg.presentation.sparkline import NOT_FINITE

Numbers = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

_ACROSS, _DOWN = 2, 4
"""Dots of a Braille character."""

_BRAILLE = 0x2800
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""The bit of each dot of a Braille character."""

_WIDEST = 120
"""Most columns of a plot in a pipe, whose lines have no limit."""


def curve(steps: Steps, numbers: Numbers, layout: Layout, *, height: int, branch: int = 0) -> list[Text]:
    """Return the lines of a plot: `height` lines of dots, and two lines with the steps.

    A column of dots covers the smallest to the largest number of its steps, so no spike is lost.  With NaN
    or Inf, the first line has a mark × above their steps.  Columns before step `branch` are dim.  `steps`
    ascend and are not empty.
    """
    finite = numbers[np.isfinite(numbers)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    labels = {0: element(high), height - 1: element(low)} if high > low else {height // 2: element(low)}
    if not finite.size:
        labels = {}
    gutter = max(map(len, labels.values()), default=0)
    width = max(8, min(layout.width, _WIDEST) - gutter - 2)
    across, down = (_ACROSS, _DOWN) if layout.unicode else (1, 1)
    places = _places(steps, width * across)
    dots = _dots(places, numbers, (low, high), (height * down, width * across))
    characters = _braille(dots) if layout.unicode else np.where(dots, "*", " ")
    dim = int(_places(np.array([steps[0], branch, steps[-1]]), width)[1]) if branch > steps[0] else 0
    lines = [] if len(finite) == len(numbers) else [_marks(places // across, numbers, gutter + 2, layout)]
    for row in range(height):
        line = Text().append(f"{labels.get(row, ''):>{gutter}} ", DIM)
        line.append("┤" if layout.unicode else "|", DIM)
        cells = "".join(characters[row])
        lines.append(line.append(cells[:dim], DIM).append(cells[dim:].rstrip()))
    return [*lines, *_axis(steps, width, gutter, layout)]


def _places(steps: Steps, columns: int) -> npt.NDArray[np.int64]:
    """Return the column of each step, from 0 for the first to the last column."""
    span = max(1, int(steps[-1] - steps[0]))
    return np.asarray((steps - steps[0]) * (columns - 1) // span, np.int64)


def _dots(
    places: npt.NDArray[np.int64], numbers: Numbers, scale: tuple[float, float], size: tuple[int, int]
) -> npt.NDArray[np.bool_]:
    """Return which dots of the plot are set; lines connect numbers without a NaN or Inf between them."""
    rows, columns = size
    dots = np.zeros(size, bool)
    low, high = scale
    # Halves, because the difference of two large numbers may overflow.
    span = high / 2 - low / 2
    finite = np.isfinite(numbers)
    levels = np.full(len(numbers), np.nan)
    shares = (numbers[finite] / 2 - low / 2) / span if span else np.full(finite.sum(), 0.5)
    levels[finite] = (1 - shares.clip(0, 1)) * (rows - 1)
    for column, top, bottom in _spans(places, levels):
        dots[round(top) : round(bottom) + 1, column] = True
    return dots


def _spans(places: npt.NDArray[np.int64], levels: Numbers) -> Iterator[tuple[int, float, float]]:
    """Yield the columns with their first and last row of dots, also those between two numbers."""
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    ends = [*starts[1:], len(places)]
    before: tuple[int, float] | None = None
    for start, end in zip(starts, ends, strict=True):
        share, column = levels[start:end], int(places[start])
        known = share[~np.isnan(share)]
        if before is not None and not np.isnan(share[0]):
            yield from _between(*before, column, float(share[0]))
        if known.size:
            yield column, float(known.min()), float(known.max())
        before = None if np.isnan(share[-1]) else (column, float(share[-1]))


def _between(first: int, start: float, last: int, end: float) -> Iterator[tuple[int, float, float]]:
    """Yield the columns of a line from a level to another; neighbours meet halfway."""
    count = last - first
    edges = [start + (end - start) * (part + 0.5) / count for part in range(count)]
    levels = [start, *edges, end]
    for part in range(count + 1):
        top, bottom = sorted(levels[part : part + 2])
        yield first + part, top, bottom


def _braille(dots: npt.NDArray[np.bool_]) -> npt.NDArray[np.str_]:
    rows, columns = dots.shape[0] // _DOWN, dots.shape[1] // _ACROSS
    cells = dots.reshape(rows, _DOWN, columns, _ACROSS).transpose(0, 2, 1, 3)
    codes = (cells * _BITS).sum((2, 3))
    return np.array([[chr(_BRAILLE + code) if code else " " for code in row] for row in codes.tolist()])


def _marks(columns: npt.NDArray[np.int64], numbers: Numbers, indent: int, layout: Layout) -> Text:
    odd = set(columns[~np.isfinite(numbers)].tolist())
    sign = NOT_FINITE if layout.unicode else "x"
    marks = "".join(sign if column in odd else " " for column in range(max(odd, default=-1) + 1))
    return Text(" " * indent).append(marks, BAD)


def _axis(steps: Steps, width: int, gutter: int, layout: Layout) -> Iterator[Text]:
    corner, line = ("└", "─") if layout.unicode else ("+", "-")
    yield Text(" " * (gutter + 1) + corner + line * width, DIM)
    first, last = f"{steps[0]}", f"{steps[-1]}"
    middle = "step"
    if len(first) + len(middle) + len(last) + 2 > width:
        middle = ""
    gap = (width - len(middle)) // 2
    text = first.ljust(gap) + middle if gap > len(first) else first
    yield Text(" " * (gutter + 2) + text + last.rjust(width - len(text)) * (last != first), DIM)
