"""Findings and failures: which filters stop the program, and what they report."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from nncdbg.dap_server.handlers.breakpoints import BOX_WIDTH
from tests.dap_server.client import Client, Message
from tests.dap_server.conftest import EXAMPLES

NAN = EXAMPLES / "nan_softmax.nnc"

FAILS = """#nncdbg 1
opset 18

graph @main(%x: f32[2,3]) -> (%out: f32[?,?]) {
  %wide: i64[2] = [3, 5]
  %h: f32[2,3] = Relu(%x)
  %out: f32[?,?] = Reshape(%h, %wide)
  return %out
}
"""


def catch(client: Client, *filters: str, options: list[Message] | None = None) -> list[Message]:
    arguments: Message = {"filters": list(filters)}
    if options is not None:
        arguments["filterOptions"] = options
    reported: list[Message] = client.request("setExceptionBreakpoints", arguments)["breakpoints"]
    return reported


def test_a_run_that_ends_reports_its_outputs_and_findings(client: Client) -> None:
    client.launch(EXAMPLES / "nan_softmax.nnc", catch=["nan"])
    client.request("setExceptionBreakpoints", {"filters": []})
    client.request("configurationDone")
    client.expect_stop("exception")
    client.request("continue", {"threadId": 1})
    summary = client.expect_event("nncdbg/summary")
    assert summary["program"] == "nan_softmax.nnc"
    assert summary["outputs"] == [{"name": "%loss", "text": "f32[] nan", "kinds": ["nan"]}]
    (finding,) = summary["findings"]
    assert (finding["kind"], finding["label"], finding["line"]) == ("nan", "NaN originates", 22)
    assert finding["source"]["path"] == str(EXAMPLES / "nan_softmax.nnc")
    client.expect_event("terminated")
    outputs = [each["body"]["output"] for each in client.messages if each.get("event") == "output"]
    assert "output %loss f32[] nan\n" in outputs


def test_outputs_have_exact_statistics_and_inputs_with_nan_are_named(client: Client, tmp_path: Path) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    x[1, 2] = np.nan
    np.save(tmp_path / "x.npy", x)
    client.launch(EXAMPLES / "first_steps.nnc", inputs={"x": "x.npy"})
    client.request("setExceptionBreakpoints", {"filters": []})
    client.request("configurationDone")
    summary = client.expect_event("nncdbg/summary")
    assert [(each["name"], each["kinds"]) for each in summary["inputs"]] == [("%x", ["nan"])]
    assert summary["outputs"][0]["text"].startswith("f32[2,3] [[")
    assert summary["findings"] == []
    client.expect_event("terminated")


def test_an_unknown_kind_to_catch_is_refused_at_launch(client: Client) -> None:
    client.request("initialize", {"adapterID": "nncdbg"})
    message = client.refused("launch", {"program": str(EXAMPLES / "nan_softmax.nnc"), "catch": ["nam"]})
    assert "unknown kind of finding: 'nam'" in message


def test_the_filters_have_labels_and_descriptions(client: Client) -> None:
    filters = client.request("initialize", {"adapterID": "nncdbg"})["exceptionBreakpointFilters"]
    names = [each["filter"] for each in filters]
    kinds = ["nan", "inf", "uninitialized", "integer", "contract", "overflow", "guard", "state-reset"]
    assert names == [*kinds, "race", "assertion"]
    assert all(each["label"] and each["description"] and each["supportsCondition"] for each in filters)
    assert [each["filter"] for each in filters if each["default"]] == ["nan", "uninitialized", "guard"]


def test_a_nan_is_reported_at_its_origin_with_its_cause(client: Client) -> None:
    client.start(NAN)
    reported = catch(client, "nan", "race", "assertion", "fire")
    assert [each["verified"] for each in reported] == [True, False, False, False]
    assert "one stream" in reported[1]["message"]
    assert "no op of the program asserts" in reported[2]["message"]
    assert "unknown exception filter 'fire'" in reported[3]["message"]
    assert "has not stopped at an exception" in client.refused("exceptionInfo", {"threadId": 1})
    stop = client.move("continue", "exception")
    assert stop["hitBreakpointIds"] == [reported[0]["id"]]
    assert stop["description"] == "NaN originates"
    assert stop["text"] == "the first NaN is in %terms: Mul produced it from operands without NaN"
    info = client.request("exceptionInfo", {"threadId": 1})
    assert info["exceptionId"] == "nan"
    assert info["breakMode"] == "always"
    # The cause comes first, and long lines continue with an indentation.
    assert info["description"].splitlines()[-1] == stop["text"]
    assert info["description"].startswith("Inf originates at line 21, Log:\ncause: log of zero")
    assert max(map(len, info["description"].splitlines())) <= BOX_WIDTH
    assert re.search(r"\nhint: [^\n]*\n    \S", info["description"])
    details = info["details"]
    assert (details["typeName"], details["evaluateName"]) == ("nan", "%terms")
    lines = details["stackTrace"].splitlines()
    assert lines[0] == "line 22: %terms = Mul(%q, %logq) : f32[3,4]"
    assert lines[1].endswith("  <- NaN originates here")
    assert any("-inf 5" in line and line.endswith("  <- Inf originates here") for line in lines)
    causes = [line.strip() for line in info["description"].splitlines()]
    assert any(line.startswith("cause: log of zero: 5 of 12 elements of %q are 0") for line in causes)
    assert "Inf originates at line 21, Log:" in causes
    assert "NaN originates at line 22, Mul:" in causes
    assert any(line.startswith("cause: zero times infinity") for line in causes)
    shown = [*causes, *(line.strip() for line in lines)]
    assert len(shown) == len({*shown}), "the exception box repeats a sentence"
    # The Inf originates there, so the slice ends.
    assert lines[-1].strip().startswith("%q f32[3,4] min 0")
    assert not any("= Softmax(" in line for line in lines)
    assert len(lines) <= 20


INDEX = """opset 21

