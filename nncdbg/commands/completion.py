"""Completion at the cursor: commands, values, ops, graphs, marks, file names.

Plain functions of a session; `prompt` adapts them to prompt_toolkit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from nncdbg import extensions
from nncdbg.commands.command_lines import split_command
from nncdbg.commands.table import TABLE, find
from nncdbg.errors import UsageError
from nncdbg.escaping import HOSTILE
from nncdbg.expression import spelled
from nncdbg.target.stops import CATCHES
from nncdbg.text.lexemes import name_text
from nncdbg.text.places import place_text

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession

_WORD = re.compile(r'[%@]?"(?:[^"\\]|\\.)*$|[%@$]?[\w/.$:-]*$')
"""Matches the word before the cursor: a sigil and name characters, or an unclosed quoted name."""

_OPTION = re.compile(r"\s(--\w+)[ =]\s*\w*$")
"""Matches an option before the value at the cursor."""

_PATH = re.compile(r"\S*$")

_EXPRESSION = ("value", "function")

_PART = 2
"""Minimum length of a word that completes to names that contain it."""


def candidates(session: CommandSession, line: str) -> tuple[str, list[str]]:
    """Return the last word of `line` and its completions: by prefix, else names that contain it.

    `line` is the text before the cursor.
    """
    head = re.match(r"\s*([\w?]*)$", line)
    if head is not None:
        names = [*_commands(session), *(_functions(session, head[1]) if head[1] else ())]
        return head[1], _matching(head[1], names)
    name, _ = split_command(line.lstrip())
    try:
        kinds = find(name).completes
    except UsageError:
        if not _begins_expression(session, name, line.lstrip()):
            return "", []
        kinds = _EXPRESSION
    option = _OPTION.search(line)
    if option is not None and option[1] in kinds and option[1] in _SOURCES:
        kinds = (option[1],)
    word = _ending(_PATH if "file" in kinds and "value" not in kinds else _WORD, line)
    if "file" in kinds and (kinds == ("file",) or not word.startswith("%")):
        word = _ending(_PATH, line)
    names = [
        name
        for kind in kinds
        for name in ([kind] if kind.startswith("--") and kinds != (kind,) else _SOURCES[kind](session, word))
    ]
    return word, _matching(word, names) or _containing(session, word, kinds)


def _begins_expression(session: CommandSession, word: str, line: str) -> bool:
    """Return True if a line that starts with the non-command `word` can become an expression."""
    return not word[:1].isalpha() or line[len(word) :][:1] == "(" or session.target.scope().has(word)


def _ending(pattern: re.Pattern[str], line: str) -> str:
    match = pattern.search(line)
    return match.group() if match else ""


def _matching(word: str, names: Iterable[str]) -> list[str]:
    """Return the names that start with the word, with or without their sigil and quotes.

    Names with control characters are omitted: escaped, they would not match any value.
    """
    found = {name for name in names if name.startswith(word) or name.lstrip('%@"').startswith(word)}
    return sorted(name for name in found if not HOSTILE.search(name))


def _containing(session: CommandSession, word: str, kinds: Iterable[str]) -> list[str]:
    """Return values, graphs and nodes with names that contain the word, values in scope first."""
    part = word.lstrip('%@"')
    if len(part) < _PART or word.startswith("$"):
        return []
    spell: dict[str, Callable[[str], str]] = {"value": session.screen.names.spelled, "node": name_text}
    spell["graph"] = partial(place_text, "graph")
    wanted = {"%": "value", "@": "graph"}.get(word[:1])
    return [
        spell[kind](name)
        for kind in kinds
        if kind in spell and wanted in (None, kind)
        for name in _names(session, kind)
        if part in name and not HOSTILE.search(name)
    ]


def _names(session: CommandSession, kind: str) -> Iterable[str]:
    return session.target.place_names(kind)


def _commands(session: CommandSession) -> list[str]:
    return list(dict.fromkeys((*TABLE, *extensions.names(extensions.COMMANDS))))


def _values(session: CommandSession, word: str) -> list[str]:
    return [spelled(name) for name in _names(session, "value")]


def _ops(session: CommandSession, word: str) -> list[str]:
    named = _names(session, "op")
    return [name for name in named if name[:1].isupper() or (name[:1] != "@" and "." in name)]


def _graphs(session: CommandSession, word: str) -> list[str]:
    return [place_text("graph", name) for name in _names(session, "graph")]


def _nodes(session: CommandSession, word: str) -> list[str]:
    return [name_text(name) for name in _names(session, "node")]


def _functions(session: CommandSession, word: str) -> list[str]:
    from nncdbg.expression.functions import FUNCTIONS

    return [f"{name}(" for name in FUNCTIONS] + [f"${name}" for name in session.target.scope().variables()]


def _files(session: CommandSession, word: str) -> list[str]:
    folder, _ = os.path.split(word)
    try:
        entries = list(os.scandir(os.path.expanduser(folder) or "."))
    except OSError:
        return []
    hidden = os.path.basename(word).startswith(".")
    return [
        os.path.join(folder, entry.name) + ("/" if entry.is_dir() else "")
        for entry in entries
        if hidden or not entry.name.startswith(".")
    ]


def _catches(session: CommandSession, word: str) -> list[str]:
    return list(CATCHES)


def _topics(session: CommandSession, word: str) -> list[str]:
    from nncdbg.commands.states import TOPICS

    return [*TOPICS, *(_values(session, word) if word.startswith("%") else ())]


def _columns(session: CommandSession, word: str) -> list[str]:
    from nncdbg.commands.value_table import COLUMNS

    return list(COLUMNS)


_SOURCES: dict[str, Callable[[CommandSession, str], list[str]]] = {
    "value": _values,
    "op": _ops,
    "graph": _graphs,
    "node": _nodes,
    "function": _functions,
    "file": _files,
    "mark": lambda session, word: list(session.target.marks),
    "branch": lambda session, word: [str(number) for number in session.target.branches],
    "breakpoint": lambda session, word: [str(point.number) for point in session.stops.points()],
    "display": lambda session, word: [str(number) for number in session.displays],
    "command": lambda session, word: [*_commands(session), "expressions", "keys"],
    "catch": _catches,
    "info": _topics,
    "line": lambda session, word: [],
    "--sort": _columns,
}
"""Maps the kind of a word to its current names."""
