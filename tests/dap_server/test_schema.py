"""The message validator: accepted and refused messages, and error paths."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from tests.dap_server import schema
from tests.dap_server.schema import needs_schema, validate

pytestmark = needs_schema

Message = dict[str, Any]
FRAME = {"id": 1, "name": "main", "line": 3, "column": 1}


def response(command: str, body: Any = None, **fields: Any) -> Message:
    message = {"seq": 2, "type": "response", "request_seq": 1, "success": True, "command": command, **fields}
    return message if body is None else {**message, "body": body}


def event(name: str, body: Any = None) -> Message:
    message = {"seq": 2, "type": "event", "event": name}
    return message if body is None else {**message, "body": body}


def failed(body: Any, command: str = "stackTrace") -> Message:
    return response(command, body, success=False, message="no such thread")


GOOD = {
    "response": response("stackTrace", {"stackFrames": [FRAME], "totalFrames": 1}),
    "no body": response("next"),
    "optional body omitted": response("initialize"),
    "capabilities": response("initialize", {"supportsStepBack": True}),
    "own property": response("scopes", {"scopes": [], "nncdbgDtype": "f32"}),
    "event": event("stopped", {"reason": "step", "threadId": 1}),
    "open reason": event("stopped", {"reason": "goal reached"}),
    "event without body": event("initialized"),
    "own event": event("nncdbg/statistics", {"anything": [1]}),
    "failure": failed({"error": {"id": 1, "format": "{what}", "variables": {"what": "x"}, "showUser": True}}),
    "failure of an unknown command": failed({}, "noSuchCommand"),
    "merged base": {
        "seq": 1,
        "type": "request",
        "command": "stackTrace",
        "arguments": {"threadId": 1, "format": {"hex": True, "line": True}},
    },
    "launch with more arguments": {
        "seq": 1,
        "type": "request",
        "command": "launch",
        "arguments": {"program": "model.onnx", "noDebug": False},
    },
    "reverse request": {
        "seq": 1,
        "type": "request",
        "command": "startDebugging",
        "arguments": {"request": "launch", "configuration": {"any": 1}},
    },
    "null that is allowed": response("dataBreakpointInfo", {"dataId": None, "description": "constant"}),
}

BAD = {
    "no type": ({"seq": 1}, "$.type"),
    "no seq": ({"type": "event", "event": "initialized"}, "'seq' is a required property"),
    "seq of zero": ({**event("initialized"), "seq": 0}, "$.seq"),
    "unknown command": (response("stacktrace"), "$.command: 'stacktrace'"),
    "command in capitals": (response("StackTrace"), "$.command: 'StackTrace'"),
    "unknown event": (event("paused"), "$.event: 'paused'"),
    "event without name": ({"seq": 1, "type": "event"}, "$.event: None"),
    "no body": (response("stackTrace"), "'body' is a required property"),
    "missing in depth": (
        response("stackTrace", {"stackFrames": [FRAME, {"id": 1}]}),
        "$.body.stackFrames[1]",
    ),
    "wrong type": (response("threads", {"threads": [{"id": "1", "name": "a"}]}), "$.body.threads[0].id"),
    "boolean instead of a number": (
        response("threads", {"threads": [{"id": True, "name": "a"}]}),
        "$.body.threads[0].id",
    ),
    "null instead of omitted": (
        response("stackTrace", {"stackFrames": [{**FRAME, "source": None}]}),
        "$.body.stackFrames[0].source",
    ),
    "not of the enum": (
        response("stackTrace", {"stackFrames": [{**FRAME, "presentationHint": "loud"}]}),
        "$.body.stackFrames[0].presentationHint",
    ),
    "misspelt capability": (response("initialize", {"supportsStepBackwards": True}), "supportsStepBackwards"),
    "misspelt in an event": (
        event("capabilities", {"capabilities": {"supportStepBack": True}}),
        "$.body.cap",
    ),
    "unknown in a body": (event("stopped", {"reason": "step", "thread": 1}), "'thread'"),
    "unknown in depth": (
        response("stackTrace", {"stackFrames": [{**FRAME, "source": {"sourcePath": "a"}}]}),
        "$.body.stackFrames[0].source",
    ),
    "unknown beside the body": ({**event("initialized"), "bodies": {}}, "'bodies'"),
    "too wide": (
        response("evaluate", {"result": "x", "variablesReference": 2**31}),
        "$.body.variablesReference",
    ),
    "negative column": (response("stackTrace", {"stackFrames": [{**FRAME, "column": -1}]}), ".column"),
    "failure without body": (response("next", success=False, message="no"), "'body' is a required property"),
    "failure with a bad error": (
        failed({"error": {"id": 1, "format": "x", "variables": {"a": 1}}}),
        "variables.a",
    ),
}


@pytest.mark.parametrize("message", GOOD.values(), ids=GOOD)
def test_good_messages_pass(message: Message) -> None:
    validate(message)


@pytest.mark.parametrize(("message", "path"), BAD.values(), ids=BAD)
def test_bad_messages_are_refused_with_their_path(message: Message, path: str) -> None:
    with pytest.raises(AssertionError) as caught:
        validate(message)
    assert path in str(caught.value)


def test_all_errors_are_reported() -> None:
    with pytest.raises(AssertionError) as caught:
        validate(response("threads", {"threads": [{"id": "1", "name": 2}], "thread": []}))
    text = str(caught.value)
    assert "ThreadsResponse" in text
    for path in ("$.body.threads[0].id", "$.body.threads[0].name", "$.body:"):
        assert path in text


def test_every_message_of_the_protocol_has_a_definition() -> None:
    """Each definition follows from the name of the message, and none allows an unnamed property."""
    kinds = Counter[str]()
    for name in schema.definitions():
        parts = re.fullmatch(r"([A-Z]\w+)(Request|Response|Event)", name)
        if parts is None or name == "ErrorResponse":
            continue
        word, kind = parts[1][0].lower() + parts[1][1:], parts[2].lower()
        message = {"seq": 1, "type": kind, "event" if kind == "event" else "command": word, "success": True}
        assert schema.definition_of(message) == name
        with pytest.raises(AssertionError, match="'zzz'"):
            validate({**message, "zzz": 1})
        kinds[kind] += 1
    assert kinds == {"request": 45, "response": 45, "event": 17}
