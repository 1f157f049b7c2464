"""Long texts of up to 100,000 lines are analyzed in turns with other requests."""

from __future__ import annotations

import queue
from itertools import count
from typing import Any

import pytest

from .client import Client, RequestError
from .test_bad_input import GOOD, chain

LINES = 20_000
_numbers = count()


def uri() -> str:
    return f"file:///long/{next(_numbers)}.nnc"


def open_without_waiting(client: Client, uri: str, text: str) -> None:
    """Open a document without waiting for its analysis."""
    item = {"uri": uri, "languageId": "nnc", "version": 1, "text": text}
    client.notify("textDocument/didOpen", {"textDocument": item})


def close(client: Client, uri: str) -> None:
    client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})


def notifications_so_far(client: Client, uri: str) -> list[dict[str, Any]]:
    """Return the parameters of the notifications received so far about a document."""
    found: list[dict[str, Any]] = []
    while True:
        try:
            params = client.notifications.get_nowait()["params"]
        except queue.Empty:
            return found
        if params.get("uri") == uri:
            found.append(params)


def test_other_documents_are_answered_during_the_analysis() -> None:
    client = Client()
    small, large = uri(), uri()
    client.open(small, GOOD)
    open_without_waiting(client, large, chain(100_000))
    for _ in range(3):
        assert "Relu" in client.request_at("hover", small, 1, 19)["contents"]["value"]
        place = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 0}}
        client.notify(
            "textDocument/didChange",
            {"textDocument": {"uri": small, "version": 2}, "contentChanges": [{"range": place, "text": ""}]},
        )
    assert notifications_so_far(client, large) == []
    assert client.diagnostics(large, 1) == []
    place = {"start": {"line": 50_000, "character": 28}, "end": {"line": 50_000, "character": 29}}
    found = client.change(large, 2, {"range": place, "text": "%zz"})
    assert [d["code"] for d in found if d["severity"] == 1] != []
    assert client.close() == 0


def test_a_request_waits_for_the_analysis_and_can_be_cancelled() -> None:
    client = Client()
    large = uri()
    open_without_waiting(client, large, chain(LINES))
    folding = client.start("textDocument/foldingRange", {"textDocument": {"uri": large}})
    client.notify("$/cancelRequest", {"id": folding})
    with pytest.raises(RequestError, match="(?i)cancel"):
        client.finish(folding)
    assert notifications_so_far(client, large) == []
    found = client.request_at("definition", large, LINES, 28)
    assert found["range"]["start"]["line"] == LINES - 1
    assert client.close() == 0


def test_other_documents_are_answered_during_semantic_tokens() -> None:
    client = Client()
    small, large = uri(), uri()
    client.open(small, GOOD)
    client.open(large, chain(LINES))
    tokens = client.start("textDocument/semanticTokens/full", {"textDocument": {"uri": large}})
    assert "Relu" in client.request_at("hover", small, 1, 19)["contents"]["value"]
    client.notify("$/cancelRequest", {"id": tokens})
    with pytest.raises(RequestError, match="(?i)cancel"):
        client.finish(tokens)
    assert client.close() == 0


def test_closing_a_document_stops_its_analysis() -> None:
    client = Client()
    small, large = uri(), uri()
    open_without_waiting(client, large, chain(LINES))
    close(client, large)
    assert client.request_at("hover", large, 50, 20) is None
    assert client.diagnostics(large, None) == []
    client.open(small, GOOD)
    assert notifications_so_far(client, large) == []
    assert client.close() == 0


def test_a_document_can_change_during_its_analysis() -> None:
    client = Client()
    large = uri()
    open_without_waiting(client, large, chain(LINES))
    place = {"start": {"line": 1, "character": 0}, "end": {"line": 1, "character": 0}}
    for version in range(2, 6):
        document = {"uri": large, "version": version}
        client.notify(
            "textDocument/didChange",
            {"textDocument": document, "contentChanges": [{"range": place, "text": " "}]},
        )
    assert client.diagnostics(large, 5) == []
    assert client.close() == 0
