"""Durations, shares and tables of times as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nncdbg.presentation.text_table import ColumnFormat, put_columns
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.presentation.screen import Screen
    from nncdbg.presentation.times.table import TimeTable

_TIMES = ("min", "median", "own", "total")
_COUNTS = ("calls", "statements", "bytes", "nonfinite")
_FORMAT = ColumnFormat(
    numbers=("share", "line", *_COUNTS, *_TIMES),
    keep_end=("value", "where", "layer"),
    optional=("bytes", "nonfinite", "shapes", "where", "min", "line"),
)


def time_text(seconds: float) -> str:
    """Return a duration with three digits, as `85 ns`, `12.3 us`, `4.56 ms` or `1.23 s`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= 0.9995 * size:
            value = seconds / size
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def share_text(share: float) -> str:
    """Return a share as `12.3 %`."""
    return f"{100 * share:.1f} %"


def print_times(screen: Screen, table: TimeTable, most: int | None = None) -> None:
    """Print the first `most` rows of a table (None: all), and the share of the others.

    A narrow terminal crops texts, then omits columns, and names them.
    """
    shown = table.rows if most is None else table.rows[:most]
    cells = [
        {name: _cell(name, value) for name, value in zip(table.columns, row, strict=True)} for row in shown
    ]
    rest = table.rows[len(shown) :]
    after = ""
    if rest:
        share = share_text(sum(row[0] for row in rest))
        after = f"and {counted(len(rest), 'row', ',')} more with {share}"
    put_columns(screen, table.columns, cells, _FORMAT, after)


def _cell(name: str, value: Any) -> str:
    if name == "share":
        return share_text(value)
    if name in _TIMES:
        return time_text(value)
    return "" if value is None else f"{value:,}" if name in _COUNTS else str(value)
