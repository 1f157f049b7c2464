"""Counts in messages."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: int, noun: str, form: str = "") -> str:
    """Return a count with its noun, which gets an "s" unless the count is 1: ``1 step``, ``12 steps``.

    `form` is the format of the number: "," separates the thousands.
    """
    return f"{count:{form}} {noun}{'' if count == 1 else 's'}"


def elements(count: int, size: int, of: str = "") -> str:
    """Return ``3 of 12 elements of %x are``, ``1 of 12 elements is``; for a single element ``%x is``."""
    if size == 1:
        return f"{of or 'the element'} is"
    verb = "is" if count == 1 else "are"
    return f"{count} of {size} elements{f' of {of}' if of else ''} {verb}"


def listed(words: Sequence[str], most: int, without: str = "") -> str:
    """Return at most so many words, and the number of the others: ``a, b and 3 more``."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more if words else without
