"""The time of a statement in the hover over its result."""

from __future__ import annotations

import re

from tests.dap_server.client import Client
from tests.dap_server.conftest import EXAMPLES

TIME = re.compile(r".* \([\d.]+ (?:ns|us|ms|s), [\d.]+ %\)")


def hover(client: Client, text: str, context: str = "hover") -> str:
    frame = client.top_frame()["id"]
    shown = client.request("evaluate", {"expression": text, "frameId": frame, "context": context})
    result = shown["result"]
    assert isinstance(result, str)
    return result


def test_a_hover_has_the_time_of_its_statement_after_set_times_on(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    client.evaluate("set times on", "repl")
    client.move("next")
    client.move("next")
    assert TIME.fullmatch(hover(client, "%h"))
    assert TIME.fullmatch(hover(client, "%scores"))
    for text, context in (("%x", "hover"), ("%h * 2", "hover"), ("%h", "watch"), ("%h", "variables")):
        assert not TIME.fullmatch(hover(client, text, context)), (text, context)
    client.evaluate("set times off", "repl")
    assert not TIME.fullmatch(hover(client, "%h"))
