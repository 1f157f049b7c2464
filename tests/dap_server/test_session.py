"""A session from start to end."""

from __future__ import annotations

from tests.dap_server.client import Client
from tests.dap_server.conftest import EXAMPLES


def test_stop_on_entry_step_and_run_to_the_end(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    client.move("next")
    client.move("stepIn")
    client.request("continue", {"threadId": 1})
    client.expect_event("exited", exitCode=0)
    client.expect_event("terminated")


def test_requests_in_a_wrong_state_are_refused_with_a_hint(client: Client) -> None:
    assert "send initialize first" in client.refused("next", {"threadId": 1})
    client.request("initialize", {"adapterID": "nncdbg"})
    assert "send launch or attach first" in client.refused("next", {"threadId": 1})
    assert "unknown request 'foo'" in client.refused("foo")
