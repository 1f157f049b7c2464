"""Data breakpoints: a stop when a value is written, or a condition on it turns true."""

from __future__ import annotations

from typing import Any

from tests.dap_server.client import Client, Message
from tests.dap_server.conftest import EXAMPLES

STEPS = EXAMPLES / "first_steps.nnc"
NEWTON = EXAMPLES / "refine_loop.nnc"


def data_breakpoint_info(client: Client, name: str, **arguments: Any) -> Message:
    return client.request("dataBreakpointInfo", {"name": name, **arguments})


def watch(client: Client, *wanted: str | Message) -> list[Message]:
    breakpoints = [{"dataId": each} if isinstance(each, str) else each for each in wanted]
    reported: list[Message] = client.request("setDataBreakpoints", {"breakpoints": breakpoints})[
        "breakpoints"
    ]
    return reported


def test_a_data_breakpoint_takes_a_name_or_an_expression(client: Client) -> None:
    client.start(STEPS)
    plain = data_breakpoint_info(client, "%scores")
    assert plain["dataId"] == "%scores"
    assert plain["description"] == "%scores is written"
    assert plain["accessTypes"] == ["write"]
    assert plain["canPersist"] is True
    assert data_breakpoint_info(client, "mean(scores)")["dataId"] == "%scores"
    frame = client.top_frame()["id"]
    assert data_breakpoint_info(client, "std(%s.1) > 3", frameId=frame)["dataId"] == "%s.1: std(%s.1) > 3"
    assert data_breakpoint_info(client, "any(%s.1 > 3)")["dataId"] == "%s.1: any(%s.1 > 3)"
    for name, why in [
        ("%nothing", "there is no value `%nothing`"),
        ("%scores + %s", "names 2 values"),
        ("1 + 1", "names no values"),
        ("%w", "is a constant"),
        ("std(", "expression ends"),
    ]:
        refused = data_breakpoint_info(client, name)
        assert refused["dataId"] is None
        assert why in refused["description"], refused
    assert data_breakpoint_info(client, "%scores", asAddress=True)["dataId"] is None


def test_a_listed_variable_can_be_watched(client: Client) -> None:
    client.start(STEPS)
    client.move("next")
    scopes = client.request("scopes", {"frameId": client.top_frame()["id"]})["scopes"]
    for scope in scopes:
        listed = client.request("variables", {"variablesReference": scope["variablesReference"]})["variables"]
        variable = next((each for each in listed if each["name"] == "%h"), None)
        if variable is not None:
            break
    assert variable is not None
    info = data_breakpoint_info(client, "%h", variablesReference=scope["variablesReference"])
    assert info["dataId"] == "%h"
    part = data_breakpoint_info(client, "[0]", variablesReference=variable["variablesReference"])
    assert part["dataId"] == "%h"
    assert (
        data_breakpoint_info(client, "nothing", variablesReference=scope["variablesReference"])["dataId"]
        is None
    )
    assert data_breakpoint_info(client, "%h", variablesReference=1)["dataId"] is None


def test_each_write_of_a_value_stops(client: Client) -> None:
    client.start(STEPS)
    reported = watch(client, "%scores", {"dataId": "%taken", "hitCondition": "3"}, "%nothing", "scores")
    assert [each["verified"] for each in reported] == [True, True, False, False]
    assert reported[0]["line"] == 11
    assert "the program has no value %nothing" in reported[2]["message"]
    assert "is not a valid dataId" in reported[3]["message"]
    stop = client.move("continue", "data breakpoint")
    assert stop["hitBreakpointIds"] == [reported[0]["id"]]
    assert client.top_frame()["line"] == 11
    stop = client.move("continue", "data breakpoint")
    assert stop["hitBreakpointIds"] == [reported[1]["id"]]
    assert client.top_frame()["name"].endswith("#2")


def test_a_condition_over_statistics_stops_when_it_turns_true(client: Client) -> None:
    client.start(NEWTON)
    wanted = {"dataId": "%most: %most < 0.2", "condition": "$iter > 0", "accessType": "write"}
    (reported,) = watch(client, wanted)
    assert reported["verified"], reported
    stop = client.move("continue", "data breakpoint")
    assert stop["hitBreakpointIds"] == [reported["id"]]
    assert "(%most < 0.2) and ($iter > 0)" in stop["text"]
    (same,) = watch(client, wanted)
    assert same["id"] == reported["id"]


def test_reads_cannot_be_watched_and_unusual_names_can(client: Client, tmp_path: Any) -> None:
    program = tmp_path / "odd.nnc"
    program.write_text(
        "#nncdbg 1\nopset 18\n\n"
        "graph @main(%x: f32[2]) -> (%out: f32[2]) {\n"
        '  %"a: b" : f32[2] = Relu(%x)\n'
        '  %out: f32[2] = Neg(%"a: b")\n'
        "  return %out\n}\n"
    )
    client.start(program)
    read, both = watch(
        client, {"dataId": "%out", "accessType": "read"}, {"dataId": "%out", "accessType": "readWrite"}
    )
    assert not read["verified"]
    assert "when a value is read" in read["message"]
    assert not both["verified"]
    odd = data_breakpoint_info(client, 'max(%"a: b") >= 0')["dataId"]
    assert odd == '%"a: b": max(%"a: b") >= 0'
    (reported,) = watch(client, odd)
    assert reported["verified"], reported
    assert client.move("continue", "data breakpoint")["hitBreakpointIds"] == [reported["id"]]
    assert client.top_frame()["line"] == 5
