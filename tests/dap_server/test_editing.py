"""Edits of values in the variables view and by expression, and their effects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dap_server import odd_values
from tests.dap_server.client import Client, Message
from tests.dap_server.conftest import EXAMPLES


def scope_reference(client: Client, name: str) -> int:
    scopes = client.request("scopes", {"frameId": client.top_frame()["id"]})["scopes"]
    reference: int = next(each["variablesReference"] for each in scopes if each["name"] == name)
    return reference


def set_variable(client: Client, reference: int, name: str, value: str) -> Message:
    return client.request("setVariable", {"variablesReference": reference, "name": name, "value": value})


def test_a_variable_a_slice_and_an_element_can_be_set(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    values = scope_reference(client, "Values")
    whole = set_variable(client, values, '%"odd name"', "%x + 1")
    assert whole["value"] == "f32[2,3] [[1. 2. 3.] [4. 5. 6.]]"
    assert whole["type"] == "f32[2,3]"
    assert whole["memoryReference"].startswith("0x")
    client.expect_event("invalidated", areas=["variables"])
    assert client.evaluate("%twice") == "f32[2,3] [[2. 4. 6.] [8. 10. 12.]]", (
        "dependent values are recomputed"
    )
    row = set_variable(client, whole["variablesReference"], "[1]", "[nan, -inf, 0.5]")
    assert row["value"] == "f32[3] [nan -inf 0.5]"
    assert client.evaluate("%y[1, 1]") == "inf"
    element = set_variable(client, row["variablesReference"], "[0]", "max(%x) * 2")
    assert (element["value"], element["type"]) == ("10.0", "f32[]")
    assert element.get("variablesReference", 0) == 0
    assert client.evaluate("%twice[1, 0]") == "20.0"


KINDS = {
    '%"größe/1"': ("-inf", "f32[] -inf"),
    "%narrow[0, 0]": ("1.5", "1.5"),
    "%small[0]": ("-8", "i4[3] [-8 -8 -8]"),
    "%flags[1]": ("[true, false, true]", "bool[3] [true false true]"),
    "%words[0]": ('"other"', "other"),
    "%x[isnan(%x)]": ("0", "f32[0] (empty)"),
    "%x[:, 1:]": ("%x[:, :2]", "f32[2,2] [[0. 1.] [3. 4.]]"),
    "x[-1, -1]": ("nan", "nan"),
}


def test_expressions_of_every_kind_of_value_can_be_set(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    for expression, (value, result) in KINDS.items():
        arguments = {"expression": expression, "value": value, "frameId": client.top_frame()["id"]}
        assert client.request("setExpression", arguments)["value"] == result, expression
        client.expect_event("invalidated")


DISPLAYED = {
    "%narrow[0, 0]": ("3", "3"),
    "%flags": (
        "bool[2,3] [false false true false true true]",
        "bool[2,3] [false false true false true true]",
    ),
    "%small": ("i4[2,3] [[-8, 7 0], [1 2 3]]", "i4[2,3] [[-8 7 0] [1 2 3]]"),
    "%words": ("str[2] ['new' '']", "str[2] ['new' '']"),
    '%"größe/1"': ("f32[] nan", "f32[] nan"),
    '%"odd name"': ("f32[2,3] [[0. 1. 2.] [3. inf 5.]]", "f32[2,3] [[0. 1. 2.] [3. inf 5.]]"),
}


def test_a_value_accepts_the_text_that_it_displays(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    for expression, (value, result) in DISPLAYED.items():
        arguments = {"expression": expression, "value": value}
        assert client.request("setExpression", arguments)["value"] == result, expression
    values = scope_reference(client, "Values")
    listed = client.request("variables", {"variablesReference": values})["variables"]
    for each in listed:
        if "[" in each["value"].partition(" ")[2]:
            assert set_variable(client, values, each["name"], each["value"])["value"] == each["value"]


def test_elements_whose_displayed_text_is_kept_keep_their_exact_value(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    client.request("setExpression", {"expression": "%x[0]", "value": "[0.123456789, 2, 3, 4]"})
    shown = client.evaluate("%x[0]")
    assert shown == "f32[4] [0.1235 2. 3. 4. ]", "the display is rounded"
    client.request("setExpression", {"expression": "%x[0]", "value": shown.replace("3.", "7.5")})
    assert client.evaluate("%x[0, 2]") == "7.5"
    assert client.evaluate("%x[0, 0]") == "0.12345679"


NOT_A_DISPLAY = [
    ("%x[0]", "f32[3] [1 2 3]", "the value is f32[4], but the text is f32[3]"),
    ("%x[0]", "f64[4] [1 2 3 4]", "the text is f64[4]"),
    ("%x[0]", "f32[4] [1 2 3]", "f32[4] has 4 elements, but the text has 3"),
    ("%x[0]", "f32[4] [1 2 3 normal]", "normal is not a valid element"),
]


def test_a_displayed_text_of_another_type_or_size_is_refused(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    for expression, value, expected in NOT_A_DISPLAY:
        assert expected in client.refused("setExpression", {"expression": expression, "value": value})


DECISION = """#nncdbg 1
opset 18

graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %total: f32[] = ReduceSum(%x, keepdims=0)
  %positive: bool[] = Greater(%total, 0.0)
  if %positive @then {
    %double: f32[2] = Add(%x, %x)
    yield %double
  } else @other {
    %less: f32[2] = Neg(%x)
    yield %less
  } -> (%y: f32[2])
  return %y
}
"""


def start_at_decision(client: Client, tmp_path: Path) -> None:
    program = tmp_path / "decision.nnc"
    program.write_text(DECISION)
    client.start(program, inputs={"x": "ones"})
    client.move("next")
    client.move("next")


def test_an_edit_reports_the_decision_that_has_already_used_the_value(client: Client, tmp_path: Path) -> None:
    start_at_decision(client, tmp_path)
    client.move("stepIn")
    client.request("setExpression", {"expression": "%total", "value": "-1"})
    output = client.expect_event("output", category="important")["output"]
    assert "line 7: `if` has already used %total, and keeps its decision" in output
    assert "step back to line 7" in output


def test_an_edit_reports_the_dependent_value_that_was_set(client: Client, tmp_path: Path) -> None:
    start_at_decision(client, tmp_path)
    client.request("setExpression", {"expression": "%positive", "value": "bool[] false"})
    client.none_of("output")
    client.request("setExpression", {"expression": "%total", "value": "-1"})
    output = client.expect_event("output", category="important")["output"]
    assert "%positive depends on %total, and keeps the value that was set" in output


REFUSED: list[tuple[str, str, str]] = [
    ("%small", "8", "cannot represent"),
    ("%small[0]", "0.5", "cannot represent"),
    ("%flags", "2", "cannot represent"),
    ("%x", '"text"', "is not valid data"),
    ("%words", "1", "text is required"),
    ("%x", "[1, 2]", "the new value has shape [2]"),
    ("%x[5]", "1", "out of bounds"),
    ("%x[0]", "[1, 2]", "cannot be set"),
    ("%x * 2", "1", ""),
    ("%nope", "1", "%nope"),
    ("%x", "%nope", "%nope"),
    ("%x", "", "expected"),
    ("%rows", "1", "it is not a tensor"),
    ("$line", "1", ""),
    ("%x.shape", "1", ""),
]


def test_a_refused_edit_changes_nothing(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    before = client.evaluate("branches", "repl")
    for expression, value, expected in REFUSED:
        message = client.refused("setExpression", {"expression": expression, "value": value})
        assert expected in message, (expression, message)
        assert "internal error" not in message, expression
    values = scope_reference(client, "Values")
    whole = client.variables("Values")['%"odd name"']["variablesReference"]
    rows = client.variables("Values")["%rows"]["variablesReference"]
    wrong: list[tuple[int, str, str]] = [
        (whole, "shape", "cannot be set"),
        (whole, "statistics", "cannot be set"),
        (whole, "[9]", ""),
        (rows, "[0]", "an element of a sequence cannot be set"),
        (values, "%nope", "cannot be set"),
        (values, "", "cannot be set"),
        (999_999, "[0]", "the variables reference has expired"),
        (0, "[0]", "the variables reference has expired"),
    ]
    for reference, name, expected in wrong:
        arguments = {"variablesReference": reference, "name": name, "value": "1"}
        message = client.refused("setVariable", arguments)
        assert expected in message, (name, message)
        assert "internal error" not in message, name
    assert client.evaluate("branches", "repl") == before
    client.none_of("invalidated")


def test_children_of_a_watched_expression_are_set_in_the_value_it_names(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    client.move("next")
    named = client.request("evaluate", {"expression": "%h"})["variablesReference"]
    assert set_variable(client, named, "[0]", "7")["value"] == "f32[4] [7. 7. 7. 7.]"
    doubled = client.request("evaluate", {"expression": "%h * 2"})["variablesReference"]
    arguments = {"variablesReference": doubled, "name": "[0]", "value": "7"}
    assert "internal error" not in client.refused("setVariable", arguments)


def test_a_value_of_an_outer_frame_reaches_the_inner_one(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    client.move("stepIn")
    client.move("next")
    outer = client.request("stackTrace", {"threadId": 1})["stackFrames"][1]["id"]
    arguments = {"expression": "%x", "value": "[[1, 2, 3, 4], [5, 6, 7, 8]]", "frameId": outer}
    client.request("setExpression", arguments)
    assert client.evaluate("%a[1, 3]") == "8.0"
    assert client.evaluate("%mean") == "f32[2,1] [[2.5] [6.5]]"


def test_values_after_an_edit_are_not_those_of_the_previous_branch(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    client.move("next")
    left = client.evaluate("%centred[0, 0]")
    client.request("setExpression", {"expression": "%x", "value": "%x * 100"})
    message = client.refused("evaluate", {"expression": "%centred[0, 0]"})
    assert "is not available in this frame" in message, f"{left} belongs to the branch before the edit"
    client.move("stepBack", reason="entry")
    client.move("next")
    assert "ran before the edit" in client.refused("evaluate", {"expression": "%centred"}), (
        "the edit is applied again"
    )
    client.request("evaluate", {"expression": "branch 0", "context": "repl"})
    client.expect_stop("goto")
    assert client.evaluate("%centred[0, 0]") == left, "the original branch is unchanged"


LOOP = """#nncdbg 1
opset 18

graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %step: f32[] = 0.0
  while @long (%a: f32[4] = %x) count %i: i64[] times 100000000 {
    %b: f32[4] = Add(%a, %step)
    next %a = %b
  } -> (%y: f32[4] = %a)
  return %y
}
"""


def _running(client: Client, tmp_path: Path, allocator: str = "debug") -> None:
    (tmp_path / "long.nnc").write_text(LOOP)
    flags = {"supportsInvalidatedEvent": True, "supportsMemoryReferences": True}
    client.start("long.nnc", initialize=flags, inputs={"x": "zeros"}, allocator=allocator)
    client.request("continue", {"threadId": 1})


@pytest.mark.parametrize("allocator", ["debug", "arena", "plain"])
def test_values_are_read_and_set_while_the_program_runs(
    client: Client, tmp_path: Path, allocator: str
) -> None:
    _running(client, tmp_path, allocator)
    frames = client.request("stackTrace", {"threadId": 1})["stackFrames"]
    assert [frame["name"].partition(" ")[0] for frame in frames] == ["@long", "@main"]
    inner, outer = (frame["id"] for frame in frames)
    # In iteration 0, %a still follows %x, which is set below.
    while client.evaluate("%i", frameId=inner) == "i64[] 0":
        pass
    scopes = {each["name"]: each for each in client.request("scopes", {"frameId": outer})["scopes"]}
    values = scopes["Values"]["variablesReference"]
    assert "%x" in {
        each["name"] for each in client.request("variables", {"variablesReference": values})["variables"]
    }
    # A value and a breakpoint are set during the run; both take effect before the next statement.
    client.request("setExpression", {"expression": "%a", "value": "7", "frameId": inner})
    client.expect_event("invalidated")
    assert client.evaluate("%a", frameId=inner) == "f32[4] [7. 7. 7. 7.]"
    changed = set_variable(client, values, "%x", "[1, 2, 3, 4]")
    assert changed["value"] == "f32[4] [1. 2. 3. 4.]"
    read = client.request("readMemory", {"memoryReference": changed["memoryReference"], "count": 4})
    assert read["data"] == "AACAPw=="
    client.request("writeMemory", {"memoryReference": changed["memoryReference"], "data": "AAAAQA=="})
    assert "4" in str(client.request("nncdbg/stats", {"expressions": ["%x"], "frameId": outer}))
    assert client.evaluate("%x[0]", frameId=outer) == "2.0"
    client.none_of("stopped")
    client.request(
        "setBreakpoints", {"source": {"path": str(tmp_path / "long.nnc")}, "breakpoints": [{"line": 8}]}
    )
    client.expect_stop("breakpoint")
    assert client.evaluate("%b") == "f32[4] [7. 7. 7. 7.]"
    assert client.evaluate("%x[0]") == "2.0"
    assert len(client.request("nncdbg/timeline")["branches"]) == 4


def test_a_value_cannot_be_set_while_the_program_moves_back(client: Client, tmp_path: Path) -> None:
    (tmp_path / "long.nnc").write_text(LOOP)
    client.start("long.nnc", inputs={"x": "zeros"}, allocator="arena")
    client.evaluate("goto :300000", "repl")
    given = {"expression": "%x", "value": "1"}
    assert "moves to another step" in client.refused("setExpression", given)
    assert "moves to another step" in client.refused("evaluate", {"expression": "%a"})
    assert "moves to another step" in client.refused("evaluate", {"expression": "p %a", "context": "repl"})
    client.request("setBreakpoints", {"source": {"path": str(tmp_path / "long.nnc")}, "breakpoints": []})
    client.request("pause", {"threadId": 1})
    client.expect_stop("pause")
    assert client.request("nncdbg/timeline")["branches"][0]["title"] == "the original run"


@pytest.mark.parametrize("allocator", ["debug", "arena", "plain"])
def test_the_program_continues_with_the_new_value(client: Client, allocator: str) -> None:
    client.start(EXAMPLES / "first_steps.nnc", allocator=allocator, stopOnExit=True)
    client.move("next")
    client.request("setExpression", {"expression": "%h", "value": "0"})
    client.request("continue", {"threadId": 1})
    client.expect_stop("exit")
    assert client.evaluate("%probs") == "f32[2,3] [[0.3333 0.3333 0.3333] [0.3333 0.3333 0.3333]]"


# -- stepping back over an edit -------------------------------------------------------------------------


def _messages(client: Client) -> list[str]:
    return [each["body"]["output"].strip() for each in client.messages if each.get("event") == "output"]


def _edited_and_ended(client: Client, path: Path) -> None:
    client.start(path, stopOnExit=True)
    client.move("next")
    client.request("setExpression", {"expression": "%h", "value": "0"})
    client.request("continue", {"threadId": 1})
    client.expect_stop("exit")


EVEN = "f32[2,3] [[0.3333 0.3333 0.3333] [0.3333 0.3333 0.3333]]"


def test_restart_keeps_the_edits_of_the_branch(client: Client) -> None:
    _edited_and_ended(client, EXAMPLES / "first_steps.nnc")
    client.request("restart")
    client.expect_stop("entry")
    assert "restart on branch 1 (%h set)" in _messages(client)
    client.request("continue", {"threadId": 1})
    client.expect_stop("exit")
    assert client.evaluate("%probs") == EVEN
    assert [text for text in _messages(client) if "re-applied" in text] == [
        "1 edit of branch 1 will be re-applied: %h at line 11; `branch 0` returns to the run without it",
        "1 edit re-applied: %h at line 11",
    ]


def test_step_back_and_forward_again_keeps_an_edit(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    client.move("next")
    client.request("setExpression", {"expression": "%h", "value": "0"})
    client.move("stepBack", reason="entry")
    client.move("next")
    assert client.evaluate("%h[0, 1]") == "0.0"


def test_restart_of_a_changed_file_reports_discarded_edits(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "first_steps.nnc"
    path.write_text((EXAMPLES / "first_steps.nnc").read_text())
    _edited_and_ended(client, path)
    path.write_text(path.read_text() + "\n")
    client.request("restart")
    client.expect_stop("entry")
    assert any(
        "restart discards edited values: a file of the program has changed" in text
        for text in _messages(client)
    )
    client.request("continue", {"threadId": 1})
    client.expect_stop("exit")
    assert client.evaluate("%probs") != EVEN


WITHOUT_KERNEL = """#nncdbg 1
opset 18
opset acme 1

