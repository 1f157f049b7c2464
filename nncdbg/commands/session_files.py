"""Commands on the session itself: help, command files, recording, quit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.text import Text

from nncdbg.commands import expression_help
from nncdbg.commands.shortcuts import SHORTCUTS
from nncdbg.commands.table import GROUPS, TABLE, Command, command, find, load_extensions, needs, no_arguments
from nncdbg.engine.errors import UsageError

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession


_WIDTH = 80
"""Maximum number of columns of the overview."""


@command("source", group="session", arguments="FILE", completes=("file",))
def source(session: CommandSession, text: str) -> None:
    """Run the commands in a file; lines that begin with # are comments."""
    session.play(needs("source", text), echo=False)


@command("record", "rec", group="session", arguments="[--force] FILE | off", completes=("file",))
def record(session: CommandSession, text: str) -> None:
    """Record the typed commands in a file; `record off` stops recording.

    The file includes the model, inputs, seed, sizes, backend, allocator and versions.  `record`
    overwrites a recording only with --force or after confirmation.
    """
    from nncdbg.commands.recorded_setup import start_recording
    from nncdbg.commands.recording import close_recording

    if not text:
        state = "off" if session.recording is None else f"to {session.recording.name}"
        session.screen.put(f"recording is {state}")
        return
    force, path = text.startswith("--force "), text.removeprefix("--force ").strip()
    started = None
    if text != "off":
        started = start_recording(path, session.debugger, session.title, force=force, confirm=session.confirm)
    if session.recording is not None:
        close_recording(session.recording)
    elif started is None:
        raise UsageError("nothing is being recorded", hint="start a recording with `record FILE`")
    session.recording = started
    session.screen.put("recording is off" if started is None else f"recording to {path}")


@command("replay", group="session", arguments="FILE", completes=("file",))
def replay(session: CommandSession, text: str) -> None:
    """Run the commands of a recorded session, and show each.

    First, report differences from the recorded model, inputs, options and versions.
    """
    failed = session.replay(needs("replay", text))
    if failed:
        raise UsageError(f"{failed} of the commands in {text} failed")


@command("note", group="session", arguments="TEXT")
def note(session: CommandSession, text: str) -> None:
    """Add a note to the recording."""
    needs("note", text)


@command(
    "help",
    "h",
    "?",
    group="session",
    arguments="[COMMAND | FUNCTION | all | expressions | keys]",
    completes=("command",),
)
def help_(session: CommandSession, text: str) -> None:
    """List the commands, or explain one; `help all` also describes each."""
    for error in load_extensions():
        session.screen.note(str(error))
    if not text:
        _overview(session)
    elif text == "all":
        _all(session)
    elif text == "keys":
        for keys, line, what in SHORTCUTS:
            session.screen.put(f"  {keys:<17} {line:<10} {what}".rstrip())
    elif text == "expressions":
        for line in expression_help.overview(session.screen.layout.width):
            session.screen.put_line(Text(line))
    elif text not in TABLE and (function := expression_help.explained(text)) is not None:
        for line in function:
            session.screen.put(line)
    else:
        _explain(session, find(text))


_FOOTER = (
    "`help NAME` explains a command; `help all` lists every command.",
    "See also `help keys` and `help expressions`.  Any unambiguous prefix works.",
    "gdb, pdb and delve commands work too.  An empty line repeats the last step.",
)


def _overview(session: CommandSession) -> None:
    """Print the names of all commands by group; `help all` has a line for each."""
    width = min(session.screen.layout.width, _WIDTH)
    for group, title in GROUPS.items():
        session.screen.put(title)
        names = [" ".join((entry.name, *entry.shorts)) for entry in TABLE.values() if entry.group == group]
        for line in wrap(", ".join(names).replace(" ", "\0").replace(",\0", ", "), width - 2):
            session.screen.put(f"  {line}".replace("\0", " "))
    for paragraph in _FOOTER:
        for line in wrap(paragraph, width):
            session.screen.put(line)


def _all(session: CommandSession) -> None:
    for group, title in GROUPS.items():
        session.screen.put(title)
        for entry in TABLE.values():
            if entry.group == group:
                words = ", ".join((entry.name, *entry.shorts))
                session.screen.put(f"  {words:<15} {entry.help}")


def _explain(session: CommandSession, entry: Command) -> None:
    shorts = f"   (short: {', '.join(entry.shorts)})" if entry.shorts else ""
    session.screen.put(f"{entry.usage}{shorts}")
    session.screen.put(entry.help)
    for line in _filled(entry.details, session.screen.layout.width):
        session.screen.put(line)


def _filled(details: str, width: int) -> Iterator[str]:
    """Yield the lines of a help text: paragraphs wrapped, indented lines (examples) unchanged."""
    for example, lines in groupby(details.splitlines(), lambda line: line.startswith(" ")):
        if example:
            yield from lines
        else:
            yield from wrap(" ".join(lines), max(20, width), break_on_hyphens=False)


@command("quit", "q", "exit", group="session")
def quit_(session: CommandSession, text: str) -> None:
    """Leave."""
    no_arguments("quit", text)
    session.over = True
