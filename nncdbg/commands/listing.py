"""Commands that show and search the program text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from nncdbg.commands.table import PLACE, command, needs, no_arguments, whole_number
from nncdbg.errors import UsageError
from nncdbg.escaping import printable_line
from nncdbg.ir.line_pairs import LinePairs
from nncdbg.ir.search import origins, same_file
from nncdbg.presentation.listing_window import around, window
from nncdbg.presentation.source_files import source_file, source_lines
from nncdbg.presentation.source_view import source_lines as lines_of_source
from nncdbg.presentation.stops import marks_of, statement_lines
from nncdbg.presentation.times.margin import TITLE, margins
from nncdbg.target.breakpoint_syntax import split_source
from nncdbg.text.lexemes import integer_of, quote

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession
    from nncdbg.target.source import SourceView

_PAGE = 11
"""Number of lines that `list` shows."""


def _has_times(session: CommandSession, text: str) -> bool:
    """Return whether a listing has times, which vary."""
    return session.target.times().on


@command(
    "list",
    "l",
    group="looking",
    arguments="[. | LINE | FIRST,LAST | PLACE | FILE:LINE | backward [LINE] | forward [LINE]]",
    repeats=True,
    completes=PLACE,
    varies=_has_times,
)
def list_(session: CommandSession, text: str) -> None:
    """List program text around the current statement, a line or a place of `break`.

    A second `list` shows the next lines; `list .` returns to the current statement.  `list net.py:11`
    shows line 11 of the model's source file, and the statements of that line.  `list backward` shows the
    statements that differentiate the current line; `list forward` shows the statement that it
    differentiates.

    `->` marks the next statement.  `>>` marks the statement that the stop reports.  `=>` marks the current
    statement of an outer frame.  `*` marks an enabled breakpoint, and `o` marks a disabled breakpoint.
    After `set times on`, the margin has the median and the least time of each statement, and its share.
    """
    source = split_source(text)
    if source and _is_source(session, *source):
        list_source(session, *source)
        return
    if (shown := session.source) is not None and shown.frames() and _RANGE.fullmatch(text):
        _list_lines(session, shown, text)
        return
    direction, _, line = text.partition(" ")
    if direction in ("backward", "forward"):
        _list_counterparts(session, direction, line.strip())
        return
    last = len(session.listing().lines)
    lines = _wanted(session, text, last, session.here())
    if not lines:
        what = f"the listing has no lines {text}" if text else "this is the end of the listing"
        raise UsageError(what, hint=f"choose lines from 1 to {last}")
    _show(session, lines)


_RANGE = re.compile(r"\.?|[0-9]{1,18}(?:\s*[, -]\s*[0-9]{1,18})?")
"""What `list` shows of the source: around the current line, around a line, or a range of lines."""


def _list_lines(session: CommandSession, source: SourceView, text: str) -> None:
    """Print lines of the selected call's file, in the split view with the statements of the current line."""
    frame = source.frames()[source.selected]
    last = max(source.lines(frame.file), default=0)
    wanted = _wanted(session, text, last, frame.line)
    if not wanted:
        raise UsageError(
            f"{frame.file} has no lines {text}" if text else f"this is the end of {frame.file}",
            hint=f"choose lines from 1 to {last}",
        )
    for line in lines_of_source(session.screen, session.target, source, frame.file, wanted, source.selected):
        session.screen.put_line(line)
    session.listed = wanted[-1]
    if session.view == "split" and frame.line in wanted:
        _show(session, [session.target.listing.line(*place) for place in source.statements_here()])
        session.listed = wanted[-1]


def _is_source(session: CommandSession, file: str, line: int) -> bool:
    """Return whether a text is a line of the user's model, and not the name of another place."""
    if any(same_file(each, file) for each in origins(session.target.program)):
        return True
    try:
        session.target.lines(quote(f"{file}:{line}"))
    except UsageError:
        return True
    return False


def _list_counterparts(session: CommandSession, direction: str, text: str) -> None:
    line = whole_number("list", text) if text else session.here()
    pairs = LinePairs(session.target.lowered, session.listing())
    found = pairs.backward(line) if direction == "backward" else pairs.forward(line)
    if not found:
        missing = "is not differentiated" if direction == "backward" else "differentiates no other line"
        raise UsageError(f"line {line} {missing}", hint=_COUNTERPART_HINTS[direction])
    _show(session, found)


_COUNTERPART_HINTS = {
    "backward": "choose a statement of a graph with a `backward` line, or of a recorded forward pass",
    "forward": "choose a statement of a backward graph",
}


@command("ll", group="looking", varies=_has_times)
def ll(session: CommandSession, text: str) -> None:
    """List the whole graph, branch or loop of the selected frame."""
    no_arguments("ll", text)
    place = session.target.frame().place
    _show(session, range(place.first, place.listing.statements[place.path][-1] + 1))


