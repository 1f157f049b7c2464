"""The one table of commands.  Dispatch, help, completion and docs/COMMANDS.md are read from it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from nncdbg.engine.errors import UsageError

if TYPE_CHECKING:
    from nncdbg.terminal.session import Session

Run: TypeAlias = "Callable[[Session, str], None]"

GROUPS = {
    "moving": "Forward and back",
    "stopping": "Where to stop",
    "looking": "Looking",
    "changing": "Changing values, branches, marks",
    "session": "Session",
}
"""Group to title, in the order of the help."""


@dataclass(frozen=True, slots=True)
class Command:
    """`run(session, argument text)` does it.

    `help` is one line, `details` what `help NAME` adds.  `repeats`: an empty line does it again.
    `completes` are the kinds of words (see `completion`) that can stand in its arguments.
    """

    name: str
    shorts: tuple[str, ...]
    arguments: str
    group: str
    help: str
    details: str
    repeats: bool
    completes: tuple[str, ...]
    run: Run

    @property
    def usage(self) -> str:
        """`break PLACE [if EXPR]`."""
        return f"{self.name} {self.arguments}".rstrip()


TABLE: dict[str, Command] = {}
"""By full name, in the order of declaration."""

_SHORTS: dict[str, Command] = {}


def command(
    name: str,
    *shorts: str,
    group: str,
    arguments: str = "",
    repeats: bool = False,
    completes: tuple[str, ...] = (),
) -> Callable[[Run], Run]:
    """Enter the decorated function into the table; its docstring is the help, first line by itself."""

    def enter(run: Run) -> Run:
        first, _, rest = inspect.cleandoc(run.__doc__ or "").partition("\n")
        assert first
        assert group in GROUPS
        entry = Command(name, shorts, arguments, group, first, rest.strip(), repeats, completes, run)
        for word in (name, *shorts):
            assert word not in TABLE, f"{word} is a command already"
            assert word not in _SHORTS, f"{word} is a short form already"
        TABLE[name] = entry
        _SHORTS.update(dict.fromkeys(shorts, entry))
        return run

    return enter


def find(word: str) -> Command:
    """The command that `word` is, is short for, or is an unambiguous beginning of; else UsageError."""
    exact = TABLE.get(word) or _SHORTS.get(word)
    if exact is not None:
        return exact
    matches = [entry for name, entry in TABLE.items() if name.startswith(word)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = ", ".join(entry.name for entry in matches)
        raise UsageError(f'"{word}" is the beginning of several commands', hint=f"one of: {names}")
    near = difflib.get_close_matches(word, TABLE, 1)
    hint = f"did you mean `{near[0]}`?" if near else "`help` lists the commands"
    raise UsageError(f'there is no command "{word}"', hint=hint)


def no_arguments(name: str, text: str) -> None:
    """UsageError if something stands behind a command that takes nothing."""
    if text:
        raise UsageError(f'`{name}` takes no arguments, got "{text}"', hint=f"`help {name}` says more")


def needs(name: str, text: str) -> str:
    """The arguments of a command that cannot do without; UsageError if there are none."""
    if not text:
        raise UsageError(f"`{name}` needs arguments: {TABLE[name].usage}", hint=f"`help {name}` says more")
    return text


def whole_number(name: str, text: str) -> int:
    """The number that a command is given; UsageError for anything else."""
    try:
        return int(text)
    except ValueError:
        raise UsageError(f'`{name}` needs a number, got "{text}"', hint=TABLE[name].usage) from None
