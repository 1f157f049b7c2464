"""Messages about a model with hostile names have no raw control characters in displayed text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nncdbg.dap_server.transport.connection import harmless
from nncdbg.escaping import printable
from tests.dap_server.client import Client
from tests.dap_server.conversations import conversation
from tests.dap_server.odd_values import FLAGS
from tests.hostile import ATTACK, RAW, hostile, hostile_model

EXACT = {"path", "uri", "file", "command", "content"}
"""Fields that name a file or quote a request; a client opens or compares them, and does not print them."""


def shown(content: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield (place, text) of each text in a message that a client may display."""
    if isinstance(content, dict):
        for key, value in content.items():
            assert not RAW.findall(key), (where, key)
            if key not in EXACT:
                yield from shown(value, f"{where}.{key}")
    elif isinstance(content, list):
        for value in content:
            yield from shown(value, where)
    elif isinstance(content, str):
        yield where, content


def raw_controls(client: Client) -> list[tuple[str, str]]:
    """Return (place, text) of the displayed texts with a raw control character."""
    found = []
    for message in client.messages:
        name = message.get("command") or message["event"]
        found += [(place, text) for place, text in shown(message, name) if RAW.findall(text)]
    return found


def request_everything(client: Client) -> None:
    """Send every request that an editor sends at a stop."""
    trace = client.request(
        "stackTrace", {"threadId": 1, "format": {"parameters": True, "parameterTypes": True}}
    )
    frames = trace["stackFrames"]
    for frame in frames:
        for scope in client.request("scopes", {"frameId": frame["id"]})["scopes"]:
            listed = client.request("variables", {"variablesReference": scope["variablesReference"]})
            for variable in listed["variables"][:3]:
                if variable["variablesReference"]:
                    client.request("variables", {"variablesReference": variable["variablesReference"]})
                client.send("dataBreakpointInfo", {"name": variable["name"], "frameId": frame["id"]})
    frame_id = frames[0]["id"]
    for name in ("bad", "last", "gone"):
        client.send("evaluate", {"expression": f"%{hostile(name)}", "frameId": frame_id, "context": "hover"})
        client.send(
            "evaluate", {"expression": f'%"{hostile(name)}"', "frameId": frame_id, "context": "watch"}
        )
    for line in ("list", "where", "info values", "why", f"p {ATTACK}", "break @nowhere"):
        client.send("evaluate", {"expression": line, "frameId": frame_id, "context": "repl"})
    source = frames[0]["source"]
    client.send("gotoTargets", {"source": source, "line": frames[0]["line"]})
    client.send("breakpointLocations", {"source": source, "line": 1, "endLine": 99})
    client.send("completions", {"text": "p %", "column": 4, "frameId": frame_id})
    client.send("stepInTargets", {"frameId": frame_id})
    client.send("modules")
    client.send("loadedSources")
    client.send("exceptionInfo", {"threadId": 1})
    for command in ("map", "marks", "timeline", "stats", "nearby", "slice", "histogram", "lines"):
        client.send(f"nncdbg/{command}", {"frameId": frame_id, "name": hostile("bad"), "expression": "%x"})
    client.request("threads")


@pytest.mark.parametrize("char", [*map(chr, (0, 7, 8, 12, 13, 27, 127, 155)), "\u202e", "\u2066", "\ufeff"])
def test_a_text_with_one_hostile_character_is_escaped(char: str) -> None:
    message = {"type": "response", "body": {"name": f"a{char}b…", "path": f"/{char}"}}
    sent = json.loads(harmless(message, msgspec.json.encode(message)))
    assert sent["body"] == {"name": f"a{printable(char)}b…", "path": f"/{char}"}


@pytest.mark.parametrize(
    "text", ["f32[2] mean 0.5 … “é” 漢", 'a "quoted" \\ word', "tab\t newline\n", "no\u00a0break"]
)
def test_a_harmless_text_is_sent_unchanged(text: str) -> None:
    message = {"type": "event", "body": text}
    encoded = msgspec.json.encode(message)
    assert harmless(message, encoded) is encoded


def test_no_message_shows_a_raw_control(tmp_path: Path) -> None:
    model = hostile_model(tmp_path)
    with conversation() as client:
        client.launch(
            model, initialize=FLAGS, stopOnEntry=True, cwd=str(tmp_path), inputs={hostile("x"): "ones"}
        )
        client.request("setExceptionBreakpoints", {"filters": ["nan"]})
        client.request("setFunctionBreakpoints", {"breakpoints": [{"name": hostile("nothing")}]})
        client.request("configurationDone")
        client.expect_stop("entry")
        request_everything(client)
        client.move("stepIn")
        client.move("next")
        request_everything(client)
        client.request("continue", {"threadId": 1})
        client.expect_stop("exception")
        request_everything(client)
        client.refused("launch", {"program": str(tmp_path / hostile("missing.onnx"))})
        found = raw_controls(client)
    assert any("owned" in text for message in client.messages for _, text in shown(message))
    assert not found, "\n".join(f"{place}: {text!r}" for place, text in found)
