"""Every request is answered for any document, and the server keeps running."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import count
from typing import Any

import pytest

from .client import Client

pytestmark = pytest.mark.usefixtures("forked_processes")

_numbers = count()

GOOD = "graph @main(%x: f32[2,3]) -> (%y: f32[2,3]) {\n  %y: f32[2,3] = Relu(%x)\n  return %y\n}\n"


def chain(lines: int, of: str = "Relu") -> str:
    """Return one graph with `lines` statements."""
    body = "".join(f"  %h{n + 1}: f32[2,3] = {of}(%h{n})\n" for n in range(lines))
    return f"graph @main(%h0: f32[2,3]) -> (%h{lines}: f32[2,3]) {{\n{body}  return %h{lines}\n}}\n"


def nested(depth: int) -> str:
    opening = "".join(f"if %c {{\n%a{n} = Relu(%x)\nyield %x\n}} else {{\n" for n in range(depth))
    return (
        f"graph @main(%x: f32[2], %c: bool[]) -> () {{\n{opening}yield %x\n" + "}\n" * depth + "return\n}\n"
    )


_junk = random.Random(0)

TEXTS = {
    "empty": "",
    "blank": "\n\n  \n",
    "crlf": GOOD.replace("\n", "\r\n"),
    "cr": GOOD.replace("\n", "\r"),
    "bom": "\ufeff#nncdbg 1\n" + GOOD,
    "junk": bytes(_junk.randrange(256) for _ in range(20_000)).decode("latin-1"),
    "unicode": "".join(
        chr(_junk.choice([*range(0x80), *range(0x590, 0x600), 0x1F600, 0x202E])) for _ in range(5000)
    ),
    "names": 'graph @"a\\nb"(%"q\\"q": f32[2], %"שלום": f32[2]) -> () {\n'
    '%"𝒳\\n" = Add(%"q\\"q", %"שלום")\nreturn\n}\n',
    "open names": 'graph @"(%"x: f32["N) -> (\n%"a = Relu(%"\n%',
    "escapes": 'graph @"\\q"(%"\\q": f32[2]) -> (%"\\q") {\nreturn %"\\q"\n}\n',
    "braces": "}\n" * 500 + "{\n" * 500,
    "unclosed": "graph @a() -> () {\nif %x {\nwhile (%s = %y) {\ngraph @b() -> () {\n",
    "errors": chain(1000, "Rel u"),
    "undefined": "graph @m() -> () {\n"
    + "".join(f"%a{n} = Relu(%b{n})\n" for n in range(1000))
    + "return\n}\n",
    "deep": nested(300),
    "too deep": nested(1100),
    "long line": "graph @m() -> () {\n%a: f32[20000] = [" + ",".join(["1.5"] * 20_000) + "]\nreturn\n}\n",
    "brackets": "f32[" * 20_000 + "\n" + "seq(" * 20_000 + "\n" + "[" * 20_000,
    "recursion": "graph @a() -> () {\n@b()\nreturn\n}\ngraph @b() -> () {\n@a()\nreturn\n}\n",
    "graphs": "graph @a() -> () {\nreturn\n}\n" * 500,
}

PLACED = ["hover", "definition", "documentHighlight", "prepareRename"]
WHOLE = ["documentSymbol", "foldingRange", "semanticTokens/full"]


def send_every_request(client: Client, uri: str, text: str) -> None:
    lines = text.split("\n")
    for line in {0, 1, len(lines) // 2, len(lines) - 1, len(lines) + 5}:
        for character in (0, 3, 12, 100_000):
            for feature in PLACED:
                client.request_at(feature, uri, line, character)
            client.request_at("references", uri, line, character, context={"includeDeclaration": True})
    document: dict[str, Any] = {"textDocument": {"uri": uri}}
    for feature in WHOLE:
        client.request(f"textDocument/{feature}", document)
    client.request("textDocument/selectionRange", {**document, "positions": [{"line": 1, "character": 4}]})
    options = {"tabSize": 2, "insertSpaces": True}
    client.request("textDocument/formatting", {**document, "options": options})


@pytest.mark.parametrize("name", TEXTS)
def test_every_request_is_answered(client: Client, name: str) -> None:
    uri = f"file:///bad/{next(_numbers)}.nnc"
    text = TEXTS[name]
    before = client.open(uri, text)
    send_every_request(client, uri, text)
    start = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 0}}
    end = {"start": {"line": 10**6, "character": 0}, "end": {"line": 10**6, "character": 9}}
    client.change(uri, 2, {"range": start, "text": "# new\n"}, {"range": end, "text": "\n# end"})
    send_every_request(client, uri, "# new\n" + text)
    after = client.change(uri, 3, {"text": text})
    assert after == before


def test_line_endings_and_a_byte_order_mark_are_accepted(client: Client) -> None:
    for name in ("crlf", "cr", "bom"):
        uri = f"file:///bad/{next(_numbers)}.nnc"
        assert client.open(uri, TEXTS[name]) == []
        assert (
            client.request_at("definition", uri, 1 + (name == "bom"), 24)["range"]["start"]["character"] == 12
        )


def test_all_of_many_errors_are_reported(client: Client) -> None:
    found = client.open(f"file:///bad/{next(_numbers)}.nnc", TEXTS["undefined"])
    assert sum(d["code"] == "undefined" for d in found) == 1000


def test_the_number_of_reported_problems_is_limited(client: Client) -> None:
    text = "".join(f"%a{n} = Relu %x\n" for n in range(3000))
    found = client.open(
        f"file:///bad/{next(_numbers)}.nnc", f"graph @m(%x: f32[2]) -> () {{\n{text}return\n}}\n"
    )
    assert [d["range"]["start"]["line"] for d in found if d["code"] == "syntax"] == list(range(1, 1001))
    assert len(found) == 2000


def test_a_closed_or_unknown_document_is_answered(client: Client) -> None:
    uri = f"file:///bad/{next(_numbers)}.nnc"
    client.open(uri, GOOD)
    client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
    send_every_request(client, uri, GOOD)
    send_every_request(client, "untitled:Untitled-1", GOOD)
    client.notify(
        "textDocument/didChange",
        {"textDocument": {"uri": uri, "version": 9}, "contentChanges": [{"text": ""}]},
    )
    assert client.request_at("hover", uri, 0, 0) is None


def test_fast_typing_reports_the_last_version(client: Client) -> None:
    uri = f"file:///bad/{next(_numbers)}.nnc"
    client.open(uri, GOOD)
    for version, letter in enumerate("abcdefghij", start=2):
        place = {"start": {"line": 1, "character": 24}, "end": {"line": 1, "character": 24}}
        change = {"textDocument": {"uri": uri, "version": version}}
        client.notify(
            "textDocument/didChange", {**change, "contentChanges": [{"range": place, "text": letter}]}
        )
    assert [d["code"] for d in client.diagnostics(uri, 11)] == ["undefined"]


@pytest.mark.parametrize("sent", [b"", b"Content-Length: 5\r\n\r\n{}...", b"garbage\r\n\r\n"])
def test_the_server_ends_when_the_client_disconnects(sent: bytes) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "nncdbg", "lsp"], input=sent, capture_output=True, timeout=600
    )
    assert ended.returncode in (0, 1)
    assert b"Traceback" not in ended.stderr


def test_an_unknown_option_is_an_error() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "nncdbg", "lsp", "--tcp"], capture_output=True, timeout=600, text=True
    )
    assert ended.returncode == 2
    assert "--tcp" in ended.stderr
