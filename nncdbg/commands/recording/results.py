"""A result as recorded: the text that a command printed, as a digest and the first lines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest

import msgspec
from rich.text import Text

from nncdbg.presentation.screen import ScreenShape
from nncdbg.text.counting import counted

_HEAD = 4096
"""Maximum number of characters of a result that are stored."""

_MOST = 12
"""Maximum number of lines of a difference."""


class RecordedResult(msgspec.Struct, frozen=True, tag_field="entry", tag="result", omit_defaults=True):
    """The text that a command printed, on a screen of `shape`.

    `text` has its first characters.  `digest` is that of the whole text and its colors.  `interrupted`: the
    user ended the command before its last line.
    """

    digest: str
    text: str
    lines: int
    shape: ScreenShape
    interrupted: bool = False

    def __str__(self) -> str:
        """Return the first line, and how many follow."""
        first = self.text.partition("\n")[0]
        return first if self.lines <= 1 else f"{first} (and {counted(self.lines - 1, 'more line')})"


class ShownText:
    """Collects the text that a command prints: the digest of all of it, and the first characters."""

    def __init__(self, shape: ScreenShape) -> None:
        self.interrupted = False
        self._shape = shape
        self._digest = hashlib.blake2b(digest_size=16)
        self._head = ""
        self._lines = 0

    def __bool__(self) -> bool:
        return self._lines > 0 or self.interrupted

    def add(self, content: Text) -> None:
        """Add lines as printed."""
        self._digest.update(f"{content.plain}\n".encode("utf-8", "surrogatepass"))
        if self._shape.color:
            # The colors of a picture are its content.
            spans = [(span.start, span.end, str(span.style)) for span in content.spans]
            self._digest.update(repr(spans).encode())
        self._lines += content.plain.count("\n") + 1
        room = _HEAD - len(self._head)
        if room > 0:
            text = content.plain.encode("utf-8", "replace").decode()
            self._head = f"{self._head}{text}\n"[:_HEAD]

    def recorded(self) -> RecordedResult:
        """Return the text so far as recorded."""
        text = self._head.removesuffix("\n")
        return RecordedResult(self._digest.hexdigest(), text, self._lines, self._shape, self.interrupted)


def result_differences(recorded: RecordedResult, replayed: RecordedResult) -> list[str]:
    """Return lines that show the difference of two results; an empty list if they are the same."""
    if recorded.digest == replayed.digest:
        return []
    before, now = recorded.text.split("\n"), replayed.text.split("\n")
    if len(before) == len(now) == 1 and before != now:
        return [f"recorded: {before[0]}", f"replayed: {now[0]}"]
    lines = [*_changed(before, now)]
    if not lines:
        same = "colors" if recorded.lines == len(before) else "lines after the first that are stored"
        return [
            f"recorded: {counted(recorded.lines, 'line')} (digest {recorded.digest[:8]})",
            f"replayed: {counted(replayed.lines, 'line')} (digest {replayed.digest[:8]}), with other {same}",
        ]
    more = len(lines) - _MOST
    return [*lines[:_MOST], *([f"and {counted(more, 'more line')}"] if more > 0 else [])]


def _changed(before: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    """Yield the lines that differ: a recorded one after `recorded:`, a replayed one after `replayed:`."""
    for tag, first, last, begin, end in SequenceMatcher(None, before, now, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        for old, new in zip_longest(before[first:last], now[begin:end]):
            if old is not None:
                yield f"recorded: {old}"
            if new is not None:
                yield f"replayed: {new}"
