"""Streams of a schedule are threads: the host, and one for each stream with its next statement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dap_server.client import Client, stdio_client
from tests.dap_server.conftest import EXAMPLES

pytestmark = pytest.mark.usefixtures("forked_processes")


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
    client.move("continue", "breakpoint")
    stack = client.request("stackTrace", {"threadId": 1})["stackFrames"]
    assert [each["name"] for each in stack] == ["@main", "two_streams.nnc:11"]
    assert Path(stack[0]["source"]["path"]).parent.name == ".nncdbg", "the order has a listing of its own"
    assert stack[1]["source"]["path"] == str(text)
    answer = client.request(
        "evaluate", {"expression": "isnan(max(%scaled.stale))", "frameId": stack[0]["id"]}
    )
    assert answer["result"] == "true", "Add reads %scaled before Mul has written it"


def shown(answer: dict[str, Any]) -> list[tuple[str, str, int, float, str]]:
    """Return the lane, name, line, start and state of each statement of a timeline."""
    return [
        (answer["lanes"][each["lane"]]["name"], each["name"], each["line"], each["start"], each["state"])
        for each in answer["statements"]
    ]


def test_the_timeline_has_a_lane_per_stream_with_waits_and_the_next_statements(client: Client) -> None:
    client.start(EXAMPLES / "two_streams.nnc")
    move(client, 2)
    answer = client.request("nncdbg/streams")
    assert shown(answer) == [
        ("s0", "%shift Relu", 8, 0, ""),
        ("s1", "%scale Sigmoid", 9, 0, "current"),
        ("s1", "%scaled Mul", 10, 1, ""),
        ("s0", "%sum Add", 11, 1, "next"),
        ("s0", "%y Softmax", 12, 2, ""),
        ("host", "main end", 13, 3, "next"),
    ]
    assert answer["waits"] == [["e2", 1, 3], ["e3", 4, 5]]
    assert [each["waits"] for each in answer["lanes"]][1:] == [["waits for e2 of line 9"], []]
    assert answer["lanes"][2]["device"] == "cuda:0"
    assert answer["statements"][3]["events"] == ["wait e2"]
    assert answer["source"]["path"] == str(EXAMPLES / "two_streams.nnc")


def test_a_timeline_shows_measured_times_once_there_are_any(client: Client) -> None:
    client.start(EXAMPLES / "two_streams.nnc")
    assert not client.request("nncdbg/streams")["measured"]
    client.evaluate("set times on", context="repl")
    move(client, 2)
    answer = client.request("nncdbg/streams")
    assert answer["measured"]
    durations = [each["duration"] for each in answer["statements"]]
    assert durations[0] > 0
    assert durations[1:] == [0] * 5, "only the first statement has run"


@pytest.mark.parametrize(("steps", "line"), [(0, 33), (1, 33), (4, 11), (5, 11), (6, 12), (7, 13)])
def test_a_program_without_a_schedule_has_one_lane(client: Client, steps: int, line: int) -> None:
    """The current statement of a call is the first one inside; that of a `return`, the one after the call."""
    client.start(EXAMPLES / "first_steps.nnc")
    for _ in range(steps):
        client.move("stepIn")
    answer = client.request("nncdbg/streams")
    assert [each["name"] for each in answer["lanes"]] == ["host"]
    assert answer["waits"] == []
    assert {each["line"] for each in answer["statements"] if each["state"] == "current"} == {line}


def test_a_large_timeline_has_the_statements_around_the_current_one(client: Client, tmp_path: Path) -> None:
    lines = [f"  %v{at + 1}: f32[2] = Relu(%v{at}) | s{at % 2} record e{at}" for at in range(5000)]
    program = tmp_path / "long.nnc"
    text = "\n".join(["graph @main(%v0: f32[2]) -> (%v5000: f32[2]) {", *lines, "  return %v5000", "}", ""])
    program.write_text(text, encoding="utf-8")
    client.start(program)
    client.request("setBreakpoints", {"source": {"path": str(program)}, "breakpoints": [{"line": 4000}]})
    client.move("continue", "breakpoint")
    answer = client.request("nncdbg/streams")
    assert len(answer["statements"]) == 2000
    assert answer["leftOut"] == 3001
    [current] = [at for at, each in enumerate(answer["statements"]) if each["state"] == "current"]
    assert current == 1000


def test_races_of_the_schedule_are_pairs_of_statements(client: Client, tmp_path: Path) -> None:
    text = (EXAMPLES / "two_streams.nnc").read_text(encoding="utf-8")
    ordered = text.replace("| s1 record e2", "| s1").replace("| s1\n  %sum", "| s1 record e2\n  %sum")
    (tmp_path / "ordered.nnc").write_text(ordered, encoding="utf-8")
    client.start("ordered.nnc")
    assert client.request("nncdbg/streams")["races"] == []
    with stdio_client(cwd=tmp_path) as other:
        other.start(EXAMPLES / "two_streams.nnc")
        body = other.request("nncdbg/streams")
    ((access, value, first, second),) = body["races"]
    assert (access, value) == ("write-read", "%scaled")
    assert [body["statements"][at]["line"] for at in (first, second)] == [10, 11]
