"""Formatting: the canonical print of the program, as the fewest edits of whole lines."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lsprotocol import types

from nncdbg.engine.errors import GraphError
from nncdbg.engine.process.collector import collector_paused
from nncdbg.textual_repr.language_server.document.comments import with_comments
from nncdbg.textual_repr.parser import parse_with_listing
from nncdbg.textual_repr.printer import listing

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.document.document import Document
    from nncdbg.textual_repr.language_server.server import NncServer

_LARGEST = 4000
"""Maximum number of changed lines that are compared one by one; more are replaced together."""


def register(server: NncServer) -> None:
    """Register formatting of a document."""

    @server.feature(types.TEXT_DOCUMENT_FORMATTING)
    def formatting(params: types.DocumentFormattingParams) -> list[types.TextEdit]:
        document = server.documents.get(params.text_document.uri)
        if document is None:
            return []
        try:
            wanted = formatted(document.lines)
        except GraphError as error:
            message = f"cannot format the text: {error.message}"
            server.window_show_message(types.ShowMessageParams(types.MessageType.Warning, message))
            return []
        return list(_edits(document, wanted))


@collector_paused()
def formatted(lines: Sequence[str]) -> list[str]:
    """Return the lines of the canonical print, with the comments that are not part of the program.

    Raises GraphError if the text has errors.
    """
    program, text = parse_with_listing("\n".join(lines))
    return with_comments(listing(program), text)


def _edits(document: Document, wanted: Sequence[str]) -> Iterator[types.TextEdit]:
    """Yield the edits that turn the lines of the document into the wanted lines."""
    lines = document.lines
    head = _same(lines, wanted)
    tail = _same(lines[head:][::-1], wanted[head:][::-1])
    old, new = lines[head : len(lines) - tail], wanted[head : len(wanted) - tail]
    if len(old) + len(new) > _LARGEST:
        yield _edit(document, head, head + len(old), new)
        return
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, first, last, start, end in matcher.get_opcodes():
        if tag != "equal":
            yield _edit(document, head + first, head + last, new[start:end])


def _same(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the length of the common prefix of two lists of lines."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _edit(document: Document, first: int, last: int, new: Sequence[str]) -> types.TextEdit:
    """Replace lines `first` to `last` (exclusive) by `new`."""
    lines = document.lines
    if last < len(lines):
        text = "".join(f"{line}\n" for line in new)
        return types.TextEdit(types.Range(types.Position(first, 0), types.Position(last, 0)), text)
    end = document.units.position(lines[-1], len(lines) - 1, len(lines[-1]))
    if first == 0:
        return types.TextEdit(types.Range(types.Position(0, 0), end), "\n".join(new))
    before = document.units.position(lines[first - 1], first - 1, len(lines[first - 1]))
    return types.TextEdit(types.Range(before, end), "".join(f"\n{line}" for line in new))
