"""Text and HTML of records.  `nncdbg/__init__.py` registers the functions, so records import no printer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

Form: TypeAlias = Literal["program", "program summary", "diff report", "html"]

_FUNCTIONS: dict[Form, Callable[[Any], str]] = {}


def represent_by(form: Form, function: Callable[[Any], str]) -> None:
    """Register the function that returns this form of a record."""
    _FUNCTIONS[form] = function


def representation(form: Form, record: object) -> str:
    """Return this form of a record."""
    return _FUNCTIONS[form](record)


class RichOutput:
    """An object that renders as HTML in a notebook."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return representation("html", self)
