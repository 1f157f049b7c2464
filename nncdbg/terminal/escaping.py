"""Text out of files and models, made harmless for a terminal."""

from __future__ import annotations

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(content: str) -> str:
    """The text with control characters escaped, so that no file can steer the terminal."""
    return content.translate(_CONTROL)
