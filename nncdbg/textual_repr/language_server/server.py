"""The server: which documents are open, and which features answer.

Text is kept by `Document`, not by pygls: its lines end where the protocol says, and a change copies no text.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from inspect import isawaitable
from typing import Any, TypeVar

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, lsp_method

from nncdbg.textual_repr.language_server.analysis.analysis import Analysis
from nncdbg.textual_repr.language_server.document.document import Document
from nncdbg.textual_repr.language_server.document.positions import Units
from nncdbg.textual_repr.language_server.document.records import Span
from nncdbg.version import __version__

FEATURES = (
    *("diagnostics", "hover", "navigation", "renaming", "symbols", "folding", "coloring", "formatting"),
    *("completion", "signature_help", "inlay_hints", "code_actions", "code_lens"),
    *("call_hierarchy", "document_links"),
)
"""The modules of the features; each registers its own in `register(server)`."""

_LEAST_WAIT, _MOST_WAIT = 0.002, 0.2
"""Seconds that typing has to rest before diagnostics are sent: the longer, the longer the last ones took."""

_SLICE = 0.005
"""Seconds that a text is read before other messages have their turn."""

_WHILE_TYPING = (types.TEXT_DOCUMENT_COMPLETION, types.TEXT_DOCUMENT_SIGNATURE_HELP)
"""What does not wait for the line under the cursor to be read."""


_Handler = TypeVar("_Handler", bound=Callable[..., Any])


class _Protocol(LanguageServerProtocol):
    """Documents are opened, changed and closed here."""

    _server: NncServer

    @lsp_method(types.TEXT_DOCUMENT_DID_OPEN)
    def lsp_text_document__did_open(self, params: types.DidOpenTextDocumentParams) -> Iterator[Any]:
        item = params.text_document
        self._server.open(Document(item.uri, item.text, item.version, self._server.units))
        yield from ()

    @lsp_method(types.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: types.DidChangeTextDocumentParams) -> Iterator[Any]:
        document = self._server.documents.get(params.text_document.uri)
        if document is not None:
            document.change(map(_change, params.content_changes), params.text_document.version)
            self._server.check_soon(document)
        yield from ()

    @lsp_method(types.TEXT_DOCUMENT_DID_CLOSE)
    def lsp_text_document__did_close(self, params: types.DidCloseTextDocumentParams) -> Iterator[Any]:
        self._server.close(params.text_document.uri)
        yield from ()


def _change(
    change: types.TextDocumentContentChangeEvent,
) -> tuple[tuple[int, int, int, int] | None, str]:
    if isinstance(change, types.TextDocumentContentChangeWholeDocument):
        return None, change.text
    start, end = change.range.start, change.range.end
    return (start.line, start.character, end.line, end.character), change.text


@dataclass(frozen=True, slots=True)
class Place:
    """A cursor: `line` and `column` count from 0, the column in characters."""

    document: Document
    analysis: Analysis
    line: int
    column: int

    def range(self, span: Span) -> types.Range:
        """A span of the same document for the client."""
        return self.document.units.range(self.document.lines[span.line], span)

    def location(self, span: Span) -> types.Location:
        return types.Location(self.document.uri, self.range(span))


class NncServer(LanguageServer):
    """One client's server."""

    def __init__(self) -> None:
        super().__init__("nncdbg", __version__, protocol_cls=_Protocol)
        self.documents: dict[str, Document] = {}
        self._waiting: dict[str, asyncio.TimerHandle] = {}
        self._checking: dict[str, asyncio.Future[None]] = {}
        self._took: dict[str, float] = {}
        for name in FEATURES:
            import_module(f"nncdbg.textual_repr.language_server.features.{name}").register(self)

    @property
    def units(self) -> Units:
        """The units of columns that were agreed with the client."""
        encoding = self.workspace.position_encoding or types.PositionEncodingKind.Utf16
        return Units(encoding.value if isinstance(encoding, types.PositionEncodingKind) else encoding)

    def place(self, uri: str, position: types.Position, *, typing: bool = False) -> Place | None:
        """The cursor of a request; None where the document is not open.

        With `typing` the analysis may be the one before the cursor's line changed.
        """
        document = self.documents.get(uri)
        if document is None:
            return None
        line = min(position.line, len(document.lines) - 1)
        text = document.lines[line]
        column = document.units.inwards(text, position.character) if line == position.line else len(text)
        analysis = document.around(line) if typing else document.analysis
        return Place(document, analysis, line, column)

    # -- documents -----------------------------------------------------------------------------

    def open(self, document: Document) -> None:
        self.documents[document.uri] = document
        self.check_soon(document)

    def close(self, uri: str) -> None:
        """The editor has let go of a document; what was said of it is taken back."""
        if self.documents.pop(uri, None) is not None:
            self._took.pop(uri, None)
            self._cancel(uri)
            self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))

    def check_soon(self, document: Document) -> None:
        """Send diagnostics when typing rests."""
        self._cancel(document.uri)
        wait = min(_MOST_WAIT, max(_LEAST_WAIT, self._took.get(document.uri, 0.0) / 8))
        loop = asyncio.get_running_loop()
        self._waiting[document.uri] = loop.call_later(wait, self._check, document)

    def _cancel(self, uri: str) -> None:
        waiting = self._waiting.pop(uri, None)
        if waiting is not None:
            waiting.cancel()
        checking = self._checking.pop(uri, None)
        if checking is not None:
            checking.cancel()

    def _check(self, document: Document) -> None:
        self._checking[document.uri] = asyncio.ensure_future(self._send_diagnostics(document))

    async def _send_diagnostics(self, document: Document) -> None:
        from nncdbg.textual_repr.language_server.features.diagnostics import diagnostics

        start = time.perf_counter()
        await self.settled(document)
        found = diagnostics(document)
        if document.uri not in self._took:
            # What an open text consists of lives on: the collector need not walk it at every key.
            gc.freeze()
        self._took[document.uri] = time.perf_counter() - start
        self.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(document.uri, found, document.version)
        )

    # -- requests ------------------------------------------------------------------------------

    async def settled(self, document: Document) -> None:
        """Return when the document has been read; meanwhile others have their turn.

        A document that is closed is read no further.
        """
        while self.documents.get(document.uri) is document and not document.read_on(_SLICE):
            await asyncio.sleep(0)

    def feature(self, feature_name: str, options: Any = None) -> Callable[[_Handler], _Handler]:
        """Register what answers a request, once the documents that it is about have been read."""
        register = super().feature(feature_name, options)

        def decorate(handler: _Handler) -> _Handler:
            async def answer(params: Any) -> Any:
                for document in self._asked(feature_name, params):
                    await self.settled(document)
                found = handler(params)
                return await found if isawaitable(found) else found

            register(answer)
            return handler

        return decorate

    def _asked(self, feature: str, params: Any) -> list[Document]:
        """The documents that a request has to wait for."""
        if feature == types.WORKSPACE_SYMBOL:
            return list(self.documents.values())
        about = getattr(params, "text_document", None) or getattr(params, "item", None)
        document = self.documents.get(about.uri) if about is not None else None
        if document is None:
            return []
        typing = feature in _WHILE_TYPING and document.at_hand(params.position.line) is not None
        return [] if typing else [document]
