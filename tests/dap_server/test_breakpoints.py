"""Breakpoints at lines, functions and instructions: binding, conditions and reports."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.dap_server.client import Client, Message, stdio_client
from tests.dap_server.conftest import EXAMPLES

STEPS = EXAMPLES / "first_steps.nnc"
NEWTON = EXAMPLES / "refine_loop.nnc"

MODEL = """#nncdbg 1
opset 18

graph @main(%x: f32[4]) -> (%out: f32[4]) {
  %a: f32[4] = Relu(%x) loc("net.py":12)
  %b: f32[4] = Neg(%a) loc("net.py":12)
  %out: f32[4] = Add(%a, %b) loc("net.py":15)
  return %out
}
"""

ENDLESS = """#nncdbg 1
opset 18

graph @main(%x: f32[4]) -> (%out: f32[4]) {
  %yes: bool[] = Equal(0, 0)
  while @forever (%s: f32[4] = %x) {
    break unless %yes
    %t: f32[4] = Neg(%s)
    %u: f32[4] = Neg(%t)
    next %s = %u
  } -> (%out: f32[4] = %s)
  return %out
}
"""


def set_lines(client: Client, path: Path | str, *wanted: int | Message, **more: Any) -> list[Message]:
    breakpoints = [each if isinstance(each, dict) else {"line": each} for each in wanted]
    arguments = {"source": {"path": str(path)}, "breakpoints": breakpoints, **more}
    reported: list[Message] = client.request("setBreakpoints", arguments)["breakpoints"]
    assert len(reported) == len(wanted)
    return reported


def set_functions(client: Client, *names: str, **terms: str) -> list[Message]:
    wanted = [{"name": name, **terms} for name in names]
    reported: list[Message] = client.request("setFunctionBreakpoints", {"breakpoints": wanted})["breakpoints"]
    return reported


def resume(client: Client, reason: str = "breakpoint") -> Message:
    return client.move("continue", reason)


def iteration(client: Client) -> int:
    """Return the loop iteration of the innermost frame."""
    return int(client.top_frame()["name"].rpartition("#")[2])


def written(folder: Path, text: str, name: str = "graph.nnc") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_line_breakpoints_bind_move_or_are_refused_with_a_reason(client: Client) -> None:
    client.start(STEPS)
    reported = set_lines(client, STEPS, 11, 1, 10_000)
    assert [each["verified"] for each in reported] == [True, True, False]
    assert [each["line"] for each in reported] == [11, 10, 10_000]
    assert reported[1]["message"] == "line 1 has no statement; moved to line 10"
    assert reported[2]["message"].startswith("no statement at or after line 10000")
    (elsewhere,) = set_lines(client, "/nowhere/other.py", 3)
    assert not elsewhere["verified"]
    assert elsewhere["message"].startswith("no statement in the program comes from other.py")
    assert str(STEPS) in elsewhere["message"]
    stop = resume(client)
    assert stop["hitBreakpointIds"] == [reported[0]["id"]]
    assert client.top_frame()["line"] == 11


def test_a_new_list_replaces_the_breakpoints_of_a_source_and_keeps_unchanged_ids(client: Client) -> None:
    client.start(STEPS)
    first = set_lines(client, STEPS, 11, 13, 13)
    assert len({each["id"] for each in first}) == 3
    second = set_lines(client, STEPS, 13, {"line": 13, "condition": "$iter == 2"}, 33)
    assert second[0]["id"] == first[1]["id"]
    assert second[1]["id"] not in {each["id"] for each in first}
    functions = set_functions(client, "Relu")
    assert set_lines(client, "/nowhere/other.py") == []
    assert resume(client)["hitBreakpointIds"] == [second[2]["id"]]
    assert resume(client, "function breakpoint")["hitBreakpointIds"] == [functions[0]["id"]]
    assert resume(client)["hitBreakpointIds"] == [second[0]["id"]]
    legacy = client.request("setBreakpoints", {"source": {"path": str(STEPS)}, "lines": [28]})["breakpoints"]
    assert [each["line"] for each in legacy] == [28]
    resume(client)
    assert client.top_frame()["line"] == 28


def test_columns_are_returned_and_a_changed_text_is_reported(client: Client) -> None:
    client.start(STEPS)
    reported = set_lines(client, STEPS, {"line": 11, "column": 9}, sourceModified=True)
    assert reported[0]["column"] == 3
    assert reported[0]["endColumn"] > 20
    assert "the text that was loaded" in reported[0]["message"]


def test_breakpoints_set_before_the_launch_are_bound_by_it(client: Client) -> None:
    client.request("initialize", {"adapterID": "nncdbg"})
    (reported,) = set_lines(client, STEPS, 12)
    assert not reported["verified"]
    assert reported["reason"] == "pending"
    (function,) = set_functions(client, "Sofmax")
    client.request("launch", {"program": str(STEPS)})
    changed = [client.expect_event("breakpoint", reason="changed")["breakpoint"] for _ in range(2)]
    assert {each["id"]: each["verified"] for each in changed} == {reported["id"]: True, function["id"]: False}
    assert changed[1]["reason"] == "failed"
    client.expect_event("initialized")
    client.request("configurationDone")
    assert client.expect_stop("breakpoint")["hitBreakpointIds"] == [reported["id"]]


def test_breakpoints_are_kept_across_a_restart(client: Client) -> None:
    client.start(STEPS)
    (line,) = set_lines(client, STEPS, {"line": 17, "hitCondition": "2"})
    address = client.top_frame()["instructionPointerReference"]
    reported = client.request(
        "setInstructionBreakpoints", {"breakpoints": [{"instructionReference": address, "offset": 1}]}
    )
    (instruction,) = reported["breakpoints"]
    assert instruction["line"] == 11
    assert resume(client, "instruction breakpoint")["hitBreakpointIds"] == [instruction["id"]]
    resume(client)
    assert iteration(client) == 1
    client.request("restart")
    client.expect_stop("entry")
    assert resume(client, "instruction breakpoint")["hitBreakpointIds"] == [instruction["id"]]
    assert resume(client)["hitBreakpointIds"] == [line["id"]]
    assert iteration(client) == 1


def test_hit_conditions_count_in_a_loop(client: Client) -> None:
    client.start(STEPS)
    rules = [(13, "3"), (14, ">=5"), (15, "%4"), (13, "<2"), (14, "==1")]
    reported = set_lines(client, STEPS, *({"line": line, "hitCondition": rule} for line, rule in rules))
    assert all(each["verified"] for each in reported)
    hits = []
    for _ in range(6):
        hit = resume(client)["hitBreakpointIds"]
        which = [each["id"] for each in reported].index(hit[0])
        hits.append((client.top_frame()["line"], iteration(client), which))
    assert hits == [(13, 0, 3), (14, 0, 4), (13, 2, 0), (15, 3, 2), (14, 4, 1), (14, 5, 1)]
    client.request("continue", {"threadId": 1})
    client.expect_event("exited", exitCode=0)


def test_conditions_that_do_not_parse_are_refused(client: Client) -> None:
    client.start(STEPS)
    cases = [
        ({"hitCondition": "often"}, "hit count 'often' is not a number"),
        ({"condition": "std(%s"}, "expected `,` or `)`"),
        ({"condition": "%nothing > 1"}, "there is no value `%nothing`"),
        ({"condition": "%s.1 > " + "1 + " * 5000 + "1"}, "at most 10000 are allowed"),
        ({"logMessage": "mean {mean(%s)"}, "is not closed"),
    ]
    reported = set_lines(client, STEPS, *({"line": 17, **terms} for terms, _ in cases))
    for each, (_, message) in zip(reported, cases, strict=True):
        assert not each["verified"]
        assert message in each["message"]
        assert each["reason"] == "failed"


def test_a_long_condition_works_and_a_failing_one_stops_with_a_message(client: Client) -> None:
    client.start(STEPS)
    long = " or ".join(["$iter == 3", *(f"$iter == {number}" for number in range(100, 160))])
    (reported,) = set_lines(client, STEPS, {"line": 17, "condition": long})
    assert reported["verified"], reported
    resume(client)
    assert iteration(client) == 3
    set_lines(client, STEPS, {"line": 17, "condition": "%s.1 > 0"})
    assert "its condition failed" in resume(client)["text"]


def test_breakpoints_stop_in_layers_and_in_taken_branches_only(client: Client) -> None:
    client.start(STEPS)
    kept, taken, layer = set_lines(client, STEPS, 26, 23, 34)
    assert kept["verified"]
    assert resume(client)["hitBreakpointIds"] == [layer["id"]]
    assert client.top_frame()["line"] == 34
    assert resume(client)["hitBreakpointIds"] == [taken["id"]]
    client.request("continue", {"threadId": 1})
    client.expect_event("exited", exitCode=0)


def test_function_breakpoints_match_ops_graphs_loops_and_values(client: Client) -> None:
    client.start(STEPS)
    reported = set_functions(client, "@layer", "sharpen", "Softmax", "%many", "Sofmax", "@layr", "Relu x")
    assert [each["verified"] for each in reported] == [True, True, True, True, False, False, False]
    assert reported[2]["message"] == "2 statements: lines 13 and 28"
    assert "did you mean Softmax?" in reported[4]["message"]
    assert "did you mean @layer?" in reported[5]["message"]
    assert "is not a valid name" in reported[6]["message"]
    hits = [resume(client, "function breakpoint") for _ in range(3)]
    assert hits[0]["hitBreakpointIds"] == [reported[0]["id"]]
    # The first statement of the loop is a Softmax.
    assert hits[1]["hitBreakpointIds"] == [reported[1]["id"], reported[2]["id"]]
    set_functions(client, "%many", "Softmax")
    hit = resume(client, "function breakpoint")
    assert hit["hitBreakpointIds"] == [reported[2]["id"]]
    assert "op Softmax" in hit["text"]
    set_functions(client, "%many")
    assert resume(client, "function breakpoint")["hitBreakpointIds"] == [reported[3]["id"]]


def test_log_messages_arrive_in_order_with_their_line_and_do_not_stop(client: Client) -> None:
    client.launch(NEWTON)
    set_lines(client, NEWTON, {"line": 13, "logMessage": "guess {$iter}: {mean(%guess) > 0} {prev(%better)}"})
    client.request("configurationDone")
    logged = [client.expect_event("output", category="console") for _ in range(3)]
    while "guess" not in logged[0]["output"]:
        logged = [*logged[1:], client.expect_event("output", category="console")]
    assert logged[0]["output"].startswith("guess 0: True <%better has no previous value>")
    assert logged[1]["output"].startswith("guess 1: True [")
    assert logged[2]["line"] == 13
    assert logged[2]["source"]["path"] == str(NEWTON)
    client.expect_event("exited", exitCode=0)
    client.none_of("stopped")


def test_a_log_message_reads_the_result_of_its_line(client: Client) -> None:
    client.launch(NEWTON)
    (reported,) = set_lines(client, NEWTON, {"line": 13, "logMessage": "better {$iter}: {count(%better)}"})
    assert reported["message"] == "the message reads the result, so it is evaluated after the statement"
    client.request("configurationDone")
    logged = client.expect_event("output", category="console")
    while "better" not in logged["output"]:
        logged = client.expect_event("output", category="console")
    assert (logged["output"].strip(), logged["line"]) == ("better 0: 4", 13)
    client.expect_event("exited", exitCode=0)
    client.none_of("stopped")


def test_log_messages_are_sent_while_the_program_runs(client: Client, tmp_path: Path) -> None:
    program = written(tmp_path, ENDLESS)
    client.launch(program)
    wanted = {"line": 8, "logMessage": "round {$iter}", "condition": "$iter == 2000"}
    (reported,) = set_lines(client, program, wanted)
    client.request("configurationDone")
    while "round 2000" not in client.expect_event("output")["output"]:
        pass
    # The program still runs; a breakpoint set now applies before the next op.
    (now,) = set_lines(client, program, 9)
    assert now["verified"]
    assert now["id"] != reported["id"]
    assert client.expect_stop("breakpoint")["hitBreakpointIds"] == [now["id"]]
    assert client.top_frame()["line"] == 9
    set_lines(client, program)
    client.request("continue", {"threadId": 1})
    (function,) = set_functions(client, "Neg", hitCondition=">=100")
    stop = client.expect_stop("function breakpoint")
    assert stop["hitBreakpointIds"] == [function["id"]]
    assert client.top_frame()["line"] in (8, 9)


def test_lines_of_the_model_source_can_be_breakpoints(client: Client, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("\n" * 20)
    program = written(tmp_path, MODEL)
    client.start(program)
    reported = set_lines(client, tmp_path / "net.py", 12, 13, 16)
    assert [each["verified"] for each in reported] == [True, True, False]
    assert reported[0]["message"] == "2 statements come from here: lines 5 and 6 of graph.nnc"
    assert reported[1]["line"] == 15
    assert reported[1]["message"].startswith("line 13 has no statement; moved to line 15")
    assert "no statement comes from" in reported[2]["message"]
    assert resume(client)["hitBreakpointIds"] == [reported[0]["id"]]
    assert client.top_frame()["line"] == 6
    assert resume(client)["hitBreakpointIds"] == [reported[1]["id"]]
    source = {"path": str(tmp_path / "net.py")}
    found = client.request("breakpointLocations", {"source": source, "line": 1, "endLine": 20})
    assert [each["line"] for each in found["breakpoints"]] == [12, 15]


def test_breakpoint_locations_of_a_range_are_listed(client: Client) -> None:
    client.start(STEPS)
    arguments = {"source": {"path": str(STEPS)}, "line": 7, "endLine": 11}
    found = client.request("breakpointLocations", arguments)["breakpoints"]
    assert [(each["line"], each["column"]) for each in found] == [(10, 3), (11, 3)]
    assert client.request("breakpointLocations", {**arguments, "endLine": 7})["breakpoints"] == []
    nowhere = {"source": {"path": "/nowhere"}, "line": 1, "endLine": 99}
    assert client.request("breakpointLocations", nowhere)["breakpoints"] == []


def test_lines_and_columns_can_start_at_0_and_paths_can_be_uris(client: Client) -> None:
    client.launch(STEPS, initialize={"linesStartAt1": False, "columnsStartAt1": False, "pathFormat": "uri"})
    reported = set_lines(client, STEPS.as_uri(), {"line": 10, "column": 0}, 0)
    assert [(each["verified"], each["line"]) for each in reported] == [(True, 10), (True, 9)]
    assert reported[0]["column"] == 2
    client.request("configurationDone")
    client.expect_stop("breakpoint")
    assert client.top_frame()["line"] == 9


def test_instruction_breakpoints_bind_in_micro_programs_and_refuse_bad_addresses(client: Client) -> None:
    client.start(EXAMPLES / "nan_softmax.nnc")
    set_functions(client, "Softmax")
    resume(client, "function breakpoint")
    client.move("stepIn", granularity="instruction")
    micro = client.top_frame()
    address = micro["instructionPointerReference"]
    wanted = [
        {"instructionReference": address, "offset": 2},
        {"instructionReference": "0xfffff00000"},
        {"instructionReference": "here"},
        {"instructionReference": address, "offset": -1000},
    ]
    reported = client.request("setInstructionBreakpoints", {"breakpoints": wanted})["breakpoints"]
    assert [each["verified"] for each in reported] == [True, False, False, False]
    assert "no statement at 0xfffff00000" in reported[1]["message"]
    assert resume(client, "instruction breakpoint")["hitBreakpointIds"] == [reported[0]["id"]]
    assert client.top_frame()["instructionPointerReference"] == reported[0]["instructionReference"]
    (line,) = client.request(
        "setBreakpoints",
        {"source": micro["source"], "breakpoints": [{"line": client.top_frame()["line"] + 1}]},
    )["breakpoints"]
    assert line["verified"], line
    assert resume(client)["hitBreakpointIds"] == [line["id"]]


@pytest.mark.parametrize("number", [1 << 31, -1])
def test_an_impossible_source_reference_is_refused(client: Client, number: int) -> None:
    client.request("initialize", {"adapterID": "nncdbg"})
    arguments = {"source": {"sourceReference": number}, "breakpoints": [{"line": 1}]}
    assert f"there is no source with reference {number}" in client.refused("setBreakpoints", arguments)


def test_a_thousand_breakpoints_in_a_long_listing_bind_quickly(tmp_path: Path) -> None:
    lines = [f"  %v{index + 1}: f32[2] = Neg(%v{index})" for index in range(10_000)]
    head = ["#nncdbg 1", "opset 18", "", "graph @main(%v0: f32[2]) -> (%v10000: f32[2]) {"]
    program = written(tmp_path, "\n".join([*head, *lines, "  return %v10000", "}"]))
    with stdio_client(cwd=tmp_path) as client:
        client.start(program)
        wanted = [{"line": line, "condition": "$line > 0"} for line in range(5, 10_005, 10)]
        began = time.perf_counter()
        reported = set_lines(client, program, *wanted)
        seconds = time.perf_counter() - began
        assert all(each["verified"] for each in reported)
        assert seconds < 10, "binding must not scan the listing once per breakpoint"
        assert set_lines(client, program, *wanted[:500])[499]["id"] == reported[499]["id"]
        assert resume(client)["hitBreakpointIds"] == [reported[1]["id"]]


def test_the_name_of_a_function_breakpoint_may_contain_its_condition(client: Client) -> None:
    """VS Code has no field for the condition of a function breakpoint."""
    client.start(EXAMPLES / "first_steps.nnc")
    names = [{"name": "Softmax if $iter == 2"}, {"name": "Softmax if nothing("}]
    first, second = client.request("setFunctionBreakpoints", {"breakpoints": names})["breakpoints"]
    assert first["verified"]
    assert not second["verified"]
    assert client.move("continue", "function breakpoint")["hitBreakpointIds"] == [first["id"]]
    assert client.evaluate("$iter", frameId=client.top_frame()["id"]) == "2"
