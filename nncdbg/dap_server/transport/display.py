"""Texts for a client to show, made harmless on their way out.

Names in a model may hold escape sequences, or characters that turn the direction of writing.
Clients print or draw most of what they get, so every text of a message is escaped, except where a
client needs it exactly: names of files, the content of a source, requests to run something, and
what the user's own program prints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from nncdbg.engine.escaping import printable, printable_styled

_EXACT = frozenset({"path", "uri", "file", "command", "content"})
"""Fields that name a file, repeat the client's word, or hold a whole text."""

_STYLED = frozenset({"result"})
"""What the console prints: the terminal's own commands have escaped it, and may have styled it."""

_SUSPECT = re.compile(
    rb"\\(?:u|[bfr])|\x7f|\xc2[\x80-\x9f]|\xd8\x9c"
    rb"|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf|\xef\xbf[\xb9-\xbf]"
)
"""What a hostile character is in encoded JSON: most messages have none, and are sent as they are."""


def harmless(message: Mapping[str, Any], encoded: bytes) -> bytes:
    """Return the JSON of a message with its texts escaped; `encoded` is the JSON of all of it."""
    if message["type"] == "request" or message.get("event") == "output" or not _SUSPECT.search(encoded):
        return encoded
    return msgspec.json.encode(_escaped(msgspec.json.decode(encoded)))


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
