"""Commands on the session itself: help, command files, recording, quit."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.text import Text

from nncdbg.commands.shortcuts import SHORTCUTS
from nncdbg.commands.table import GROUPS, TABLE, Command, command, find, load_extensions, needs, no_arguments
from nncdbg.errors import UsageError
from nncdbg.expression.functions import FUNCTIONS, function_name
from nncdbg.expression.functions import GROUPS as FUNCTION_GROUPS

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession


_WIDTH = 80
"""Maximum number of columns of the overview."""


SYNTAX: tuple[tuple[str, str], ...] = (
    ("%h", "a value; the name h without % also works"),
    ('%"odd name"', "a value with other characters in its name"),
    ("%h[0, 2:5]  %h[..., None]", "indices, slices and new axes, as in NumPy"),
    ("%h[%h > 0]", "the elements where a mask is true"),
    ("+ - * / // **", "arithmetic; mod(a, b) is the remainder"),
    ("%a @ %b", "the matrix product"),
    ("< <= == != > >=", "comparison; you can chain: 0 < %h < 1"),
    ("and or not", "logic with single truth values"),
    ("& | ^ ~", "bitwise logic on tensors of integers or bools"),
    ("a if c else b", "a if c is true, otherwise b"),
    ("[1, 2]  true  inf  nan  None", "literals; a list is a tensor"),
    ("mean(%h)  %h.mean(axis=0)", "a function call, also as a method"),
    ("%h.shape  %h.T", "attributes: shape dtype size ndim nbytes T"),
    ("np.abs(%h)  max(%h, dim=1)", "names from NumPy and PyTorch also work"),
    ("$out $out1  $in0 $in1", "results and operands of the current statement"),
    ("$iter $op $line", "iteration, op and line of the current statement"),
    ("$step $epoch", "step and epoch of the training, from 0"),
    ("$stream", "stream of the current statement in a schedule; -1 is the host"),
    ("$x = EXPR", "define the name $x, for later expressions"),
    ("$_", "the last printed value"),
)
"""Syntax forms and their meanings."""


def _expression_overview(width: int) -> Iterator[str]:
    """Yield the lines of `help expressions`, at most `width` characters each."""
    for example, meaning in SYNTAX:
        yield f"  {example:<29} {meaning}"
    yield "Functions (`help NAME` explains one):"
    for title, group in FUNCTION_GROUPS.items():
        words = f"{title}: {' '.join(group)}"
        yield from wrap(words, max(20, width), initial_indent="  ", subsequent_indent="    ")


def _function_help(word: str) -> list[str] | None:
    """Return the help of one function; None for other words."""
    name = function_name(word)
    if name is None:
        return None
    function = FUNCTIONS[name]
    lines = [function.usage(name), f"Return {function.help}."]
    if function.torch:
        lines.append(f"{function.torch}.")
    return lines


@command("source", group="session", arguments="FILE", completes=("file",))
def source(session: CommandSession, text: str) -> None:
    """Run the commands in a file, and print each, after `+`, before its output.

    Lines that begin with # are comments.  With `set trace-commands off`, print only the output.
    """
    session.play(needs("source", text))


@command("record", "rec", group="session", arguments="[--force] FILE | off", completes=("file",))
def record(session: CommandSession, text: str) -> None:
    """Record the session in a file, for `replay`; `record off` stops recording.

    The file has the program, inputs, seed, sizes, options and versions, then the commands of the session
    with their stops, results, errors and notes.  Commands before `record` are included, without their stops.
    `record` overwrites a recording only with --force or after confirmation.
    """
    from nncdbg.commands.recording.setup import setup_of, setup_of_script

    recorder = session.recorder
    if not text:
        session.screen.put(
            "recording is off" if recorder.path is None else f"recording is to {recorder.path}"
        )
        return
    force, path = text.startswith("--force "), text.removeprefix("--force ").strip()
    if text != "off":
        opened = session.configuration
        program = session.title if opened is None else opened.program
        if session.script is not None:
            setup = setup_of_script(session.script)
        else:
            setup = setup_of(session.target, program, opened)
        recorder.start(path, setup, session.target, force=force, confirm=session.confirm)
        if session.script is not None:
            # The script may end at any point.
            atexit.register(recorder.stop)
        session.screen.put(f"recording to {path}")
        return
    if recorder.path is None:
        raise UsageError("nothing is being recorded", hint="start a recording with `record FILE`")
    recorder.stop()
    session.screen.put("recording is off")


@command("replay", group="session", arguments="FILE", completes=("file",))
def replay(session: CommandSession, text: str) -> None:
    """Replay a recorded session, and report the first stop or result that differs.

    First, report differences from the recorded program, inputs, options and versions.  A stop is the same if
    its reason, statement, frames, iterations and branch are the same, and all bits of the values there.  A
    result, such as that of `print`, is the same if its text is the same.
    `nncdbg replay FILE` also opens the program, with the recorded inputs and options.
    In a file of commands, there is nothing to compare: run the commands, and show each.
    """
    from nncdbg.commands.recording.entries import is_recording

    path = needs("replay", text)

    def run() -> None:
        if not session.replay(path, sourced=True):
            differs = "differs from the recording" if is_recording(path) else "has failed commands"
            raise UsageError(f"the replay of {path} {differs}")

    session.perform(run)


@command("note", group="session", arguments="TEXT")
def note(session: CommandSession, text: str) -> None:
    """Add a note to the recording; `replay` shows it."""
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
    """List the commands, or explain one; `help all` also describes each.

    `help about WORD` lists the commands whose help contains the word.
    """
    for error in load_extensions():
        session.screen.note(str(error))
    if not text:
        _overview(session)
    elif text == "all":
        _all(session)
    elif text.startswith("about "):
        _about(session, text.removeprefix("about ").strip().lower())
    elif text == "keys":
        for keys, line, what in SHORTCUTS:
            session.screen.put(f"  {keys:<17} {line:<10} {what}".rstrip())
    elif text == "expressions":
        for line in _expression_overview(session.screen.layout.width):
            session.screen.put_line(Text(line))
    elif text not in TABLE and (function := _function_help(text)) is not None:
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


def _about(session: CommandSession, word: str) -> None:
    found = [each for each in TABLE.values() if word in f"{each.usage} {each.help} {each.details}".lower()]
    for entry in found:
        session.screen.put(f"{entry.name:<12} {entry.help}")
    if not found:
        session.screen.put(f'no command is about "{word}"')


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
