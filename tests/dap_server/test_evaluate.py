"""Expressions in every context, the debug console with the terminal's commands, completion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nncdbg.dap_server.console import MAX_TEXT, bounded
from nncdbg.dap_server.handlers.evaluating import MAX_ELEMENTS, python_text
from tests.dap_server import odd_values
from tests.dap_server.client import Client, Message, until
from tests.dap_server.conftest import EXAMPLES

RESULTS = {
    '%"odd name"': ("f32[2,3] [[nan inf -inf] [0.1 -0. 3. ]]", "f32[2,3]"),
    '%"größe/1"': ("f32[] 5", "f32[]"),
    '%"größe/1" * 2': ("10.0", "f32[]"),
    "%words": ("str[2] ['plain' 'größe']", "str[2]"),
    "%words[1]": ("größe", "str"),
    "%empty": ("f32[0,3] (empty)", "f32[0,3]"),
    "%narrow": ("bf16[2,3] [[0 1 2] [3 4 5]]", "bf16[2,3]"),
    "%small[0, 1]": ("1", "i4[]"),
    "%flags[1, 1]": ("true", "bool[]"),
    "%rows": ("seq(f32[1,3]) 2 items", "seq(f32[1,3])"),
    "%rows[0]": ("f32[1,3] [[0. 1. 2.]]", "f32[1,3]"),
    "topk(%x, 1)": ("seq(...) 2 items", "seq(...)"),
    "$out": ("f32[2,3] [[nan -inf inf] [-0.2 0. -6. ]]", "f32[2,3]"),
    "mean(%x)": ("2.5", "f64[]"),
    "x.shape": ("(2, 3)", "tuple"),
    "stats(%x).nan": ("0", "int"),
    "any(isnan(%twice))": ("true", "bool[]"),
    "$op": ("return", "str"),
}

REFUSED = {
    "%nope": "%nope",
    "%y.nope": "nope",
    "%x + %turned": "the shapes do not broadcast: (2, 3) and (3, 2)",
    "%empty[0]": "out of bounds",
    "__import__('os')": "__import__",
    "%rows + 1": "sequence is not a tensor",
    "ones(1000000, 1000000)": "too many for an expression",
    "$nope": "there is no variable",
    "mean(%x) % 2": "`%` is not an operator",
    "((((": "expected",
    "": "expected",
}


def test_hover_and_watch_give_the_result_of_the_console(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    frame = client.top_frame()["id"]
    for text, (result, kind) in RESULTS.items():
        answers = [
            client.request("evaluate", {"expression": text, "frameId": frame} | context)
            for context in ({"context": each} for each in ("hover", "watch", "repl", "variables"))
        ]
        assert (answers[0]["result"], answers[0]["type"]) == (result, kind), text
        assert all(answer == answers[0] for answer in answers), text
        assert client.request("evaluate", {"expression": text}) == answers[0], "without a context or frame"
    for text, message in REFUSED.items():
        for context in ("hover", "watch", "clipboard"):
            arguments = {"expression": text, "context": context}
            response = client.expect_response(client.send("evaluate", arguments))
            assert not response["success"], text
            assert message in response["message"], text
            assert "internal error" not in response["message"], text
            assert response["body"]["error"]["showUser"] is False


def test_a_result_opens_like_its_variable_and_keeps_its_reference_at_the_next_stop(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc", initialize=odd_values.FLAGS)
    client.move("next")
    whole = client.request("evaluate", {"expression": "%h"})
    variable = client.variables("Values")["%h"]
    for field in ("variablesReference", "memoryReference", "type", "indexedVariables"):
        assert whole[field] == variable[field]
    assert whole["result"] == variable["value"]
    doubled = client.request("evaluate", {"expression": "%h * 2"})
    rows = opened(client, doubled)
    assert rows["[0]"]["value"].startswith("f32[4] [0. ")
    client.move("next")
    assert opened(client, doubled) == rows, "the same expression, the same number"
    assert opened(client, rows["[1]"])["[1]"]["value"] == client.evaluate("%h[1,1] * 2")


def opened(client: Client, answer: Message) -> dict[str, Message]:
    found = client.request("variables", {"variablesReference": answer["variablesReference"]})["variables"]
    return {each["name"]: each for each in found}


def test_integers_are_hexadecimal_on_request(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    for text, result in {"255": "0xff", "%small[1, 2]": "0x5", "[10, 11]": "i64[2] [0xa 0xb]"}.items():
        assert client.evaluate(text, format={"hex": True}) == result
    assert client.evaluate("2.5", format={"hex": True}) == "2.5"


def test_names_are_resolved_in_the_requested_frame(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    client.move("stepIn")
    inner, outer = client.request("stackTrace", {"threadId": 1})["stackFrames"]
    assert client.evaluate("$op", frameId=inner["id"]) == "ReduceMean"
    assert client.evaluate("$op", frameId=outer["id"]) == "@layer"
    assert client.evaluate("up", "repl", frameId=inner["id"]).startswith("#1 @main")
    assert client.evaluate("$op", "repl", frameId=inner["id"]) == "@layer", "until another frame is shown"
    assert client.evaluate("$op", "repl", frameId=outer["id"]) == "@layer"
    assert client.evaluate("$op", "repl", frameId=inner["id"]) == "ReduceMean"
    client.move("stepOut")
    refusal = client.refused("evaluate", {"expression": "$op", "frameId": inner["id"]})
    assert "the frame no longer exists" in refusal


CLIPBOARD: dict[str, Any] = {
    "f32": np.array([[0.1, np.nan], [np.inf, -np.inf]], np.float32),
    "f16": np.array([0.1, 65504, -0.0], np.float16),
    "f64": np.array([0.1, 1e300]),
    "bf16": np.array([0.1, np.nan, -3], ml_dtypes.bfloat16),
    "i4": np.array([-8, 7], ml_dtypes.int4),
    "i64": np.array([2**62, -1]),
    "bool": np.array([[True], [False]]),
    "str": np.array(["a'b", "größe\n"], object),
    "c64": np.array([1 + 2j, complex(np.nan, -np.inf)], np.complex64),
    "scalar": np.array(2.5, np.float32),
    "empty": np.empty((0, 3), np.int32),
    "no rows": np.empty((2, 0), np.float32),
    "sequence": [np.array([1.0]), np.array([2], np.int8)],
    "number": np.float32(0.1),
    "nan": float("nan"),
    "tuple": (2, 3),
    "text": "a'b",
}


@pytest.mark.parametrize("content", CLIPBOARD.values(), ids=CLIPBOARD)
def test_copied_text_is_python_that_evaluates_to_the_value(content: Any) -> None:
    text = python_text("%v", content)
    back = eval(text, {"np": np, "ml_dtypes": ml_dtypes})  # noqa: S307  our own text
    expected = content if isinstance(content, list) else [content]
    found = back if isinstance(content, list) else [back]
    for mine, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, np.ndarray):
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
            same = (mine == theirs) | ((mine != mine) & (theirs != theirs))
            assert np.all(same)
        else:
            assert mine == theirs or str(mine) == str(theirs)


def test_a_value_too_large_to_copy_names_the_save_command() -> None:
    text = python_text("%h", np.zeros((MAX_ELEMENTS, 2), np.float32))
    assert text.startswith("# %h: f32[10000,2], 20000 elements, too many to copy; `save %h FILE.npy`")
    assert "..." in text
    assert len(text) < 1000


def test_the_clipboard_context_gives_python(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    copied = client.evaluate('%"odd name"', "clipboard")
    assert copied == "np.array([[np.nan, np.inf, -np.inf], [0.1, -0.0, 3.0]], dtype=np.float32)"
    assert client.evaluate("%words", "clipboard") == "np.array(['plain', 'größe'], dtype=object)"


# -- the console -----------------------------------------------------------------------------------


def test_terminal_commands_work_in_the_console(client: Client, tmp_path: Path) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    client.move("next")
    assert client.evaluate("stats %h", "repl").splitlines()[-1] == "  count     8"
    bars = client.evaluate("hist %h 3", "repl").splitlines()
    assert len(bars) == 4
    assert all(len(line) <= 100 for line in bars)
    assert "\x1b" not in "".join(bars)
    assert "mark m1: after 5 statements" in client.evaluate("mark", "repl")
    assert client.evaluate("", "repl") == ""
    assert client.evaluate("# a remark", "repl") == ""
    assert "there is no command" in client.refused("evaluate", {"expression": "foo", "context": "repl"})
    refusal = client.refused("evaluate", {"expression": "next x", "context": "repl"})
    assert "`next` needs a number" in refusal
    assert "saved to" in client.evaluate("save %h h.npy", "repl")
    assert np.load(tmp_path / "h.npy").shape == (2, 4)
    client.none_of("continued")


def test_colours_are_sent_only_to_a_client_that_supports_them(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path, supportsANSIStyling=True)
    assert "\x1b[" in client.evaluate('show %"odd name"', "repl")


def test_commands_that_move_answer_first_and_then_stop(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    for line, reason in {"next": "step", "back": "entry", "until 12": "goto", "step": "step"}.items():
        assert client.evaluate(line, "repl") == ""
        client.expect_event("continued", threadId=1)
        output = client.wait_for(lambda m: m.get("event") == "output" and " -> " in m["body"]["output"])
        stopped = client.expect_stop(reason)
        assert stopped["threadId"] == 1
        assert output["seq"] < client.messages[-1]["seq"]
    assert client.evaluate("goto :0", "repl") == ""
    client.expect_stop("entry")
    assert client.evaluate("back", "repl") == ""
    client.wait_for(lambda m: m.get("event") == "output" and "start of the program" in m["body"]["output"])
    client.expect_stop("entry")
    assert client.evaluate("continue", "repl") == ""
    client.expect_event("terminated")
    assert "the program has ended" in client.refused("evaluate", {"expression": "back", "context": "repl"})
    assert client.evaluate("stats %probs", "repl")


def test_several_lines_and_files_of_commands_run_in_order(client: Client, tmp_path: Path) -> None:
    (tmp_path / "look.cmd").write_text("next\np 1 + 1\nfoo\nnext\n")
    client.start(EXAMPLES / "first_steps.nnc")
    for line in ("source look.cmd", "next\np 1 + 1\nfoo\nnext"):
        first = client.top_frame()["line"]
        assert client.evaluate(line, "repl") == ""
        client.expect_stop("step")
        assert client.top_frame()["line"] > first
    output = "".join(m["body"]["output"] for m in client.messages if m.get("event") == "output")
    assert output.count('error: there is no command "foo"') == 2
    assert output.count("\n2\n") == 2
    refusal = client.refused("evaluate", {"expression": "source nope.cmd", "context": "repl"})
    assert "cannot read the commands in nope.cmd" in refusal


def test_breakpoints_of_the_console_are_shown_to_the_client(client: Client) -> None:
    path = EXAMPLES / "first_steps.nnc"
    client.start(path)
    client.evaluate("break 18 if $iter == 1", "repl")
    at_line = client.expect_event("breakpoint", reason="new")["breakpoint"]
    assert (at_line["line"], at_line["source"]["path"], at_line["verified"]) == (18, str(path), True)
    client.evaluate("break Relu", "repl")
    at_op = client.expect_event("breakpoint", reason="new")["breakpoint"]
    assert at_op["message"] == "op Relu"
    assert "line" not in at_op
    client.request("continue", {"threadId": 1})
    assert client.expect_stop("function breakpoint")["hitBreakpointIds"] == [at_op["id"]]
    client.evaluate("delete 2", "repl")
    assert client.expect_event("breakpoint", reason="removed")["breakpoint"]["id"] == at_op["id"]
    client.request("continue", {"threadId": 1})
    assert client.expect_stop("breakpoint")["hitBreakpointIds"] == [at_line["id"]]
    client.request("setBreakpoints", {"source": {"path": str(path)}, "breakpoints": []})
    assert "there are no breakpoints" in client.evaluate("info breakpoints", "repl")


def test_a_value_set_in_the_console_invalidates_the_variables(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc", initialize=odd_values.FLAGS)
    client.move("next")
    assert "branch 1" in client.evaluate("set %h[0, 1] = nan", "repl")
    assert client.expect_event("invalidated")["areas"] == ["variables"]
    assert client.evaluate("%h[0, 1]") == "nan"


def test_quit_ends_the_session(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    assert client.evaluate("quit", "repl") == ""
    client.expect_event("terminated")


LOOP = """#nncdbg 1
opset 18

