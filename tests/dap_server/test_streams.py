"""Streams of a schedule are threads: the host, and one for each stream with its next statement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dap_server.client import Client, stdio_client
from tests.dap_server.conftest import EXAMPLES


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with stdio_client(cwd=tmp_path) as made:
        yield made


def frames(client: Client, thread: int) -> list[tuple[str, int]]:
    found = client.request("stackTrace", {"threadId": thread})["stackFrames"]
    return [(each["name"], each["line"]) for each in found]


def thread_names(client: Client) -> dict[int, str]:
    return {each["id"]: each["name"] for each in client.request("threads")["threads"]}


def test_streams_are_threads(client: Client) -> None:
    client.start(EXAMPLES / "two_streams.nnc")
    assert thread_names(client) == {1: "host", 2: "s0 (cuda:0)", 3: "s1 (cuda:0)"}
    assert frames(client, 1) == [("@main", 8)]
    assert frames(client, 2) == [("Relu", 8)]
    assert frames(client, 3) == [("Sigmoid", 9)]
    move(client, 2)
    assert frames(client, 2) == [("Add, waits for e2 of line 9", 11)]
    stop = move(client, 3)
    assert stop["threadId"] == 3, "the editor stays at the stream that it steps"
    assert frames(client, 3) == [("Mul", 10)]
    assert frames(client, 2) == [("Add", 11)]
    move(client, 3)
    assert frames(client, 3) == []
    assert client.move("next")["threadId"] == 1


def move(client: Client, thread: int) -> dict[str, Any]:
    return client.move("next", threadId=thread)


def test_ids_of_frames_differ_and_have_values(client: Client) -> None:
    client.start(EXAMPLES / "two_streams.nnc")
    client.move("next")
    ids = [client.request("stackTrace", {"threadId": each})["stackFrames"][0]["id"] for each in (1, 2, 3)]
    assert len({*ids}) == 3
    for frame in ids:
        assert client.request("scopes", {"frameId": frame})["scopes"]
        answer = client.request("evaluate", {"expression": "max(%shift) > 0", "frameId": frame})
        assert answer["result"] == "true"


def test_a_breakpoint_of_one_stream_stops_there(client: Client) -> None:
    client.launch(EXAMPLES / "two_streams.nnc")
    lines = [{"line": line, "condition": "$stream == 1"} for line in range(8, 13)]
    source = {"path": str(EXAMPLES / "two_streams.nnc")}
    client.request("setBreakpoints", {"source": source, "breakpoints": lines})
    client.request("configurationDone")
    client.expect_stop("breakpoint")
    assert frames(client, 1) == [("@main", 9)]
    client.move("continue", "breakpoint")
    assert frames(client, 1) == [("@main", 10)]
    client.request("continue", {"threadId": 3})
    client.expect_event("terminated")


def test_an_unknown_thread_is_refused(client: Client) -> None:
    client.start(EXAMPLES / "two_streams.nnc")
    for command in ("stackTrace", "next", "continue", "stepIn", "stepBack"):
        assert "there is no thread 9" in client.refused(command, {"threadId": 9})


def test_a_program_without_schedule_has_one_thread(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    assert thread_names(client) == {1: "main"}
    assert "there is no thread 2" in client.refused("stackTrace", {"threadId": 2})


def test_steps_of_a_stream_are_recorded_as_commands(client: Client, tmp_path: Path) -> None:
    client.start(EXAMPLES / "two_streams.nnc", record="r.log", cwd=str(tmp_path))
    move(client, 3)
    client.send("disconnect")
    client.expect_end()
    text = (tmp_path / "r.log").read_text()
    assert [word for word in ('"stream s1"', '"next"', '"stream all"') if word in text] == [
        '"stream s1"',
        '"next"',
        '"stream all"',
    ]


def test_a_launch_plays_an_order_whose_statements_lead_to_the_lines_of_the_text(client: Client) -> None:
    text = EXAMPLES / "two_streams.nnc"
    client.start(text, order=2)
    bound = client.request("setBreakpoints", {"source": {"path": str(text)}, "breakpoints": [{"line": 11}]})
    assert bound["breakpoints"][0]["verified"]
    client.move("continue")
    stack = client.request("stackTrace", {"threadId": 1})["stackFrames"]
    assert [each["name"] for each in stack] == ["@main", "two_streams.nnc:11"]
    assert Path(stack[0]["source"]["path"]).parent.name == ".nncdbg", "the order has a listing of its own"
    assert stack[1]["source"]["path"] == str(text)
    answer = client.request(
        "evaluate", {"expression": "isnan(max(%scaled.stale))", "frameId": stack[0]["id"]}
    )
    assert answer["result"] == "true", "Add reads %scaled before Mul has written it"
