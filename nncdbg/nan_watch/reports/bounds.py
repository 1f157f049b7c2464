"""How much of a report is shown, and names made harmless for whoever shows them.

A model can hold a name of a megabyte, a control character, or one that turns the direction of writing;
no report grows with it, and none can be steered by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TypeVar

from nncdbg.engine.escaping import printable_line

T = TypeVar("T")

NAME = 200
"""Characters of a name, or of a path."""
SENTENCE = 2_000
"""Characters of an evidence, a hint, an error."""
STATEMENT = 400
"""Characters of a statement of the program."""
OPERANDS = 16
"""Operands of a statement that are listed."""
FINDINGS = 1_000
"""Findings of a form for machines; a watch lists far fewer, unless it is asked to."""
NOTES = 50
"""Notes, and things that were not checked."""


def visible(text: str, most: int = NAME) -> str:
    """One line of `most` characters at most, in which nothing is invisible or turns the direction of writing.

    Of a text that is too long both ends stay: names of layers differ at either.
    """
    if len(text) > most:
        head = (most - 1) * 2 // 3
        text = f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"
    return printable_line(text)


def sentence(text: str) -> str:
    """Evidence, a hint, an error: its lines joined, cut at the end."""
    joined = " ".join(text.split("\n"))
    return visible(joined if len(joined) <= SENTENCE else joined[: SENTENCE - 1] + "…", SENTENCE)


def first(items: Iterable[T], most: int) -> list[T]:
    """The first `most` items."""
    return list(islice(items, most))


def left_out(items: Sequence[object], most: int, what: str) -> list[str]:
    """`["and 12 more findings"]` where some were left out, else nothing."""
    more = len(items) - most
    return [f"and {more} more {what}"] if more > 0 else []
