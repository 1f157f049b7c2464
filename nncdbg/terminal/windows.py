"""Listing windows: lines of program text with the arrow, the breakpoints and the line numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from nncdbg.textual_repr.listing import Listing

HERE = "->"
"""The statement that is next."""
CULPRIT = ">>"
"""The statement, just run, that a stop is about."""
CALLER = "=>"
"""The statement of an outer frame that is under way."""

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
class Marks:
    """What stands beside the numbers: arrows by line, and breakpoints by line (True: enabled)."""

    arrows: Mapping[int, str] = field(default_factory=dict)
    breakpoints: Mapping[int, bool] = field(default_factory=dict)


def window(listing: Listing, lines: Iterable[int], marks: Marks, room: int) -> list[Text]:
    """One Text per line number of `lines` that the listing has, for a screen of `room` columns."""
    numbers = [number for number in lines if 1 <= number <= len(listing.lines)]
    width = len(str(numbers[-1])) if numbers else 1
    room -= width + 5
    return [_line(op_in_sight(listing.lines[number - 1], room), number, width, marks) for number in numbers]


_STATEMENT = re.compile(r"(?P<lead>\s*)(?P<outputs>%.+?)(?P<call> = @?[\w./]+\()")


def op_in_sight(statement: str, room: int) -> str:
    """A statement too long for `room` columns with its outputs cut short, so that its op still shows."""
    match = _STATEMENT.match(statement)
    if match is None or len(statement) <= room:
        return statement
    least = max(12, room // 2)
    if len(match["outputs"]) <= least:
        return statement
    return f"{match['lead']}{match['outputs'][: least - 1]}…{statement[match.start('call') :]}"


def around(line: int, size: int, last: int) -> range:
    """`size` line numbers around `line`, within 1 and `last`."""
    first = max(1, min(line - size // 2, last - size + 1))
    return range(first, min(last, first + size - 1) + 1)


def _line(statement: str, number: int, width: int, marks: Marks) -> Text:
    star = {None: " ", True: "*", False: "o"}[marks.breakpoints.get(number)]
    arrow = marks.arrows.get(number, "  ")
    out = Text().append(star, "bold red").append(arrow, "bold yellow").append(f" {number:>{width}} ", "dim")
    code = Text(statement.replace("\t", "    "), "bold" if number in marks.arrows else "")
    for pattern, style in _STYLES:
        code.highlight_regex(pattern, style)
    return out.append_text(code)
