"""Limits on the size of reports, and escaping of names.

A model can hold a name of a megabyte, a control character, or a bidirectional override; none of these
makes a report grow or changes how it is displayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TypeVar

from nncdbg.engine.escaping import printable_line

T = TypeVar("T")

NAME = 200
"""Most characters of a name, or of a path."""
SENTENCE = 2_000
"""Most characters of an evidence, a hint, or an error."""
STATEMENT = 400
"""Most characters of a statement of the program."""
OPERANDS = 16
"""Most operands listed for a statement."""
FINDINGS = 1_000
"""Most findings in a machine-readable report; a watch lists far fewer by default."""
NOTES = 50
"""Most notes, and most unchecked things."""


def visible(text: str, most: int = NAME) -> str:
    """Return one line of at most `most` characters without invisible or bidirectional control characters.

    A longer text is cut in the middle: names of layers differ at either end.
    """
    if len(text) > most:
        head = (most - 1) * 2 // 3
        text = f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"
    return printable_line(text)


def sentence(text: str) -> str:
    """Return evidence, a hint or an error with its lines joined, cut at the end."""
    joined = " ".join(text.split("\n"))
    return visible(joined if len(joined) <= SENTENCE else joined[: SENTENCE - 1] + "…", SENTENCE)


def first(items: Iterable[T], most: int) -> list[T]:
    """Return the first `most` items."""
    return list(islice(items, most))


def left_out(items: Sequence[object], most: int, what: str) -> list[str]:
    """Return `["and 12 more findings"]` if some were left out, else nothing."""
    more = len(items) - most
    return [f"and {more} more {what}"] if more > 0 else []
