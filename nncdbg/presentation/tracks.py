"""The table of tracks: last, smallest and largest number, and bars over the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.text import Text

from nncdbg.presentation.screen import Screen
from nncdbg.presentation.sparkline import sparkline
from nncdbg.stats.series import TrackedSeries

_COLUMNS = ("name", "part", "steps", "last", "min", "max")

_WIDTH = 24
"""Maximum number of bars."""


def put_tracks(screen: Screen, tracks: Sequence[TrackedSeries]) -> None:
    """Print a row per track; nothing without tracks."""
    rows = [_COLUMNS, *map(_row, tracks)]
    bars = ["", *map(_bars, tracks)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, bar in zip(rows if tracks else (), bars, strict=False):
        # The name and the part are words, the others numbers.
        words = [
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        screen.put_line(Text("  ".join([*words, bar]).rstrip()))


def _row(series: TrackedSeries) -> tuple[str, ...]:
    numbers = series.numbers
    finite = [number for number in numbers if math.isfinite(number)]
    shown = (numbers[-1:], [min(finite)] if finite else [], [max(finite)] if finite else [])
    return (series.name, series.part, str(len(numbers)), *(_text(each) for each in shown))


def _bars(series: TrackedSeries) -> str:
    """Return bars over the steps of a training, or over the epochs of an evaluation."""
    places = series.steps if series.part == "train" else range(len(series.steps))
    return sparkline(places, series.numbers, _WIDTH)


def _text(found: Sequence[float]) -> str:
    return f"{found[0]:.6g}" if found else "-"
