r"""Escape text from files and models before it is shown.

A name in a model may hold an escape sequence that retitles a terminal or fills its clipboard, or a
character that changes the writing direction.  All text for a terminal, an error, a report or an
editor view passes through a function of this module.
"""

from __future__ import annotations

import re

HOSTILE = re.compile(
    "["
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    r"\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible or bidirectional
    r"\ufffe\uffff\ud800-\udfff"  # noncharacters and surrogates
    "]"
)
"""One character that must not appear in displayed text."""

_ONE_LINE = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

_STYLING = re.compile(r"(\x1b\[[\d;]*m)")
"""Escape sequences that only style text (SGR)."""


def printable(content: str) -> str:
    """Return the text with every hostile character escaped; tabs and newlines are kept."""
    return HOSTILE.sub(_escape, content)


def printable_line(content: str) -> str:
    """Return the text as one line, with every hostile character, tab and newline escaped."""
    for char, escape in _ONE_LINE.items():
        content = content.replace(char, escape)
    return printable(content)


def printable_styled(content: str) -> str:
    """Return a text styled by a server for a terminal; escape all sequences except styling."""
    parts = _STYLING.split(content)
    return "".join(part if number % 2 else printable(part) for number, part in enumerate(parts))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
