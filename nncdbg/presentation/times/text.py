"""Durations, shares and tables of times as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.text import Text

from nncdbg.engine.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.presentation.screen import Screen
    from nncdbg.presentation.times.table import TimeTable

_TIMES = ("min", "median", "own", "total")
_NUMBERS = ("share", "calls", "statements", "line", *_TIMES)
_KEEPS_END = ("value", "where", "layer")
"""Texts that differ at their end: a narrow terminal crops their start."""

_OPTIONAL = ("shapes", "where", "min", "line")
"""Columns that a narrow terminal omits, the first one first."""

_LEAST = 12
"""The width to which a narrow terminal crops a text before it omits a column."""

_GAP = 2


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
    widths = {name: max(map(cell_len, [name, *(row[name] for row in cells)])) for name in table.columns}
    room = screen.line_layout.width
    fitting = _cropped(_without_optional(widths, room), room)
    screen.put_line(Text(_line({name: name for name in fitting}, fitting), "bold"))
    for row in cells:
        screen.put_line(Text(_line(row, fitting)))
    rest = table.rows[len(shown) :]
    if rest:
        share = share_text(sum(row[0] for row in rest))
        screen.put(f"and {counted(len(rest), 'row', ',')} more with {share}")
    omitted = [name for name in widths if name not in fitting]
    if omitted:
        screen.put(f"a wider terminal also shows: {', '.join(omitted)}")


def _without_optional(widths: Mapping[str, int], room: int) -> dict[str, int]:
    """Return the columns that fit, with their texts cropped as far as allowed."""
    kept = dict(widths)
    for name in _OPTIONAL:
        least = [width if each in _NUMBERS else min(width, _LEAST) for each, width in kept.items()]
        if _total(least) <= room:
            break
        kept.pop(name, None)
    return kept


def _cropped(widths: dict[str, int], room: int) -> dict[str, int]:
    """Return the widths after cropping the longest texts until the columns fit, if they can."""
    widths = dict(widths)
    while _total([*widths.values()]) > room:
        longest = max((name for name in widths if name not in _NUMBERS), key=lambda name: widths[name])
        if widths[longest] <= _LEAST:
            break
        widths[longest] -= 1
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _line(row: Mapping[str, str], widths: Mapping[str, int]) -> str:
    return (" " * _GAP).join(_fitted(name, row[name], width) for name, width in widths.items()).rstrip()


def _fitted(name: str, text: str, width: int) -> str:
    if name in _NUMBERS:
        return text.rjust(width)
    cropped = cell_len(text) > width
    while cropped and cell_len(text) >= width:
        text = text[1:] if name in _KEEPS_END else text[:-1]
    if cropped:
        text = f"…{text}" if name in _KEEPS_END else f"{text}…"
    return text + " " * (width - cell_len(text))


def _cell(name: str, value: Any) -> str:
    if name == "share":
        return share_text(value)
    if name in _TIMES:
        return time_text(value)
    return "" if value is None else f"{value:,}" if name in ("calls", "statements") else str(value)
