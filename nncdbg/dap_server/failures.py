"""Errors in the protocol's form: a short message, and the full text in the body."""

from __future__ import annotations

from typing import Any

from nncdbg.errors import (
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
"""The first match gives the number; clients show it, and tests rely on it."""

_OTHER = 1000

SHOWN = frozenset({"launch", "attach", "restart"})
"""Requests whose failure is shown in a dialog, as it leaves no program to inspect."""


PENDING = "the program is not loaded yet"
"""Reason for an unverified breakpoint before there is a program."""

_FIRST = 3
"""Most errors of one text that are shown in a dialog."""


def failure_fields(error: NncdbgError, *, show: bool = False) -> dict[str, Any]:
    """Return the fields of a failed response.  With `show` the client shows it in a dialog."""
    number = next((number for kind, number in _NUMBERS if isinstance(error, kind)), _OTHER)
    text = str(error)
    if isinstance(error, ParseError) and len(error.errors) > _FIRST:
        # A dialog does not scroll, and editors mark all errors.
        more = len(error.errors) - _FIRST
        text = "\n".join([error.message, *map(str, error.errors[:_FIRST]), f"and {more} more"])
    # `{...}` in a format is a variable, so the text itself is passed as one.
    body = {"id": number, "format": "{text}", "variables": {"text": text}, "showUser": show}
    return {"message": reason(error), "body": {"error": body}}


def reason(error: NncdbgError) -> str:
    """Return the reason for a failed verification in one line: the error and its hint."""
    return f"{error.message} ({error.hint})" if error.hint else error.message
