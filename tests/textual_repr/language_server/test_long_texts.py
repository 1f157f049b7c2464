"""Long texts, one of 100,000 lines: read in turns with other requests, and left when it is closed."""

from __future__ import annotations

import queue
from itertools import count
from typing import Any

import pytest

from .client import Client, Refused
from .test_bad_input import GOOD, chain

LINES = 20_000
_numbers = count()


def uri() -> str:
    return f"file:///long/{next(_numbers)}.nnc"


def open_unread(client: Client, uri: str, text: str) -> None:
    """Open a document and go on at once."""
    item = {"uri": uri, "languageId": "nnc", "version": 1, "text": text}
    client.notify("textDocument/didOpen", {"textDocument": item})


def close(client: Client, uri: str) -> None:
    client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})


def told_so_far(client: Client, uri: str) -> list[dict[str, Any]]:
    """What the server has said of a document of its own accord, as far as it has come."""
    found: list[dict[str, Any]] = []
    while True:
        try:
            params = client.told.get_nowait()["params"]
        except queue.Empty:
            return found
        if params.get("uri") == uri:
            found.append(params)


def test_others_are_answered_while_it_is_read() -> None:
    client = Client()
    small, large = uri(), uri()
    client.open(small, GOOD)
    open_unread(client, large, chain(100_000))
    for _ in range(3):
        assert "Relu" in client.ask("hover", small, 1, 19)["contents"]["value"]
        place = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 0}}
        client.notify(
            "textDocument/didChange",
            {"textDocument": {"uri": small, "version": 2}, "contentChanges": [{"range": place, "text": ""}]},
        )
    assert told_so_far(client, large) == []
    assert client.diagnostics(large, 1) == []
    place = {"start": {"line": 50_000, "character": 28}, "end": {"line": 50_000, "character": 29}}
    found = client.change(large, 2, {"range": place, "text": "%zz"})
    assert [d["code"] for d in found if d["severity"] == 1] != []
    assert client.close() == 0


def test_a_request_about_it_waits_until_it_is_read_and_can_be_cancelled() -> None:
    client = Client()
    large = uri()
    open_unread(client, large, chain(LINES))
    folding = client.start("textDocument/foldingRange", {"textDocument": {"uri": large}})
    client.notify("$/cancelRequest", {"id": folding})
    with pytest.raises(Refused, match="(?i)cancel"):
        client.finish(folding)
    assert told_so_far(client, large) == []
    found = client.ask("definition", large, LINES, 28)
    assert found["range"]["start"]["line"] == LINES - 1
    assert client.close() == 0


def test_others_are_answered_while_all_its_tokens_are_found() -> None:
    client = Client()
    small, large = uri(), uri()
    client.open(small, GOOD)
    client.open(large, chain(LINES))
    tokens = client.start("textDocument/semanticTokens/full", {"textDocument": {"uri": large}})
    assert "Relu" in client.ask("hover", small, 1, 19)["contents"]["value"]
    client.notify("$/cancelRequest", {"id": tokens})
    with pytest.raises(Refused, match="(?i)cancel"):
        client.finish(tokens)
    assert client.close() == 0


def test_closed_while_it_is_read() -> None:
    client = Client()
    small, large = uri(), uri()
    open_unread(client, large, chain(LINES))
    close(client, large)
    assert client.ask("hover", large, 50, 20) is None
    assert client.diagnostics(large, None) == []
    client.open(small, GOOD)
    assert told_so_far(client, large) == []
    assert client.close() == 0


def test_typing_in_it_before_it_is_read() -> None:
    client = Client()
    large = uri()
    open_unread(client, large, chain(LINES))
    place = {"start": {"line": 1, "character": 0}, "end": {"line": 1, "character": 0}}
    for version in range(2, 6):
        document = {"uri": large, "version": version}
        client.notify(
            "textDocument/didChange",
            {"textDocument": document, "contentChanges": [{"range": place, "text": " "}]},
        )
    assert client.diagnostics(large, 5) == []
    assert client.close() == 0
