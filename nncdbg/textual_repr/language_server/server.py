"""The server: its open documents and its features.

`Document` stores text instead of pygls: its line ends follow the protocol, and a change copies no text.
"""

from __future__ import annotations

import asyncio
import gc
import re
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import isawaitable
from typing import Any, TypeVar

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, lsp_method

from nncdbg.engine.ops import lookup
from nncdbg.text.torch_names import DOMAINS, installed
from nncdbg.textual_repr.language_server.document import ColumnEncoding, Document, Place
from nncdbg.textual_repr.language_server.tokens import Problem, Span
from nncdbg.version import __version__

# -- diagnostics -----------------------------------------------------------------------------------

_SEVERITIES = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "information": types.DiagnosticSeverity.Information,
    "hint": types.DiagnosticSeverity.Hint,
}

MOST = 2000
"""Maximum number of diagnostics per document."""


def _diagnostic(document: Document, problem: Problem) -> types.Diagnostic:
    message = f"{problem.message}\n{problem.hint}" if problem.hint else problem.message
    related = [
        types.DiagnosticRelatedInformation(types.Location(document.uri, _range(document, span)), words)
        for span, words in problem.related
    ]
    return types.Diagnostic(
        _range(document, problem.span),
        message,
        severity=_SEVERITIES[problem.severity],
        code=problem.code,
        source="nncdbg",
        tags=[types.DiagnosticTag.Unnecessary] if problem.code in ("unused", "unread-view") else None,
        related_information=related or None,
    )


def _range(document: Document, span: Span) -> types.Range:
    """Return the span in the client's units; an error at the end of a line underlines the preceding text."""
    start = min(span.start, max(0, len(document.row(span.line)) - 1))
    return document.range(Span(span.line, start, max(span.end, start + 1)))


# -- server ----------------------------------------------------------------------------------------

FEATURES = ("navigation", "documentation", "decorations", "formatting", "completion", "code_actions")
"""The feature modules; each has a function `register(server)`."""

_LEAST_WAIT, _MOST_WAIT = 0.002, 0.2
"""Idle seconds before diagnostics are sent, in proportion to the time of the last analysis."""

_SLICE = 0.005
"""Seconds of analysis before other messages are processed."""

_WHILE_TYPING = (types.TEXT_DOCUMENT_COMPLETION, types.TEXT_DOCUMENT_SIGNATURE_HELP)
"""Requests that do not wait for the line under the cursor to be parsed."""


_of_torch = re.compile(rf"= (?:{'|'.join(DOMAINS)})\.").search
"""Find a statement with an operator of PyTorch."""

_Handler = TypeVar("_Handler", bound=Callable[..., Any])


class _Protocol(LanguageServerProtocol):
    """The protocol handlers that open, change and close documents."""

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