graph @main(%x: f32[4]) -> (%y: f32[4]) {
  while @long (%a: f32[4] = %x) count %i: i64[] times 100000000 {
    %b: f32[4] = Neg(%a)
    next %a = %b
  } -> (%y: f32[4] = %a)
  return %y
}
"""


def test_the_console_reads_and_sets_values_during_a_run(client: Client, tmp_path: Path) -> None:
    (tmp_path / "long.nnc").write_text(LOOP)
    client.start("long.nnc")
    client.request("continue", {"threadId": 1})
    for text in ("next", "goto :3", "branch 0"):
        arguments = {"expression": text, "context": "repl"}
        assert "pause it first" in client.refused("evaluate", arguments), text
    client.evaluate("set %x = 1", "repl")
    assert client.evaluate("%x") == "f32[4] [1. 1. 1. 1.]"
    first = int(client.evaluate("$iter"))
    until(lambda: int(client.evaluate("$iter")) > first, "the program runs between requests")
    client.evaluate("break 6 if $iter > 5", "repl")
    client.expect_event("breakpoint", reason="new")
    client.expect_stop("breakpoint")


def test_an_answer_is_bounded() -> None:
    assert bounded("short") == "short"
    text = bounded("größe\n" * 100_000)
    assert len(text.encode()) <= MAX_TEXT + 200
    assert "more bytes" in text.splitlines()[-1]


# -- completion ------------------------------------------------------------------------------------

COMPLETIONS = [
    ("sta", 4, 1, 3, ["stats"]),
    ("print %p", 9, 7, 2, ["%p", "%probs"]),
    ("%pro", 5, 1, 4, ["%probs"]),
    ("mean(%pro + 1)", 10, 6, 4, ["%probs"]),
    ("1 + quant", 10, 5, 5, ["quantile("]),
    ("break @la", 10, 7, 3, ["@layer"]),
    ("p $it", 6, 3, 3, ["$iter"]),
    ("catch n", 8, 7, 1, ["nan"]),
]


@pytest.mark.parametrize("first", [0, 1])
def test_completion_lists_names_with_their_columns(client: Client, first: int) -> None:
    client.start(EXAMPLES / "first_steps.nnc", initialize={"columnsStartAt1": bool(first)})
    for text, column, start, length, labels in COMPLETIONS:
        arguments = {"text": text, "column": column - 1 + first}
        targets = client.request("completions", arguments)["targets"]
        assert set(labels) <= {each["label"] for each in targets}, text
        for target in targets:
            assert (target["start"], target["length"]) == (start - 1 + first, length), text
    for text, column in {"": 1, "zzz": 99, "😀 %": 5, "%": -3}.items():
        client.request("completions", {"text": text, "column": column})
    wide = client.request("completions", {"text": "p 😀 + %pr", "column": 10 + first})["targets"]
    assert [each["start"] for each in wide if each["label"] == "%probs"] == [7 + first]


def test_the_capabilities_list_the_features(client: Client) -> None:
    capabilities = client.request("initialize", {"adapterID": "nncdbg"})
    for name in (
        "supportsEvaluateForHovers",
        "supportsClipboardContext",
        "supportsCompletionsRequest",
        "supportsSetVariable",
        "supportsSetExpression",
        "supportsReadMemoryRequest",
        "supportsWriteMemoryRequest",
        "supportsANSIStyling",
    ):
        assert capabilities[name] is True, json.dumps(capabilities)
    assert capabilities["completionTriggerCharacters"] == ["%", "@", "$", ".", "/", '"']


def test_the_console_deletes_all_breakpoints_only_with_the_word_all(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    client.evaluate("b 11", "repl")
    client.evaluate("b 12", "repl")
    response = client.expect_response(client.send("evaluate", {"expression": "delete", "context": "repl"}))
    assert not response["success"]
    assert "`delete all` deletes them" in response["message"]
    assert client.evaluate("info b", "repl").startswith("1: line 11\n2: line 12")
    client.evaluate("delete all", "repl")
    assert client.evaluate("info b", "repl").startswith("there are no breakpoints")


def test_display_and_commands_run_at_stops_of_the_editor(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    for line in ("display $iter + 50", "break 13", "commands", "p max(%s)", "continue", "end", "break 21"):
        client.evaluate(line, "repl")
    seen = len(client.messages)
    client.move("continue", "breakpoint")
    output = "".join(m["body"]["output"] for m in client.messages[seen:] if m.get("event") == "output")
    assert [f"1: $iter + 50 = {50 + n}" in output for n in range(6)] == [True] * 6
    assert "0.823489" in output
    assert "6.2533693" in output
    assert client.top_frame()["line"] == 21


def test_python_in_the_console_can_move_the_program(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")

    def printed(text: str) -> None:
        client.wait_for(lambda m: m.get("event") == "output" and text in m["body"]["output"])

    assert client.evaluate("py print(debugger.step_over().line + 100)", "repl") == ""
    printed("111")
    client.expect_stop("step")
    block = 'py\nfor number in range(2):\n    execute("next")\n    print("turn", number)\nend'
    assert client.evaluate(block, "repl") == ""
    printed("turn 1")
    client.expect_stop("step")
    for line in ("py", "if h.sum() > 0:", "    print('positive')"):
        assert client.evaluate(line, "repl") == ""
    client.evaluate("end", "repl")
    printed("positive")
    client.expect_stop("step")
    client.evaluate("py 1/0", "repl")
    printed("ZeroDivisionError: division by zero")
    client.expect_stop("step")
    assert "has no Python prompt" in client.refused("evaluate", {"expression": "interact", "context": "repl"})
    for context in ("hover", "watch"):
        assert "py" in client.refused("evaluate", {"expression": "py print(1)", "context": context})


def test_a_replayed_recording_runs_no_python_in_the_console(client: Client, tmp_path: Path) -> None:
    recording = tmp_path / "r.cmd"
    recording.write_text(
        "break 13\ncommands\nsilent\npy print('in ' + 'commands')\nend\npy print('r' + 'an')\n"
    )
    client.start(EXAMPLES / "first_steps.nnc")
    client.evaluate(f"replay {recording}", "repl")
    refused = "the recording contains Python code"
    client.wait_for(lambda m: m.get("event") == "output" and refused in m["body"]["output"])
    client.expect_stop("entry")
    seen = len(client.messages)
    client.move("continue", "breakpoint")
    output = "".join(m["body"]["output"] for m in client.messages[seen:] if m.get("event") == "output")
    assert refused in output
    assert "silent" not in output
    outputs = [m["body"]["output"] for m in client.messages if m.get("event") == "output"]
    assert not any("ran" in text.splitlines() or "in commands" in text.splitlines() for text in outputs)


def test_convenience_names_work_in_the_console_and_in_conditions(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    client.move("next")
    assert client.evaluate("$limit = max(%h) / 2", "repl").startswith("0.96")
    assert client.evaluate("$_ * 2 == max(%h)", "repl") == "true"
    assert "unexpected `=`" in client.refused("evaluate", {"expression": "$limit = 3", "context": "watch"})
    function = {"name": "MatMul", "condition": "max($out) < $limit"}
    (found,) = client.request("setFunctionBreakpoints", {"breakpoints": [function]})["breakpoints"]
    assert found["verified"], found
    assert client.evaluate("$limit", "watch").startswith("0.96")
    client.move("continue", reason="function breakpoint")
    assert client.evaluate("max($out) - max(%scores)") == "0.0"
