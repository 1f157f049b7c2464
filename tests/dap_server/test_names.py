"""Every name that a client receives is accepted back: as a value, and as a function breakpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.commands.test_names import GRAPH, ODD, ROOT, VALUE, tokens
from tests.dap_server.client import Client


def texts(message: Any) -> list[str]:
    """Return the texts of a message that can contain names."""
    if isinstance(message, dict):
        return [text for key, each in message.items() if key != "type" for text in texts(each)]
    if isinstance(message, list):
        return [text for each in message for text in texts(each)]
    return [message] if isinstance(message, str) and not message.startswith("/") else []


@pytest.mark.parametrize("model", ["tests/models/exported/attention_script.onnx", "odd names"])
def test_names_of_messages_are_values_and_places(client: Client, tmp_path: Path, model: str) -> None:
    path = ROOT / model
    if model == "odd names":
        path = tmp_path / "odd.nnc"
        path.write_text(ODD, encoding="utf-8")
    client.start(path)
    seen: dict[str, None] = {}
    for move in ("next", "stepIn", "next", "stepIn", "next"):
        client.move(move)
        frame = client.top_frame()["id"]
        scopes = client.request("scopes", {"frameId": frame})["scopes"]
        shown = [client.request("stackTrace", {"threadId": 1}), scopes]
        for scope in scopes:
            reference = scope["variablesReference"]
            found = client.request("variables", {"variablesReference": reference})["variables"]
            shown += [[each["name"], each.get("evaluateName")] for each in found]
        for text in texts(shown):
            seen.update(dict.fromkeys(tokens(VALUE, text)))
            seen.update(dict.fromkeys(tokens(GRAPH, re.sub(r" #\d+$", "", text))))
    frame = client.top_frame()["id"]
    for name in [each for each in seen if each.startswith("%")]:
        answer = client.request("dataBreakpointInfo", {"name": name, "frameId": frame})
        assert "no value" not in answer["description"]
        assert "named" not in answer["description"]
    answer = client.request("setFunctionBreakpoints", {"breakpoints": [{"name": name} for name in seen]})
    refused = [
        (name, each.get("message"))
        for name, each in zip(seen, answer["breakpoints"], strict=True)
        if not each["verified"]
    ]
    assert len(seen) > 5
    assert refused == []


def test_completions_offer_names_that_are_places(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "odd.nnc"
    path.write_text(ODD, encoding="utf-8")
    client.start(path)
    for typed, wanted in {
        "break @lay": '@"layer 0"',
        'break @"lay': '@"layer 0"',
        "break /model": "/model/encoder/layer.0/Log",
        'break "a no': '"a node: 1"',
        "until Sq": "Sqrt",
        "list @ma": "@main",
        'print %"a n': '%"a name"',
    }.items():
        found = client.request("completions", {"text": typed, "column": len(typed) + 1})["targets"]
        assert wanted in [each["text" if "text" in each else "label"] for each in found], typed
