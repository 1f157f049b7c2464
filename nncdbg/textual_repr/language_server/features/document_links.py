"""Links to the files named in a text: data stores and source locations of the model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lsprotocol import types
from pygls.uris import from_fs_path, to_fs_path

from nncdbg.engine.text.lexemes import STRING
from nncdbg.textual_repr.language_server.document.document import Document
from nncdbg.textual_repr.language_server.document.records import Span
from nncdbg.textual_repr.reading import salvaged

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer

_store = re.compile(rf"\s*store\s+({STRING})").match
_source = re.compile(rf"({STRING}):([0-9]{{1,9}})").finditer


def register(server: NncServer) -> None:
    """Register document links."""

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_LINK)
    def links(params: types.DocumentLinkParams) -> list[types.DocumentLink]:
        document = server.documents.get(params.text_document.uri)
        if document is None:
            return []
        roots = [to_fs_path(folder.uri) for folder in server.workspace.folders.values()]
        return list(document_links(document, [Path(root) for root in roots if root]))


def document_links(document: Document, roots: Sequence[Path] = ()) -> Iterator[types.DocumentLink]:
    """Yield links to existing files, searched beside the document, then in the workspace folders."""
    own = to_fs_path(document.uri)
    folders = [*([Path(own).parent] if own else []), *roots]

    @cache
    def target(name: str) -> str | None:
        found = (folder / name for folder in folders if _is_file(folder / name))
        path = next(found, None)
        return from_fs_path(str(path.resolve())) if path is not None else None

    for line, text in enumerate(document.lines):
        if "loc(" in text:
            yield from _sources(document, line, target)
        elif (match := _store(text)) is not None and (uri := target(salvaged(match[1]))) is not None:
            yield types.DocumentLink(_range(document, line, match), uri)


def _sources(
    document: Document, line: int, target: Callable[[str], str | None]
) -> Iterator[types.DocumentLink]:
    text = document.lines[line]
    for match in _source(text, text.rindex("loc(")):
        uri = target(salvaged(match[1]))
        if uri is not None:
            # Editors read the line of a link from its fragment.
            yield types.DocumentLink(_range(document, line, match), f"{uri}#L{match[2]}")


def _range(document: Document, line: int, match: re.Match[str]) -> types.Range:
    """Return the range of the text between the quotes."""
    return document.units.range(document.lines[line], Span(line, match.start(1) + 1, match.end(1) - 1))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False  # not a valid file name: too long, or contains NUL