graph @main(%x: f32[2,3]) -> (%y) {
  %b: f32[2,3], %c: f32[2,3] = acme.Foo(%x)
  %y = Add(%b, %c)
  return %y
}
"""


def test_results_of_an_op_without_a_kernel_can_be_set(client: Client, tmp_path: Path) -> None:
    (tmp_path / "foreign.nnc").write_text(WITHOUT_KERNEL)
    client.start(str(tmp_path / "foreign.nnc"), inputs={"x": "ones"}, cwd=str(tmp_path))
    client.move("continue", "exception")
    outputs = scope_reference(client, "Outputs")
    shown = client.request("variables", {"variablesReference": outputs})["variables"]
    assert [(each["name"], each["value"]) for each in shown] == [
        ("%b", "not set: its op has no kernel"),
        ("%c", "not set: its op has no kernel"),
    ]
    assert set_variable(client, outputs, "%b", "2")["value"] == "f32[2,3] [[2. 2. 2.] [2. 2. 2.]]"
    arguments = {"expression": "%c", "value": "ones[2,3]", "frameId": client.top_frame()["id"]}
    assert client.request("setExpression", arguments)["value"] == "f32[2,3] [[1. 1. 1.] [1. 1. 1.]]"
    assert client.evaluate("%b[0, 0]") == "2.0"
    client.move("next", "step")
    assert client.evaluate("%c") == "f32[2,3] [[1. 1. 1.] [1. 1. 1.]]"
    client.move("stepBack", "entry")
    client.move("next", "step")
    client.move("next", "step")
    assert client.evaluate("%y") == "f32[2,3] [[3. 3. 3.] [3. 3. 3.]]"
