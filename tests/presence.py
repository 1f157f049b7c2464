"""A value of a test that must be there."""

from __future__ import annotations

from typing import TypeVar

_Value = TypeVar("_Value")


def present(value: _Value | None) -> _Value:
    """Return the value; fail the test if it is None."""
    assert value is not None
    return value
