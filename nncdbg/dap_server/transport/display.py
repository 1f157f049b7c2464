"""Sanitizing of outgoing texts that a client displays.

Names in a model may contain escape sequences, or characters that change the direction of writing.  Clients
print or draw most texts, so every text of a message is escaped, except where a client needs it exactly: names
of files, the content of a source, requests to run something, and the output of the user's program.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from nncdbg.engine.escaping import HOSTILE, printable, printable_styled

_EXACT = frozenset({"path", "uri", "file", "command", "content"})
"""Fields that name a file, repeat the client's word, or hold a whole text."""

_STYLED = frozenset({"result"})
"""Console output: the terminal's own commands have escaped it, and may have styled it."""

_ESCAPED = re.compile(rb"\\[ubfr]")
"""Control characters in encoded JSON."""


def harmless(message: Mapping[str, Any], encoded: bytes) -> bytes:
    """Return the JSON of a message with its texts escaped; `encoded` is the JSON of all of it."""
    if message["type"] == "request" or message.get("event") == "output" or not _is_suspect(encoded):
        return encoded
    return msgspec.json.encode(_escaped(msgspec.json.decode(encoded)))


def _is_suspect(encoded: bytes) -> bool:
    """Return whether to check each text; most messages are sent unchanged, so this must be fast."""
    if (b"\\" in encoded and _ESCAPED.search(encoded)) or b"\x7f" in encoded:
        return True
    if encoded.isascii():
        return False
    text = encoded.decode()
    return not text.isprintable() and HOSTILE.search(text) is not None


def _escaped(content: Any) -> Any:
    if isinstance(content, str):
        return printable(content)
    if isinstance(content, list):
        return [_escaped(each) for each in content]
    if isinstance(content, dict):
        return {key: _field(key, each) for key, each in content.items()}
    return content


def _field(key: str, content: Any) -> Any:
    if key in _EXACT:
        return content
    if key in _STYLED and isinstance(content, str):
        return printable_styled(content)
    return _escaped(content)
