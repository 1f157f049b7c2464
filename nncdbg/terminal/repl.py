"""The prompt: a session from the options of the command line, and the loop that reads lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

from nncdbg.commands.recording.entries import is_recording, read_recording
from nncdbg.commands.session import CommandSession
from nncdbg.errors import LoadError, UsageError
from nncdbg.opening.command_line import configuration_of
from nncdbg.opening.programs import open_program
from nncdbg.presentation.run_progress import print_notes
from nncdbg.presentation.screen import Screen
from nncdbg.process.collector import collector_paused
from nncdbg.process.files import read_regular
from nncdbg.target.breakpoint_syntax import parse_stop
from nncdbg.target.opened import OpenedTarget
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    import argparse

    from nncdbg.opening.configuration import RunConfiguration


def start(options: argparse.Namespace) -> int:
    """Open the model, stop on entry, and read commands until the input ends; return the exit code."""
    screen = Screen()
    _check_files(options)
    for text in options.breaks:
        parse_stop(text)
    configuration = configuration_of(options)
    writes = not options.replay or bool({"journal", "fork", "resume"} & configuration.given)
    if options.replay and is_recording(options.replay):
        setup = read_recording(options.replay).setup
        if "op_libraries" not in configuration.given:
            setup.check_python(allowed=options.allow_python)
        configuration = configuration.completed(setup.supplied(options.model))
    target, session = open_session(configuration, options.model, screen)

    def begin() -> None:
        for text in options.breaks:
            session.recorder.command(f"break {text}", results=False)
            session.stops.add(text)
        _banner(session)

    # A replay does not repeat the journal of the recorded session.
    with target.journaled() if writes else nullcontext() as session.journal:
        code = converse(session, options, begin)
    if session.journal is None:
        return code
    if session.journal.problem is None:
        screen.note(f"wrote {session.journal}")
        return code
    screen.complain(session.journal.problem)
    return max(code, session.journal.problem.exit_code)


def open_session(
    configuration: RunConfiguration, title: str, screen: Screen
) -> tuple[OpenedTarget, CommandSession]:
    """Return the program of a configuration as a target, and a session on it.

    The session is on entry, at the finding of a bundle or at a step of a journal.
    """
    target = _open(configuration, screen)
    session = CommandSession(target, title, screen)
    session.configuration = configuration
    return target, session


@collector_paused(freeze=True)
def _open(configuration: RunConfiguration, screen: Screen) -> OpenedTarget:
    opened = open_program(configuration)
    target = OpenedTarget(opened)
    if opened.folder is not None:
        screen.put(opened.folder.sentence() + ("; `next` shows it" if opened.folder.at_finding else ""))
    return target


def converse(session: CommandSession, options: argparse.Namespace, greet: Callable[[], None]) -> int:
    """Record as the options of `add_prompt` say, greet, and read commands until the input ends."""
    _check_files(options)
    if sys.stdin.isatty():
        session.confirm = confirmed
    if options.record:
        from nncdbg.commands.recording.setup import setup_of

        setup = setup_of(session.target, session.title, session.configuration)
        session.recorder.start(
            options.record, setup, session.target, force=options.force, confirm=session.confirm
        )
    session.trusts_recordings = options.allow_python
    try:
        greet()
        return _read(session, options)
    finally:
        session.recorder.stop()


def confirmed(question: str) -> bool:
    """Prompt for yes or no at the terminal; anything but yes is no."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _check_files(options: argparse.Namespace) -> None:
    """Raise an error for unreadable command files before anything runs."""
    files = [text for is_file, text in options.source if is_file]
    for path in [*files, *([options.replay] if options.replay else [])]:
        try:
            read_regular(path, 0)
        except OSError as error:
            raise LoadError(f"cannot read the commands in {path}: {error.strerror}") from None


def _banner(session: CommandSession) -> None:
    from nncdbg.ir.walk import blocks

    target = session.target
    graphs = target.program.graphs
    count = sum(len(graph.nodes) for _, graph in blocks(target.program))
    kinds = f"{counted(count, 'statement')} in {counted(len(graphs), 'graph')}"
    session.screen.put(f"{session.title}: {kinds}; `help` lists the commands")
    print_notes(target.setup.notes, session.screen)
    session.arrived(target.stop)


def _read(session: CommandSession, options: argparse.Namespace) -> int:
    for is_file, text in options.source:
        if not session.over:
            line = f"source {text}" if is_file else text
            session.echo(line)
            session.execute(line, typed=True)
    if options.replay:
        failed = replayed(session, options.replay)
        return failed if is_recording(options.replay) else failed or session.exit_code
    return session.exit_code if session.over else read_typed(session)


def read_typed(session: CommandSession) -> int:
    """Read commands from standard input until it ends; return the exit code."""
    read_lines(session)
    return 0 if sys.stdin.isatty() else session.exit_code


def read_lines(session: CommandSession, *, plain: bool = False) -> None:
    """Read commands until the end of input; without line editing if `plain`."""
    if not sys.stdin.isatty():
        _read_piped(session)
    elif session.screen.is_terminal and not session.screen.out.is_dumb_terminal and not plain:
        from nncdbg.terminal.prompt import read_prompt

        read_prompt(session)
    else:
        _ask_for_lines(session)


def replayed(session: CommandSession, path: str, count: int | None = None) -> int:
    """Replay a recording, or its first `count` commands, as `CommandSession.replay`; return 0 or 1."""
    try:
        return int(not session.replay(path, count=count))
    except UsageError as error:
        session.screen.complain(error)
        return 1


def _read_piped(session: CommandSession) -> None:
    """Execute the lines of a pipe or file, and print each before its output."""
    while not session.over and (line := sys.stdin.readline()):
        session.echo(line)
        session.execute(line, typed=True)
        sys.stdout.flush()
    session.end_of_lines()


def _ask_for_lines(session: CommandSession) -> None:
    """Read lines at a terminal without cursor movement, or with redirected output."""
    while not session.over:
        print(session.prompt, end="", file=sys.stderr, flush=True)
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            print(file=sys.stderr)
            session.give_up_lines()
            continue
        if not line:
            session.end_of_lines()
            return
        session.execute(line, typed=True)
        sys.stdout.flush()