class NncServer(LanguageServer):
    """The server of one client."""

    def __init__(self) -> None:
        super().__init__("nncdbg", __version__, protocol_cls=_Protocol)
        self.documents: dict[str, Document] = {}
        self._waiting: dict[str, asyncio.TimerHandle | asyncio.Future[None]] = {}
        self._checking: dict[str, asyncio.TimerHandle | asyncio.Future[None]] = {}
        self._took: dict[str, float] = {}
        self._loading: asyncio.Future[Any] | None = None
        """The import of torch, which takes seconds, on another thread."""
        self._loads: set[str] = set()
        """The documents with operators of PyTorch."""
        for name in FEATURES:
            import_module(f"nncdbg.textual_repr.language_server.{name}").register(self)

    @property
    def units(self) -> ColumnEncoding:
        """Return the column units negotiated with the client."""
        encoding = self.workspace.position_encoding or types.PositionEncodingKind.Utf16
        return ColumnEncoding(
            encoding.value if isinstance(encoding, types.PositionEncodingKind) else encoding
        )

    def place(self, uri: str, position: types.Position, *, typing: bool = False) -> Place | None:
        """Return the cursor of a request; None if the document is not open.

        With `typing`, the analysis may be the one from before the line of the cursor changed.
        """
        document = self.documents.get(uri)
        if document is None:
            return None
        line = min(position.line, len(document.lines) - 1)
        text = document.lines[line]
        column = document.units.inwards(text, position.character) if line == position.line else len(text)
        analysis = document.around(line) if typing else document.analysis
        return Place(document, analysis, *document.place_in_statement(line, column))

    # -- documents -----------------------------------------------------------------------------

    def open(self, document: Document) -> None:
        self.documents[document.uri] = document
        if installed() and any(map(_of_torch, document.lines)):
            self._loads.add(document.uri)
            if self._loading is None:
                load_torch = asyncio.to_thread(lookup, "aten.relu.default", 1)
                self._loading = asyncio.ensure_future(load_torch)
        self.check_soon(document)

    def close(self, uri: str) -> None:
        """Close a document and clear its diagnostics."""
        if self.documents.pop(uri, None) is not None:
            self._took.pop(uri, None)
            self._loads.discard(uri)
            self._cancel(uri)
            self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))

    def check_soon(self, document: Document) -> None:
        """Send diagnostics once typing pauses."""
        self._cancel(document.uri)
        wait = min(_MOST_WAIT, max(_LEAST_WAIT, self._took.get(document.uri, 0.0) / 8))
        loop = asyncio.get_running_loop()
        self._waiting[document.uri] = loop.call_later(wait, self._check, document)

    def _cancel(self, uri: str) -> None:
        for tasks in (self._waiting, self._checking):
            task = tasks.pop(uri, None)
            if task is not None:
                task.cancel()

    def _check(self, document: Document) -> None:
        self._checking[document.uri] = asyncio.ensure_future(self._send_diagnostics(document))

    async def _send_diagnostics(self, document: Document) -> None:
        start = time.perf_counter()
        await self.settled(document)
        found = [_diagnostic(document, problem) for problem in document.analysis.problems[:MOST]]
        if document.uri not in self._took:
            # An open document is long-lived: exclude it from garbage collection at every keystroke.
            gc.freeze()
        self._took[document.uri] = time.perf_counter() - start
        self.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(document.uri, found, document.version)
        )

    # -- requests ------------------------------------------------------------------------------

    async def settled(self, document: Document) -> None:
        """Return when the document is analyzed; other messages are processed meanwhile.

        The analysis of a closed document is canceled.
        """
        if self._loading is not None and document.uri in self._loads:
            await asyncio.shield(self._loading)
        while self.documents.get(document.uri) is document and not document.read_on(_SLICE):
            await asyncio.sleep(0)

    def feature(self, feature_name: str, options: Any = None) -> Callable[[_Handler], _Handler]:
        """Register a request handler, which runs after the documents of the request are analyzed."""
        register = super().feature(feature_name, options)

        def decorate(handler: _Handler) -> _Handler:
            async def answer(params: Any) -> Any:
                for document in self._documents_of(feature_name, params):
                    await self.settled(document)
                found = handler(params)
                return await found if isawaitable(found) else found

            register(answer)
            return handler

        return decorate

    def on_document(
        self, method: str, answer: Callable[[Document, Any], Any], missing: Any = None, options: Any = None
    ) -> None:
        """Register the answer to a request about a document; `missing` is that for one that is not open."""

        def handler(params: Any) -> Any:
            document = self.documents.get(_document_of(params).uri)
            return missing if document is None else answer(document, params)

        self.feature(method, options)(handler)

    def on_place(
        self,
        method: str,
        answer: Callable[[Place, Any], Any],
        missing: Any = None,
        options: Any = None,
    ) -> None:
        """Register the answer to a request about a cursor, as `on_document` does."""

        def handler(params: Any) -> Any:
            typing = method in _WHILE_TYPING
            place = self.place(params.text_document.uri, params.position, typing=typing)
            return missing if place is None else answer(place, params)

        self.feature(method, options)(handler)

    def _documents_of(self, feature: str, params: Any) -> list[Document]:
        """Return the documents that a request depends on."""
        if feature == types.WORKSPACE_SYMBOL:
            return list(self.documents.values())
        about = _document_of(params)
        document = self.documents.get(about.uri) if about is not None else None
        if document is None:
            return []
        typing = feature in _WHILE_TYPING and document.at_hand(params.position.line) is not None
        return [] if typing else [document]


def _document_of(params: Any) -> Any:
    """Return what names the document of a request; None if nothing does."""
    return getattr(params, "text_document", None) or getattr(params, "item", None)