graph @main(%x: f32[2]) -> (%y: f32[2,2]) {
  %table: f32[3,2] = [[0.5, 1.0], [0.25, -0.5], [1.0, 0.75]]
  %index = nncdbg.Empty(dtype="i64", init="none", shape=[2])
  %rows = Gather(%table, %index, axis=0)
  %y: f32[2,2] = Add(%rows, %x)
  return %y
}
"""

RESET = """opset 18
state %w: f32[2] = [1, 2]
state %m: f32[2] = zeros for %w
state %count: i64[] = 0

graph @train(%x: f32[2]) -> (%l: f32[]) {
  %w.1, %m.1 = nncdbg.SGD(%w, %x, %m, lr=0.1, momentum=0.9)
  %third = Equal(%count, 2)
  %none = Sub(%m.1, %m.1)
  %m.2 = Where(%third, %none, %m.1)
  %count.1 = Add(%count, 1)
  update %w = %w.1, %m = %m.2, %count = %count.1
  %l: f32[] = ReduceSum(%w, keepdims=0)
  return %l
}

run @train for %x
"""


def test_a_reset_of_an_optimizer_state_is_an_exception(client: Client, tmp_path: Path) -> None:
    """P6: the filter `state-reset` stops at the update, and `exceptionInfo` names the state."""
    (tmp_path / "train.nnc").write_text(RESET)
    np.save(tmp_path / "x.npy", np.ones((5, 2), np.float32))
    client.start(tmp_path / "train.nnc", inputs={"x": "x.npy"})
    (reported,) = catch(client, "state-reset")
    assert reported["verified"]
    stop = client.move("continue", "exception")
    assert stop["description"] == "Optimizer state reset"
    assert stop["text"] == "the optimizer's state %m is reset: all of its 2 elements become 0"
    info = client.request("exceptionInfo", {"threadId": 1})
    assert info["exceptionId"] == "state-reset"
    assert info["description"].splitlines()[0] == stop["text"]
    frame = client.request("stackTrace", {"threadId": 1})["stackFrames"][0]
    assert RESET.split("\n")[frame["line"] - 1].strip().startswith("update")


def test_filters_have_conditions_and_can_be_set_twice(client: Client) -> None:
    client.start(NAN)
    (wrong,) = catch(client, options=[{"filterId": "inf", "condition": "max(%nothing) > 1"}])
    assert not wrong["verified"]
    assert "there is no value `%nothing`" in wrong["message"]
    options = [
        {"filterId": "inf", "condition": "$line == 99"},
        {"filterId": "inf", "condition": "any(%q == 0)"},
        {"filterId": "nan", "condition": "$line == 99"},
    ]
    reported = catch(client, options=options)
    assert all(each["verified"] for each in reported)
    again = catch(client, options=options)
    assert [each["id"] for each in again] == [each["id"] for each in reported]
    stop = client.move("continue", "exception")
    assert stop["hitBreakpointIds"] == [reported[0]["id"], reported[1]["id"]]
    assert client.request("exceptionInfo", {"threadId": 1})["exceptionId"] == "inf"
    client.request("continue", {"threadId": 1})
    client.expect_event("exited", exitCode=0)


def test_filters_set_before_the_launch_apply_and_an_empty_list_clears_them(client: Client) -> None:
    client.request("initialize", {"adapterID": "nncdbg"})
    (reported,) = catch(client, "overflow")
    assert (reported["verified"], reported["reason"]) == (False, "pending")
    options = {"program": str(EXAMPLES / "overflow_f16.nnc"), "inputs": {"x": "ones"}}
    client.request("launch", options)
    assert client.expect_event("breakpoint", reason="changed")["breakpoint"]["verified"]
    client.expect_event("initialized")
    client.request("configurationDone")
    assert client.expect_stop("exception")["hitBreakpointIds"] == [reported["id"]]
    assert client.request("exceptionInfo", {"threadId": 1})["exceptionId"] == "overflow"
    assert catch(client) == []
    client.request("continue", {"threadId": 1})
    client.expect_event("exited", exitCode=0)


def test_an_integer_fault_stops_if_the_filter_is_set(client: Client, tmp_path: Path) -> None:
    source = (
        "#nncdbg 1\ngraph @main(%x: f32[2]) -> (%y: u8[2]) {\n  %y: u8[2] = Cast(%x, to=2)\n  return %y\n}\n"
    )
    (tmp_path / "cast.nnc").write_text(source)
    client.start(tmp_path / "cast.nnc", inputs={"x": "arange"})
    (reported,) = catch(client, options=[{"filterId": "integer", "condition": "max(%x) > 0"}])
    client.request("setExpression", {"expression": "%x[1]", "value": "256"})
    stop = client.move("continue", "exception")
    assert (stop["hitBreakpointIds"], stop["description"]) == ([reported["id"]], "Integer fault")
    info = client.request("exceptionInfo", {"threadId": 1})
    assert info["exceptionId"] == "integer"
    assert (
        info["description"]
        .splitlines()[-1]
        .startswith("cast out of range: %y is wrong: Cast does not accept 1 of 2 elements")
    )


def test_uninitialized_memory_is_caught_by_default(client: Client) -> None:
    client.launch(EXAMPLES / "uninitialized.nnc")
    client.request("configurationDone")
    client.expect_stop("exception")
    info = client.request("exceptionInfo", {"threadId": 1})
    assert info["exceptionId"] == "uninitialized"
    assert "Relu" in info["details"]["stackTrace"].splitlines()[0]


def test_a_statement_that_fails_on_an_uninitialized_index_has_both_reasons(
    client: Client, tmp_path: Path
) -> None:
    program = tmp_path / "index.nnc"
    program.write_text(INDEX)
    client.launch(program)
    client.request("configurationDone")
    stop = client.expect_stop("exception")
    assert stop["description"] == "The statement failed"
    info = client.request("exceptionInfo", {"threadId": 1})
    assert (info["exceptionId"], info["breakMode"]) == ("uninitialized", "unhandled")
    first, *_, read, cause = info["description"].splitlines()
    assert first == "Gather cannot compute: %index has an index outside an axis of size 3"
    assert read == "Gather reads %index, which has been uninitialized since nncdbg.Empty allocated it"
    assert cause == "  cause: uninitialized read"
    lines = info["details"]["stackTrace"].splitlines()
    assert [each.split()[0] for each in lines if each.endswith("originates here")] == ["%index"]


def test_a_failing_kernel_is_explained_and_ends_the_program_the_second_time(
    client: Client, tmp_path: Path
) -> None:
    program = tmp_path / "fails.nnc"
    program.write_text(FAILS)
    client.launch(program)
    catch(client)
    client.request("configurationDone")
    stop = client.expect_stop("exception")
    assert stop["description"] == "The statement failed"
    assert "Reshape" in stop["text"]
    info = client.request("exceptionInfo", {"threadId": 1})
    assert info["breakMode"] == "unhandled"
    assert "with %h: f32[2,3]" in info["description"]
    assert "  hint: " in info["description"]
    lines = info["details"]["stackTrace"].splitlines()
    assert lines[0] == "line 7: %out: f32[?,?] = Reshape(%h, %wide)"
    assert any("%h: f32[2,3] = Relu(%x)" in line for line in lines)
    assert any(line.strip() == "%wide i64[2] [3 5]  (constant)" for line in lines)
    client.request("continue", {"threadId": 1})
    client.expect_event("exited", exitCode=4)
    client.expect_event("terminated")


@pytest.mark.parametrize("options", [{"allocator": "arena"}, {"allocator": "plain"}, {"history": 0}])
def test_unavailable_values_are_not_reported_as_origins(client: Client, options: Message) -> None:
    client.start(NAN, **options)
    catch(client, "nan")
    client.move("continue", "exception")
    lines = client.request("exceptionInfo", {"threadId": 1})["details"]["stackTrace"].splitlines()
    assert lines[0] == "line 22: %terms = Mul(%q, %logq) : f32[3,4]"
    assert "nan 5" in lines[1]
    assert all("originates" not in line for line in lines if "is not available in" in line)


def offered(client: Client) -> list[str]:
    """Return the filters of the next `capabilities` event."""
    reported = client.expect_event("capabilities")["capabilities"]
    assert list(reported) == ["exceptionBreakpointFilters"]
    return [each["filter"] for each in reported["exceptionBreakpointFilters"]]


def test_filters_that_a_program_cannot_find_are_not_offered(client: Client) -> None:
    client.request("initialize", {"adapterID": "nncdbg"})
    catch(client, "guard", "nan")
    plain = {"program": str(NAN), "allocator": "plain"}
    client.request("launch", plain)
    assert offered(client) == [
        "nan",
        "inf",
        "integer",
        "contract",
        "overflow",
        "state-reset",
        "race",
        "assertion",
    ]
    client.expect_event("breakpoint", reason="changed")
    client.expect_event("breakpoint", reason="changed")
    client.expect_event("initialized")
    guard, nan = catch(client, "guard", "nan")
    assert (guard["verified"], guard["reason"], nan["verified"]) == (False, "failed", True)
    reported = "the allocator plain does not check memory (use the allocator debug, arena or poison)"
    assert guard["message"] == reported
    client.request("restart", {"arguments": {**plain, "allocator": "arena"}})
    every = ["nan", "inf", "uninitialized", "integer", "contract", "overflow", "guard", "race", "assertion"]
    assert offered(client) == every
    assert client.expect_event("breakpoint", reason="changed")["breakpoint"]["verified"]
    client.request("restart", {"arguments": {**plain, "check": "micro"}})
    every = ["nan", "inf", "integer", "contract", "overflow", "state-reset", "race", "assertion", "micro"]
    assert offered(client) == every
    assert not client.expect_event("breakpoint", reason="changed")["breakpoint"]["verified"]
    client.request("restart", {"arguments": {**plain, "check": "micro"}})
    client.none_of("capabilities")
