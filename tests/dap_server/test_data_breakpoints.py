"""Stopping where a value is written, or makes a condition over its statistics true."""

from __future__ import annotations

from typing import Any

from tests.dap_server.client import Client, Message
from tests.dap_server.conftest import EXAMPLES

STEPS = EXAMPLES / "first_steps.nnc"
NEWTON = EXAMPLES / "refine_loop.nnc"


def ask(client: Client, name: str, **arguments: Any) -> Message:
    return client.request("dataBreakpointInfo", {"name": name, **arguments})


def watch(client: Client, *wanted: str | Message) -> list[Message]:
    breakpoints = [{"dataId": each} if isinstance(each, str) else each for each in wanted]
    told: list[Message] = client.request("setDataBreakpoints", {"breakpoints": breakpoints})["breakpoints"]
    return told


def test_a_value_by_name_and_by_expression(client: Client) -> None:
    client.start(STEPS)
    plain = ask(client, "%scores")
    assert plain["dataId"] == "%scores"
    assert plain["description"] == "%scores is written"
    assert plain["accessTypes"] == ["write"]
    assert plain["canPersist"] is True
    assert ask(client, "mean(scores)")["dataId"] == "%scores"
    frame = client.top_frame()["id"]
    assert ask(client, "std(%s.1) > 3", frameId=frame)["dataId"] == "%s.1: std(%s.1) > 3"
    assert ask(client, "any(%s.1 > 3)")["dataId"] == "%s.1: any(%s.1 > 3)"
    for name, why in [
        ("%nothing", "there is no value `%nothing`"),
        ("%scores + %s", "names 2 values"),
        ("1 + 1", "names no values"),
        ("%w", "is a constant"),
        ("std(", "expression ends"),
    ]:
        refused = ask(client, name)
        assert refused["dataId"] is None
        assert why in refused["description"], refused
    assert ask(client, "%scores", asAddress=True)["dataId"] is None


def test_a_value_in_the_list_of_variables(client: Client) -> None:
    client.start(STEPS)
    client.move("next")
    scopes = client.request("scopes", {"frameId": client.top_frame()["id"]})["scopes"]
    for scope in scopes:
        listed = client.request("variables", {"variablesReference": scope["variablesReference"]})["variables"]
        variable = next((each for each in listed if each["name"] == "%h"), None)
        if variable is not None:
            break
    assert variable is not None
    info = ask(client, "%h", variablesReference=scope["variablesReference"])
    assert info["dataId"] == "%h"
    part = ask(client, "[0]", variablesReference=variable["variablesReference"])
    assert part["dataId"] == "%h"
    assert ask(client, "nothing", variablesReference=scope["variablesReference"])["dataId"] is None
    assert ask(client, "%h", variablesReference=1)["dataId"] is None


def test_each_statement_that_writes_a_value_stops(client: Client) -> None:
    client.start(STEPS)
    told = watch(client, "%scores", {"dataId": "%taken", "hitCondition": "3"}, "%nothing", "scores")
    assert [each["verified"] for each in told] == [True, True, False, False]
    assert told[0]["line"] == 11
    assert "the program has no value %nothing" in told[2]["message"]
    assert "is not a valid dataId" in told[3]["message"]
    stop = client.move("continue", "data breakpoint")
    assert stop["hitBreakpointIds"] == [told[0]["id"]]
    assert client.top_frame()["line"] == 11
    stop = client.move("continue", "data breakpoint")
    assert stop["hitBreakpointIds"] == [told[1]["id"]]
    assert client.top_frame()["name"].endswith("#2")


def test_a_condition_over_statistics_turns_true(client: Client) -> None:
    client.start(NEWTON)
    wanted = {"dataId": "%most: %most < 0.2", "condition": "$iter > 0", "accessType": "write"}
    (told,) = watch(client, wanted)
    assert told["verified"], told
    stop = client.move("continue", "data breakpoint")
    assert stop["hitBreakpointIds"] == [told["id"]]
    assert "(%most < 0.2) and ($iter > 0)" in stop["text"]
    (same,) = watch(client, wanted)
    assert same["id"] == told["id"]


def test_reads_are_not_watched_and_odd_names_are(client: Client, tmp_path: Any) -> None:
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
    odd = ask(client, 'max(%"a: b") >= 0')["dataId"]
    assert odd == '%"a: b": max(%"a: b") >= 0'
    (told,) = watch(client, odd)
    assert told["verified"], told
    assert client.move("continue", "data breakpoint")["hitBreakpointIds"] == [told["id"]]
    assert client.top_frame()["line"] == 5
