"""Attacks by messages to the debug adapter, and by documents in the language server.

More rows: `tests/dap_server/test_malformed.py` (framing and JSON), `test_access.py` (clients), and
`tests/textual_repr/language_server/test_bad_input.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.conftest import MARKER
from tests.attacks.test_typed_text import DIGITS, ESCAPE, LARGE, SMALL, TEXTS
from tests.dap_server.client import Client
from tests.dap_server.conversations import conversation
from tests.hostile import RAW
from tests.textual_repr.language_server.client import Client as LanguageClient

CODE = f"__import__('os').system('touch {MARKER}')"


def evaluate(expression: str, context: str) -> tuple[str, Any]:
    return "evaluate", {"expression": expression, "context": context}


def stop_at(**fields: Any) -> tuple[str, Any]:
    return "setFunctionBreakpoints", {"breakpoints": [{"name": "Relu", **fields}]}


REQUESTS: dict[str, tuple[str, Any]] = {
    **{
        f"{name} in {context}": evaluate(expression, context)
        for context in ("watch", "hover", "repl", "clipboard")
        for name, expression in {
            "code": CODE,
            "attribute of Python": "%x.__class__.__subclasses__()",
            "zeros of 2^62": f"zeros({LARGE})",
            "number of 100,000 digits": DIGITS,
            "line of 100,000 digits": f"break {DIGITS}",
            "deep parentheses": "(" * 9000,
            "escape sequences": ESCAPE,
        }.items()
    },
    "Python in the console": evaluate(f"py {CODE}", "watch"),
    "hit count of 100,000 digits": stop_at(hitCondition=DIGITS),
    "hit count that is code": stop_at(hitCondition=CODE),
    "condition that is code": stop_at(condition=CODE),
    "condition nested deeply": stop_at(condition="(" * 9000),
    "name of 100,000 characters": stop_at(name="a" * 100_000),
    "name with escape sequences": stop_at(name=ESCAPE),
    "line of 2^62": (
        "setBreakpoints",
        {"source": {"path": "m.nnc"}, "breakpoints": [{"line": 2**62}]},
    ),
    "negative line": ("setBreakpoints", {"source": {"path": "m.nnc"}, "breakpoints": [{"line": -(2**62)}]}),
    "log message that is code": (
        "setBreakpoints",
        {"source": {"path": "m.nnc"}, "breakpoints": [{"line": 5, "logMessage": f"{{{CODE}}}"}]},
    ),
    "source that is a pipe": ("source", {"sourceReference": 0, "source": {"path": "pipe"}}),
    "source outside the folder": ("source", {"sourceReference": 0, "source": {"path": "/etc/passwd"}}),
    "unknown source": ("source", {"sourceReference": 2**62}),
    "unknown frame": ("scopes", {"frameId": 2**62}),
    "negative frame": ("scopes", {"frameId": -1}),
    "unknown variables": ("variables", {"variablesReference": 2**62}),
    "part of 2^62 variables": ("variables", {"variablesReference": 1, "start": 2**62, "count": 2**62}),
    "frames from 2^62 on": ("stackTrace", {"threadId": 1, "startFrame": 2**62, "levels": 2**62}),
    "memory of 100,000 digits": ("readMemory", {"memoryReference": DIGITS, "count": 8}),
    "memory of 2^62 bytes": ("readMemory", {"memoryReference": "0x0", "count": 2**62}),
    "memory at a negative address": (
        "readMemory",
        {"memoryReference": "-0x9", "count": 8, "offset": -(2**62)},
    ),
    "bytes that are not base64": ("writeMemory", {"memoryReference": "0x0", "data": "\0"}),
    "disassembly of 2^62 lines": ("disassemble", {"memoryReference": "0x0", "instructionCount": 2**62}),
    "disassembly of 100,000 digits": ("disassemble", {"memoryReference": DIGITS, "instructionCount": 1}),
    "variable of 100,000 digits": (
        "setVariable",
        {"variablesReference": 1, "name": f"[{DIGITS}]", "value": "1"},
    ),
    "value that is code": ("setVariable", {"variablesReference": 1, "name": "%x", "value": CODE}),
    "completion at 2^62": ("completions", {"text": "p %x", "column": 2**62}),
    "completion of 100,000 characters": ("completions", {"text": "(" * 100_000, "column": 100_000}),
    "goto an unknown target": ("goto", {"threadId": 1, "targetId": 2**62}),
}


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One session for all requests: no request may end it."""
    folder = tmp_path_factory.mktemp("session")
    (folder / "m.nnc").write_text(SMALL)
    os.mkfifo(folder / "pipe")
    with conversation() as client:
        client.start(folder / "m.nnc")
        yield client


@pytest.mark.parametrize(("command", "arguments"), REQUESTS.values(), ids=REQUESTS)
def test_a_hostile_request_is_answered_and_the_session_continues(
    adapter: Client, command: str, arguments: Any
) -> None:
    response = adapter.expect_response(adapter.send(command, arguments), 10)
    text = str(response.get("message", "")) + str(response.get("body", {}).get("result", ""))
    assert "internal error" not in text
    assert "Traceback" not in text
    assert "root:" not in str(response)
    assert RAW.search(text.replace("\n", "")) is None
    assert len(text) < 120_000
    assert adapter.evaluate("6 * 7") == "42"


@pytest.fixture(scope="module")
def language_server() -> Iterator[LanguageClient]:
    client = LanguageClient()
    yield client
    client.process.kill()


@pytest.mark.parametrize("name", TEXTS)
def test_a_hostile_document_is_diagnosed_and_the_server_continues(
    language_server: LanguageClient, name: str
) -> None:
    uri = f"{Path(name.replace(' ', '_')).absolute().as_uri()}.nnc"
    language_server.open(uri, TEXTS[name][:30_000].replace("\0", "\u2400"))
    for method in ("documentSymbol", "foldingRange"):
        language_server.request(f"textDocument/{method}", {"textDocument": {"uri": uri}})
    language_server.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