def _show(session: CommandSession, lines: Sequence[int]) -> None:
    target, frame = session.target, session.target.frame()
    marks = marks_of(target, frame.number, target.stop)
    measured = target.times()
    times = margins(measured, frame.place) if measured.on else {}
    if times:
        session.screen.put_line(Text(TITLE, "dim"))
    width, names = session.screen.line_layout.width, session.screen.names
    hidden = session.screen.hidden_lines(frame.listing)
    for line in window(frame.listing, lines, marks, width, names, times, hidden=hidden):
        session.screen.put_line(line)
    session.listed = lines[-1]


def _wanted(session: CommandSession, text: str, last: int, here: int) -> Sequence[int]:
    """Return the line numbers that `list` shows of a text with `last` lines; `here` is the current one."""
    if not text:
        if session.listed is not None:
            return range(session.listed + 1, min(last, session.listed + _PAGE) + 1)
        return around(here, _PAGE, last)
    if text == ".":
        return around(here, _PAGE, last)
    if match := re.fullmatch(r"([0-9]{1,18})\s*[, -]\s*([0-9]{1,18})", text):
        return range(max(1, int(match[1])), min(last, int(match[2])) + 1)
    if (number := integer_of(text)) is not None:
        return around(number, _PAGE, last) if 1 <= number <= last else ()
    _, lines = session.target.lines(text)
    if len(lines) > 1:
        return lines
    listing = session.target.listing
    site = listing.site(lines[0])
    if site is not None and site.pc == 0 and listing.headers.get(site.path):
        return range(first := listing.header_line(site.path), min(last, first + _PAGE - 1) + 1)
    return around(lines[0], _PAGE, last)


@command("search", "forward-search", group="looking", arguments="TEXT", repeats=True)
def search(session: CommandSession, text: str) -> None:
    """Search forward for TEXT from the last line listed.

    Without TEXT, repeat the last search.  After the last line, the search continues at the first line.
    The search ignores case.
    """
    _search(session, "search", text, 1)


@command("rsearch", "reverse-search", group="looking", arguments="TEXT", repeats=True)
def rsearch(session: CommandSession, text: str) -> None:
    """Search backward for TEXT from the last line listed."""
    _search(session, "rsearch", text, -1)


def _search(session: CommandSession, name: str, text: str, direction: int) -> None:
    session.searched = needs(name, text or session.searched)
    lines = session.listing().lines
    start, wanted = session.listed or session.here(), session.searched.casefold()
    for distance in range(1, len(lines) + 1):
        number = (start - 1 + direction * distance) % len(lines) + 1
        if wanted in lines[number - 1].casefold():
            _show(session, range(number, number + 1))
            return
    raise UsageError(f'no line contains "{session.searched}"')


_LINES = 7
"""Number of source lines shown."""


def list_source(session: CommandSession, file: str, line: int) -> None:
    """Print the model's source around a line, if its file is readable, and the statements from that line.

    Raises UsageError if no statement comes from the file.
    """
    known = {
        (path, number): places
        for path, lines in origins(session.target.program).items()
        if same_file(path, file)
        for number, places in lines.items()
    }
    if not known:
        files = sorted(origins(session.target.program))
        hint = (
            f"the source files are {', '.join(files[:3])}" if files else "the model holds no source positions"
        )
        raise UsageError(f"no statement comes from {file}", hint=hint)
    path = next(iter(known))[0]
    _show_file(session, path, line, {number for _, number in known})
    for _, pc_places in sorted((number, places) for (_, number), places in known.items() if number == line):
        for block, pc in pc_places:
            _show_statement(session, block, pc)


def _show_file(session: CommandSession, path: str, line: int, defining: set[int]) -> None:
    """Print the lines around `line`; `*` marks lines that produce statements."""
    program = session.target.program
    found, recorded = source_file(program, path), program.saved.sources.get(path)
    if found is None and not (recorded and recorded.lines):
        session.screen.note(f"{path} was not found; these statements come from line {line}")
        return
    if found is None:
        assert recorded is not None
        session.screen.note(f"{path} is not here as it was recorded: these are the lines that were recorded")
        lines = {int(number): text for number, text in recorded.lines.items()}
    else:
        lines = dict(enumerate(source_lines(found), 1))
    shown = [number for number in around(line, _LINES, max(lines, default=0)) if number in lines]
    width = len(str(shown[-1])) if shown else 1
    for number in shown:
        mark = "*" if number in defining else " "
        head = Text().append(mark, "bold red").append(f"{number:>{width}} ", "dim")
        style = "bold" if number == line else ""
        session.screen.put_line(head.append(printable_line(lines[number].replace("\t", "    ")), style))


def _show_statement(session: CommandSession, block: tuple[str | int, ...], pc: int) -> None:
    listing = session.target.listing
    line = listing.line(block, pc)
    for words in statement_lines(listing, session.screen, line, f"line {line}: "):
        session.screen.put_line(Text(words))
