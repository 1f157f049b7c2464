"""The table of commands, used by dispatch, help, completion and docs/COMMANDS.md."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from nncdbg import extensions
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.text.lexemes import integer_of

Run: TypeAlias = Callable[[Any, str], None]
"""``run(session, arguments)``: `session` is a CommandSession."""

Varies: TypeAlias = bool | Callable[[Any, str], bool]
"""Whether the output varies between equal sessions; for some commands by ``varies(session, arguments)``."""

GROUPS = {
    "moving": "Run and step",
    "stopping": "Breakpoints",
    "looking": "Program and values",
    "changing": "Edits, marks, branches",
    "session": "Session",
}
"""Maps groups to titles, in the order of the help."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the prompt; `run(session, argument text)` executes it.

    `help` is one line; `help NAME` adds `details`. `repeats`: an empty line repeats the command.
    `completes` are the kinds of words (see `completion`) that complete its arguments.  `varies`: the output
    depends on time, the machine or the path of a file, or is a stop, so that a replay does not compare it.
    """

    name: str
    shorts: tuple[str, ...]
    arguments: str
    group: str
    help: str
    details: str
    repeats: bool
    completes: tuple[str, ...]
    varies: Varies
    run: Run

    def compares(self, session: Any, arguments: str) -> bool:
        """Return whether a replay compares the output with the recorded one."""
        if self.group not in _COMPARED:
            return False
        return not (self.varies(session, arguments) if callable(self.varies) else self.varies)

    @property
    def pages(self) -> bool:
        """Return True if its output may be shown in a pager: the command only prints."""
        return self.group == "looking" or self.name == "help"

    @property
    def usage(self) -> str:
        """Return the usage, such as `break PLACE [if EXPR]`."""
        return f"{self.name} {self.arguments}".rstrip()


_COMPARED = ("stopping", "looking", "changing")
"""Groups whose output is a result; moves print stops, which are compared as such."""

PLACE = ("op", "graph", "value", "node")
"""The kinds of names that complete a place of `break`."""

TABLE: dict[str, Command] = {}
"""Commands by full name, in the order of declaration."""

_SHORTS: dict[str, Command] = {}


def command(
    name: str,
    *shorts: str,
    group: str,
    arguments: str = "",
    repeats: bool = False,
    completes: tuple[str, ...] = (),
    varies: Varies = False,
) -> Callable[[Run], Run]:
    """Add the decorated function to the table; its docstring is the help: one line, then details."""

    def enter(run: Run) -> Run:
        first, _, rest = inspect.cleandoc(run.__doc__ or "").partition("\n")
        assert first
        assert group in GROUPS
        details = rest.strip("\n")
        entry = Command(name, shorts, arguments, group, first, details, repeats, completes, varies, run)
        for word in (name, *shorts):
            assert word not in TABLE, f"{word} is a command already"
            assert word not in _SHORTS, f"{word} is a short form already"
        TABLE[name] = entry
        _SHORTS.update(dict.fromkeys(shorts, entry))
        return run

    return enter


def find(word: str) -> Command:
    """Return the command with this name, short form, unambiguous prefix or alias.

    Raises UsageError for other words, with the command to use instead as the hint.
    """
    return resolve(word, "")[0]


def resolve(word: str, arguments: str) -> tuple[Command, str]:
    """Return the command of a line and its arguments, with aliases of other debuggers expanded.

    Raises UsageError if `word` is not a command, with the command to use instead as the hint.
    """
    from nncdbg.commands.familiar import ALIASES, ANSWERS

    exact = TABLE.get(word) or _SHORTS.get(word)
    if exact is not None:
        return exact, arguments
    if word in ALIASES:
        name, _, first = ALIASES[word].partition(" ")
        return TABLE[name], f"{first} {arguments}".strip()
    if word in ANSWERS:
        raise UsageError(f"`{word}`: {ANSWERS[word].why}", hint=ANSWERS[word].hint)
    matches = [entry for name, entry in TABLE.items() if name.startswith(word)]
    # `nex` is `next`, as `nexti` is the same move by statements.
    by_line = {entry.name for entry in matches}
    matches = [entry for entry in matches if entry.name.removesuffix("i") not in by_line - {entry.name}]
    if len(matches) == 1:
        return matches[0], arguments
    if matches:
        names = ", ".join(entry.name for entry in matches)
        raise UsageError(f'"{word}" is a prefix of several commands', hint=f"use one of: {names}")
    if extensions.find(extensions.COMMANDS, word) is not None:
        return TABLE[word], arguments
    raise UsageError(f'there is no command "{word}"', hint=_suggestion(word, arguments))


def load_extensions() -> Iterator[NncdbgError]:
    """Add the commands of installed packages to the table; yield the errors of those that fail."""
    for name in extensions.names(extensions.COMMANDS):
        try:
            extensions.find(extensions.COMMANDS, name)
        except NncdbgError as error:
            yield error


def _suggestion(word: str, arguments: str) -> str:
    """Suggest a shell command, a command, or an expression."""
    from nncdbg.commands.familiar import ALIASES

    names = [*TABLE, *ALIASES]
    swapped = [name for name in names if sorted(name) == sorted(word)]
    near = swapped or difflib.get_close_matches(word, names, 1)
    if near:
        return f"did you mean `{near[0]}`?"
    if arguments[:1] in tuple("<>=!+*/"):
        return f"an expression names values with %: `p %{word} {arguments}`"
    return "`help` lists the commands"


def no_arguments(name: str, text: str) -> None:
    """Raise UsageError if a command without arguments is given some."""
    if text:
        raise UsageError(f'`{name}` takes no arguments, got "{text}"', hint=f"`help {name}` explains it")


def needs(name: str, text: str) -> str:
    """Return the arguments of a command that requires some. Raises UsageError if there are none."""
    if not text:
        raise UsageError(f"`{name}` needs arguments: {TABLE[name].usage}", hint=f"`help {name}` explains it")
    return text


def breakpoint_number(known: Sequence[int], name: str, text: str) -> int:
    """Parse the number of a breakpoint; `$bpnum` is the latest of the `known` ones, as in gdb."""
    return known[-1] if text == "$bpnum" and known else whole_number(name, text)


def whole_number(name: str, text: str) -> int:
    """Parse the numeric argument of a command. Raises UsageError for anything else."""
    number = integer_of(text)
    if number is None:
        raise UsageError(f'`{name}` needs a number, got "{text}"', hint=TABLE[name].usage)
    return number
