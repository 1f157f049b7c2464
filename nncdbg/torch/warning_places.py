"""Let a Python warning name the line of the user, not that of a function that passes the call on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import CodeType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_SKIPPED = " (importlib _bootstrap)"
"""Python skips frames with these two words in the name of their file when it counts `stacklevel`."""


def warning_at_caller(function: Function) -> Function:
    """Mark a function that only passes a call on: a warning with a `stacklevel` does not count its frame.

    The place of a warning also decides if the warning is shown again, so it cannot be corrected afterwards.
    """
    changed: Any = function
    changed.__code__ = _without_place(changed.__code__)
    return function


@cache
def _without_place(code: CodeType) -> CodeType:
    """Return code whose file Python skips; one object for each code, as callers keep it by identity."""
    return code.replace(co_filename=code.co_filename + _SKIPPED)
