r"""Text out of files and models, made harmless for whoever shows it.

A name in a model may hold an escape sequence that retitles a terminal or fills its clipboard, or a
character that turns the direction of writing.  Everything that reaches a terminal, an error, a
report or a view of an editor passes one of the functions here.
"""

from __future__ import annotations

import re

HOSTILE = re.compile(
    "["
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    r"\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, or turns the direction
    r"\ufffe\uffff\ud800-\udfff"  # no characters, halves of pairs
    "]"
)
"""One character that a text shown to people must not hold."""

_ONE_LINE = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

_STYLING = re.compile(r"(\x1b\[[\d;]*m)")
"""Escape sequences that only style what follows (SGR)."""


def printable(content: str) -> str:
    """Return the text with every hostile character escaped; tabs and newlines stay."""
    return HOSTILE.sub(_escape, content)


def printable_line(content: str) -> str:
    """Return the text as one line, with every hostile character, tab and newline escaped."""
    for char, escape in _ONE_LINE.items():
        content = content.replace(char, escape)
    return printable(content)


def printable_styled(content: str) -> str:
    """Return a text that a server has styled for a terminal; all other escape sequences are escaped."""
    parts = _STYLING.split(content)
    return "".join(part if number % 2 else printable(part) for number, part in enumerate(parts))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
