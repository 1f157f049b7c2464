"""Source lines of the user's model that produce statements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from nncdbg.engine.compilation.search import origins, same_file
from nncdbg.engine.errors import UsageError
from nncdbg.engine.escaping import printable_line
from nncdbg.presentation.listing_window import around
from nncdbg.presentation.stops import statement_lines

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession

_LINES = 7
"""Number of source lines shown."""


def list_source(session: CommandSession, file: str, line: int) -> None:
    """Print the model's source around a line, if its file is readable, and the statements from that line.

    Raises UsageError if no statement comes from the file.
    """
    known = {
        (path, number): places
        for path, lines in origins(session.debugger.program).items()
        if same_file(path, file)
        for number, places in lines.items()
    }
    if not known:
        files = sorted(origins(session.debugger.program))
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
    found = _find(session, path)
    if found is None:
        session.screen.note(f"{path} was not found; these statements come from line {line}")
        return
    lines = found.read_text(encoding="utf-8", errors="replace").splitlines()
    shown = [number for number in around(line, _LINES, len(lines)) if number <= len(lines)]
    width = len(str(shown[-1])) if shown else 1
    for number in shown:
        mark = "*" if number in defining else " "
        head = Text().append(mark, "bold red").append(f"{number:>{width}} ", "dim")
        style = "bold" if number == line else ""
        session.screen.put_line(head.append(printable_line(lines[number - 1].replace("\t", "    ")), style))


def _find(session: CommandSession, path: str) -> Path | None:
    """Return the path as given in the model, or beside the model file."""
    source = session.debugger.program.source
    beside = Path(source).parent if source else Path()
    return next((each for each in (Path(path), beside / path) if each.is_file()), None)


def _show_statement(session: CommandSession, block: tuple[str | int, ...], pc: int) -> None:
    debugger = session.debugger
    line = debugger.loaded.listing.line(block, pc)
    code = debugger.control.stack[0].code
    for words in statement_lines(debugger, session.screen, code, line, f"line {line}: "):
        session.screen.put_line(Text(words))
