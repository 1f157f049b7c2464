"""Listing windows: lines of program text with the arrow, the breakpoints and the line numbers."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from rich.text import Text

from nncdbg.presentation.short_statements import brief, whole

if TYPE_CHECKING:
    from nncdbg.text.listing import Listing
    from nncdbg.text.short_names import ShortNames

HERE = "->"
"""The statement that runs next."""
CULPRIT = ">>"
"""The statement, just executed, that caused a stop."""
CALLER = "=>"
"""The current statement of an outer frame."""

_STYLES = (
    (re.compile(r"^\s*#.*$"), "green"),
    (
        re.compile(r"\b(?:graph|if|else|while|break unless|next|yield|return|collect|times|count)\b"),
        "magenta",
    ),
    (re.compile(r'%(?:"(?:[^"\\]|\\.)*"|[\w/.$]+)'), "cyan"),
    (re.compile(r"@[\w/.$]+"), "yellow"),
    (re.compile(r": \w+\[[^\]]*\]"), "dim"),
    (re.compile(r"\bloc\(.*\)"), "dim"),
)


@dataclass(frozen=True, slots=True)
class LineMarks:
    """Margin marks: arrows by line, and breakpoints by line (True: enabled)."""

    arrows: Mapping[int, str] = field(default_factory=dict)
    breakpoints: Mapping[int, bool] = field(default_factory=dict)


def window(
    listing: Listing,
    lines: Iterable[int],
    marks: LineMarks,
    room: int,
    names: ShortNames,
    margins: Mapping[int, str] = MappingProxyType({}),
    *,
    hidden: Container[int] = (),
) -> list[Text]:
    """Return the `lines` of the listing for a screen of `room` columns, with the short names of `names`.

    Long statements lose types and attributes before operands; a statement with an arrow is shown whole.
    `margins` are texts of one width to the left of lines.  The further lines of a statement are not counted,
    and `hidden` lines are left out unless they have an arrow.
    """
    numbers = [
        number
        for number in lines
        if 1 <= number <= len(listing.lines)
        and number not in listing.wrapped
        and (number not in hidden or number in marks.arrows)
    ]
    width = len(str(numbers[-1])) if numbers else 1
    blank = " " * len(next(iter(margins.values()), ""))
    room -= width + 5 + len(blank)
    shown: list[Text] = []
    for number in numbers:
        fit = whole if number in marks.arrows else brief
        statement = listing.full_line(number).replace("\t", "    ")
        margin = margins.get(number, blank)
        shown += _lines(fit(statement, names, room), number, width, marks, margin)
    return shown


def around(line: int, size: int, last: int) -> range:
    """Return `size` line numbers around `line`, between 1 and `last`."""
    first = max(1, min(line - size // 2, last - size + 1))
    return range(first, min(last, first + size - 1) + 1)


def _lines(
    statement: Sequence[str], number: int, width: int, marks: LineMarks, margin: str
) -> Iterator[Text]:
    """Yield the lines of one statement, the first with its margin, number and marks."""
    star = {None: " ", True: "*", False: "o"}[marks.breakpoints.get(number)]
    arrow = marks.arrows.get(number, "  ")
    head = (
        Text()
        .append(margin, "dim")
        .append(star, "bold red")
        .append(arrow, "bold yellow")
        .append(f" {number:>{width}} ", "dim")
    )
    for line in statement:
        code = Text(line, "bold" if number in marks.arrows else "")
        for pattern, style in _STYLES:
            code.highlight_regex(pattern, style)
        yield head.append_text(code)
        head = Text(" " * (len(margin) + width + 5))
