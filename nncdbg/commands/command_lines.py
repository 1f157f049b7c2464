"""Parsing of command lines: the command word, its arguments, and detection of expressions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nncdbg.commands.table import find
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.process.files import read_regular

if TYPE_CHECKING:
    from nncdbg.target.target import Scope, Target

_OPERATOR = re.compile(r"(?:[<>*/+@,]|==|!=|%\s)\s*\S|-\s|(?:and|or)\s")
"""Marks a line that starts with a value name as an expression, even if a command has that name."""


_WITH_FORMAT = re.compile(r"(p|print)/[a-z] ")
"""A command such as `p/x %i`, also where `%p` is a value."""


def split_command(text: str) -> tuple[str, str]:
    """Return the first word, which may touch a sigil (`p%x`), and the rest; `!` is a word."""
    end = int(text.startswith("!"))
    while not text.startswith("!") and end < len(text) and (text[end].isalnum() or text[end] in "_-?"):
        end += 1
    if end == 0:
        end = len(text.split(maxsplit=1)[0])
    return text[:end], text[end:].strip()


def separated(text: str) -> list[str]:
    """Split a list at its commas, except those in brackets and quotes."""
    parts, depth, quoted, start = [], 0, False, 0
    for place, sign in enumerate(text):
        if sign == '"' and text[place - 1 : place] != "\\":
            quoted = not quoted
        elif not quoted and sign in "([{":
            depth += 1
        elif not quoted and sign in ")]}":
            depth -= 1
        elif sign == "," and not quoted and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [part.strip() for part in (*parts, text[start:])]


def read_commands(path: str) -> list[str]:
    """Return the lines of a command file. Raises UsageError if it cannot be read."""
    try:
        return read_regular(path).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read the commands in {path}: {reason}") from None


def _names_graph(target: Target, rest: str) -> bool:
    """Return True for `@layer` if it is a graph: `list @layer` is a command even with a value %list."""
    name = rest[1:].partition('"')[2].partition('"')[0] if rest[1:2] == '"' else rest[1:].partition(" ")[0]
    return rest.startswith("@") and name in target.lowered.graphs


def _is_name(scope: Scope, word: str) -> bool:
    """Return True for the name of a value in the program or in the user's source."""
    return scope.has(word) or word in scope.aliases()


def is_expression(target: Target, text: str) -> bool:
    """Return True if a line is an expression.

    Expressions start with a word that is not a command, or with a function or value that shares its name
    with a command, as in `stats(%h).nan` and `h.mean()`.
    """
    from nncdbg.expression.functions import PREFIXES, function_name

    if _WITH_FORMAT.match(text):
        return False
    scope = target.scope()
    word, rest = split_command(text)
    follows = text[len(word) : len(word) + 1]
    if follows == "(" and function_name(word) or follows in ("[", ".") and _is_name(scope, word):
        return True
    if follows == "." and word in PREFIXES:
        return True
    if word and _OPERATOR.match(rest) and _is_name(scope, word) and not _names_graph(target, rest):
        return True
    try:
        find(word)
    except UsageError:
        if follows == "(" or not word[:1].isalpha() or (scope.has(word) and not rest):
            return True
    else:
        return False
    try:
        scope.read(text)
    except NncdbgError:
        return False
    return True
