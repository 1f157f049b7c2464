"""The source view: lines of the user's source with the values of their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from rich.text import Text

from nncdbg.errors import NotComputed
from nncdbg.escaping import printable_line
from nncdbg.expression import spelled
from nncdbg.presentation.expressions import AsWritten
from nncdbg.presentation.listing_window import CALLER, HERE, around
from nncdbg.presentation.source_files import names_on
from nncdbg.presentation.stops import (
    concerned_values,
    show_reason,
    statement_lines,
    statement_window,
    value_or_reason,
)
from nncdbg.presentation.tensor_text import described
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.presentation.screen import Screen
    from nncdbg.target.records import SourceFrame, Stop
    from nncdbg.target.source import SourceView
    from nncdbg.target.target import Target

LINES = 5
"""Number of source lines at a stop."""

_LOCATION = re.compile(r" loc\(.*$")
"""The source of a statement, which the source view shows anyway."""

SourceShown: TypeAlias = "tuple[int, str, int]"
"""The call, the parameter of an update, and the statement of a stop."""

_MOST = 8
"""Most values below a line."""


def show_source_stop(
    screen: Screen,
    target: Target,
    source: SourceView,
    stop: Stop,
    before: SourceShown | None,
    written: bool,
) -> SourceShown | None:
    """Print a stop in the source view, and return what it shows.

    `before` is what the last stop showed.  With `written`, names that were bound since are printed.
    """
    show_reason(screen, target, stop)
    frames, statement = source.frames(), source.statement
    if source.shows_statement(stop):
        _show_statement(screen, target, stop)
    if not frames:
        screen.note("no line of the source ran this statement")
        for line in statement_window(screen, target, stop):
            screen.put_line(line)
        return None
    here = frames[0].call, frames[0].parameter, statement
    if before is None or before[:2] != here[:2]:
        called = f", called from {frame_title(frames[1])}" if len(frames) > 1 else ""
        screen.put_line(Text(f"in {frame_title(frames[0])}{called}", "bold"))
    elif written:
        for line in value_lines(screen, target, source.bound_since(before[2])):
            screen.put_line(line)
    for line in source_window(screen, target, source):
        screen.put_line(line)
    return here


def show_source_end(screen: Screen, target: Target, source: SourceView) -> None:
    """Print that the step has ended, and what the names of the outermost call hold then."""
    screen.put(f"The step has ended after {counted(target.now.tick, 'statement')}")
    for frame in source.frames()[-1:]:
        for line in value_lines(screen, target, frame.names):
            screen.put_line(line)


def _show_statement(screen: Screen, target: Target, stop: Stop) -> None:
    """Print the statement that a finding or error is about, and its values."""
    if stop.place is not None and stop.line is not None:
        for line in statement_lines(stop.place.listing, screen, stop.line, f"  line {stop.line}: "):
            screen.put_line(Text(_LOCATION.sub("", line), "dim"))
    for name in concerned_values(target, stop, written=False):
        screen.put_line(value_or_reason(target, name, screen.layout_after("    ")), "    ")


def frame_title(frame: SourceFrame) -> str:
    """Return `Block.forward, train.py:19`."""
    place = f"{frame.file}:{frame.line}"
    return f"{frame.function}, {place}" if frame.function else place


def source_window(
    screen: Screen, target: Target, source: SourceView, number: int = 0, lines: int = LINES
) -> Iterator[Text]:
    """Yield the lines around that of a call, by its number, with the values of the names on the line."""
    frame = source.frames()[number]
    recorded = source.lines(frame.file)
    last = max(recorded, default=frame.line)
    yield from source_lines(screen, target, source, frame.file, around(frame.line, lines, last), number)


def source_lines(
    screen: Screen, target: Target, source: SourceView, file: str, numbers: Sequence[int], chosen: int
) -> Iterator[Text]:
    """Yield lines of a file, with the arrow of a call of the stack, and the values of names on its line."""
    frames = source.frames()
    frame = frames[chosen] if chosen < len(frames) else None
    texts = source.lines(file)
    width = len(str(numbers[-1])) if numbers else 1
    stops = source.breakpoints(file)
    if frame is not None and frame.file == file and frame.line not in texts:
        yield Text(f"{HERE} {frame_title(frame)}: the text of this line was not recorded", "dim")
    for number in numbers:
        if number not in texts:
            continue
        here = frame is not None and (frame.file, frame.line) == (file, number)
        star = {None: " ", True: "*", False: "o"}[stops.get(number)]
        arrow = (CALLER if chosen else HERE) if here else "  "
        text = printable_line(texts[number].replace("\t", "    "))
        yield (
            Text()
            .append(star, "bold red")
            .append(arrow, "bold yellow")
            .append(f" {number:>{width}} ", "dim")
            .append(text, "bold" if here else "")
        )
        if here and frame is not None:
            names = frame.names if frame.parameter else names_on(text, frame.names)
            yield from value_lines(screen, target, names, " " * (width + 8))


def value_lines(
    screen: Screen, target: Target, names: Mapping[str, str], indent: str = "  "
) -> Iterator[Text]:
    """Yield the lines of values by the names that the source gives them."""
    layout = screen.layout_after(indent)
    for name, value in [*names.items()][:_MOST]:
        try:
            line = described(value, target.value(spelled(value)), replace(layout, names=AsWritten(name)))
        except NotComputed as error:
            line = Text(f"{name}: {error.message}", "dim")
        for each in line.split("\n"):
            yield Text(indent).append_text(each)
