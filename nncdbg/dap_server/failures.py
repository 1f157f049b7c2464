"""An error as the protocol tells it: a short message, and the whole of it in the body."""

from __future__ import annotations

from typing import Any

from nncdbg.engine.errors import (
    ExpressionError,
    GraphError,
    InputError,
    LoadError,
    NncdbgError,
    NotComputed,
    ParseError,
    RunError,
    UsageError,
)

_NUMBERS: tuple[tuple[type[NncdbgError], int], ...] = (
    (ExpressionError, 2001),
    (NotComputed, 2002),
    (InputError, 2003),
    (UsageError, 2000),
    (LoadError, 3000),
    (GraphError, 3001),
    (RunError, 4000),
)
"""The first that fits gives the number; clients show it, and tests rely on it."""

_OTHER = 1000

SHOWN = frozenset({"launch", "attach", "restart"})
"""Requests whose failure leaves nothing to look at, so that a person is told of it in a dialog."""


PENDING = "the program is not loaded yet"
"""Why a breakpoint is not verified before there is a program."""

_FIRST = 3
"""Errors of one text that a dialog has room for."""


def told(error: NncdbgError, *, show: bool = False) -> dict[str, Any]:
    """The fields of a failed response.  With `show` the client is asked to show it in a dialog."""
    number = next((number for kind, number in _NUMBERS if isinstance(error, kind)), _OTHER)
    # `{...}` in a format names a variable, so the text itself goes in as one.
    body = {"id": number, "format": "{text}", "variables": {"text": _words(error)}, "showUser": show}
    return {"message": reason(error), "body": {"error": body}}


def reason(error: NncdbgError) -> str:
    """Return why something is not verified, in a line: what is wrong, and what to do."""
    return f"{error.message} ({error.hint})" if error.hint else error.message


def _words(error: NncdbgError) -> str:
    """Of a text with many errors only the first: a dialog does not scroll, and editors mark all of them."""
    if not isinstance(error, ParseError) or len(error.errors) <= _FIRST:
        return str(error)
    more = len(error.errors) - _FIRST
    return "\n".join([error.message, *map(str, error.errors[:_FIRST]), f"and {more} more"])
