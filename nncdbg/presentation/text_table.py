"""Tables of text that fit the terminal: long texts are cropped, then columns are omitted and named."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

if TYPE_CHECKING:
    from nncdbg.presentation.screen import Screen

_LEAST = 12
"""The width to which a narrow terminal crops a text before it omits a column."""

_GAP = 2


@dataclass(frozen=True, slots=True)
class ColumnFormat:
    """`numbers` are aligned right and never cropped; `keep_end` are texts that differ at their end.

    A narrow terminal omits the columns `optional`, the first one first.
    """

    numbers: Collection[str]
    keep_end: Collection[str] = ()
    optional: Sequence[str] = ()


def put_columns(
    screen: Screen,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, str]],
    form: ColumnFormat,
    after: str = "",
) -> None:
    """Print a title line, the rows, the line `after` if any, and the names of columns that do not fit."""
    widths = {name: max(map(cell_len, [name, *(row[name] for row in rows)])) for name in columns}
    room = screen.line_layout.width
    fitting = _cropped(_without_optional(widths, room, form), room, form)
    screen.put_line(Text(_line({name: name for name in fitting}, fitting, form), "bold"))
    for row in rows:
        screen.put_line(Text(_line(row, fitting, form)))
    if after:
        screen.put(after)
    omitted = [name for name in widths if name not in fitting]
    if omitted:
        screen.put(f"a wider terminal also shows: {', '.join(omitted)}")


def _without_optional(widths: Mapping[str, int], room: int, form: ColumnFormat) -> dict[str, int]:
    """Return the columns that fit, with their texts cropped as far as allowed."""
    kept = dict(widths)
    for name in form.optional:
        least = [width if each in form.numbers else min(width, _LEAST) for each, width in kept.items()]
        if _total(least) <= room:
            break
        kept.pop(name, None)
    return kept


def _cropped(widths: dict[str, int], room: int, form: ColumnFormat) -> dict[str, int]:
    """Return the widths after cropping the longest texts until the columns fit, if they can."""
    widths = dict(widths)
    while _total([*widths.values()]) > room:
        longest = max((name for name in widths if name not in form.numbers), key=lambda name: widths[name])
        if widths[longest] <= _LEAST:
            break
        widths[longest] -= 1
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _line(row: Mapping[str, str], widths: Mapping[str, int], form: ColumnFormat) -> str:
    return (" " * _GAP).join(_fitted(name, row[name], width, form) for name, width in widths.items()).rstrip()


def _fitted(name: str, text: str, width: int, form: ColumnFormat) -> str:
    if name in form.numbers:
        return text.rjust(width)
    cropped = cell_len(text) > width
    while cropped and cell_len(text) >= width:
        text = text[1:] if name in form.keep_end else text[:-1]
    if cropped:
        text = f"…{text}" if name in form.keep_end else f"{text}…"
    return text + " " * (width - cell_len(text))
