"""Unusual names, every type, stale references, deep nesting, and vanishing clients."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nncdbg.dtypes import NUMPY
from nncdbg.text.lexemes import name_text
from tests.dap_server.client import TIMEOUT, Client, Message
from tests.dap_server.conftest import EXAMPLES
from tests.dap_server.conversations import conversation
from tests.dap_server.odd_values import FLAGS
from tests.dap_server.servers import Server, serving

pytestmark = pytest.mark.usefixtures("forked_processes")

NAMES = [
    'a"b',
    "line\nbreak",
    "\u202eright to left",
    "x" * 9000,
    "a b",
    "%h",
    "@g",
    "[0]",
    "\\",
    "x]y",
    "\x1b[31mred",
    "é𝄞",
    "a,b",
    "$iter",
    "mean",
    "True",
    "a.shape",
    "0",
    "-1",
    "\t",
    "\0",
    "{x}",
    "…",
    "stats(%x)",
    "and",
    " ",
]


def written(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("\n".join(("#nncdbg 1", "opset 25", *lines, "")), encoding="utf-8")
    return path


def run_to_the_end(client: Client, program: Path, **options: Any) -> None:
    client.launch(program, initialize=FLAGS, stopOnExit=True, **options)
    client.request("configurationDone")
    client.expect_stop("exit")


def reference_of(client: Client, scope: str) -> int:
    scopes = client.request("scopes", {"frameId": client.top_frame()["id"]})["scopes"]
    found: int = next(each["variablesReference"] for each in scopes if each["name"] == scope)
    return found


# -- names -----------------------------------------------------------------------------------------


def test_values_of_any_name_can_be_seen_set_and_watched(tmp_path: Path) -> None:
    lines, before = [], "%x"
    for name in NAMES:
        lines.append(f"  %{name_text(name)}: f32[2,2] = Abs({before})")
        before = f"%{name_text(name)}"
    header, end = "graph @main(%x: f32[2,2]) -> (%y: f32[2,2]) {", [f"  %y: f32[2,2] = Neg({before})"]
    program = written(tmp_path, "names.nnc", header, *lines, *end, "  return %y", "}")
    with conversation() as client:
        run_to_the_end(client, program)
        listed = client.variables("Values")
        values = reference_of(client, "Values")
        assert len(listed) == len(NAMES) + 2
        for name, variable in listed.items():
            spelled = variable["evaluateName"]
            assert client.evaluate(spelled) == client.evaluate(spelled, "repl") == variable["value"]
            assert client.evaluate(f"{spelled}[0, 0] * 0", "hover") in ("0.0", "-0.0")
            client.request("variables", {"variablesReference": variable["variablesReference"]})
            client.request("readMemory", {"memoryReference": variable["memoryReference"], "count": 16})
            client.request("nncdbg/slice", {"name": spelled})
            completed = client.request("completions", {"text": f"p {spelled[:-1]}", "column": len(spelled)})
            assert "targets" in completed
            answer = client.request("setVariable", {"variablesReference": values, "name": name, "value": "1"})
            assert answer["value"] == "f32[2,2] [[1. 1.] [1. 1.]]"
            client.request("setExpression", {"expression": f"{spelled}[0, 0]", "value": "2"})
            assert client.evaluate(f"{spelled}[0]") == "f32[2] [2. 1.]"
            if "declarationLocationReference" in variable:
                number = variable["declarationLocationReference"]
                client.request("locations", {"locationReference": number})
            watched = client.request("dataBreakpointInfo", {"variablesReference": values, "name": name})
            for reported in (
                client.request("setDataBreakpoints", {"breakpoints": [{"dataId": watched["dataId"]}]}),
                client.request("setFunctionBreakpoints", {"breakpoints": [{"name": spelled}]}),
            ):
                assert reported["breakpoints"][0]["verified"], (name, reported)


# -- types -----------------------------------------------------------------------------------------

UNREPRESENTABLE = {"f4e2m1fn": ["nan", "inf"], "f8e4m3fn": ["inf"], "f8e8m0fnu": ["0", "-1", "inf"]}
"""Float values that a type cannot represent, by type."""


def test_a_value_of_every_type_can_be_seen_read_and_written(tmp_path: Path) -> None:
    inputs = ", ".join(f"%i_{name}: {name}[2,3]" for name in NUMPY)
    lines = [f"  %o_{name}: {name}[2,3] = Identity(%i_{name})" for name in NUMPY]
    header = f"graph @main({inputs}) -> (%o_f32: f32[2,3]) {{"
    program = written(tmp_path, "types.nnc", header, *lines, "  return %o_f32", "}")
    given: dict[str, Any] = {f"i_{name}": "ones" for name in NUMPY}
    given["i_str"] = [["a", "b", "c"], ["d", "e", "f"]]
    with conversation() as client:
        run_to_the_end(client, program, inputs=given)
        listed = client.variables("Values")
        for name, dtype in NUMPY.items():
            variable = listed[f"%o_{name}"]
            assert variable["type"] == f"{name}[2,3]"
            assert variable["value"].startswith(f"{name}[2,3] [")
            rows = client.request("variables", {"variablesReference": variable["variablesReference"]})
            row = next(each for each in rows["variables"] if each["name"] == "[0]")
            place = {"variablesReference": row["variablesReference"], "name": "[1]"}
            client.request("variables", {"variablesReference": row["variablesReference"]})
            client.evaluate(f"%o_{name}", "clipboard")
            client.evaluate(f"stats %o_{name}", "repl")
            client.request("nncdbg/slice", {"expression": f"%o_{name}"})
            if name == "str":
                assert client.request("setVariable", {**place, "value": '"x"'})["value"] == "'x'"
                assert "text is required" in client.refused("setVariable", {**place, "value": "1"})
                assert "memoryReference" not in variable
                continue
            client.request("setVariable", {**place, "value": "1"})
            assert "is not valid data" in client.refused("setVariable", {**place, "value": '"x"'})
            for number in UNREPRESENTABLE.get(name, []):
                arguments = {"expression": f"%o_{name}[0, 1]", "value": number}
                reported = client.refused("setExpression", arguments)
                assert "cannot represent" in reported, (name, number, reported)
            reference = variable["memoryReference"]
            data = client.request("readMemory", {"memoryReference": reference, "count": 1000})["data"]
            assert len(base64.b64decode(data)) == 6 * dtype.itemsize
            assert client.request("writeMemory", {"memoryReference": reference, "data": data})
            assert client.request("readMemory", {"memoryReference": reference, "count": 1000})["data"] == data


# -- references ------------------------------------------------------------------------------------

MOVES: tuple[tuple[str, dict[str, str]], ...] = (
    ("next", {}),
    ("stepIn", {"granularity": "instruction"}),
    ("stepOut", {}),
    ("stepBack", {}),
    ("stepOut", {}),
    ("stepBack", {"granularity": "instruction"}),
    ("nncdbg/reverseStepIn", {}),
    ("nncdbg/reverseStepOut", {}),
    ("continue", {}),
    ("stepBack", {}),
    ("reverseContinue", {}),
)

HINTS = (
    "step over",
    "request",
    "set a value or one of its",
    "before the name of a value",
    "write inside the value",
)


def references(client: Client) -> list[tuple[int, int, Message]]:
    """Return (frame, scope, variable) of each visible variable."""
    found = []
    for frame in client.request("stackTrace", {"threadId": 1})["stackFrames"]:
        for scope in client.request("scopes", {"frameId": frame["id"]})["scopes"]:
            reference = scope["variablesReference"]
            listed = client.request("variables", {"variablesReference": reference})["variables"]
            found += [(frame["id"], reference, each) for each in listed]
    return found


def uses(frame: int, scope: int, variable: Message) -> list[tuple[str, Message]]:
    """Return the requests that a client may send about a variable."""
    here, text = {"frameId": frame}, variable.get("evaluateName", "1")
    memory = {"memoryReference": variable.get("memoryReference", "0x1")}
    return [
        ("scopes", here),
        ("variables", {"variablesReference": scope}),
        ("variables", {"variablesReference": variable["variablesReference"]}),
        ("stepInTargets", here),
        ("evaluate", {**here, "expression": text}),
        ("evaluate", {**here, "expression": text, "context": "repl"}),
        ("nncdbg/slice", {**here, "expression": text}),
        ("dataBreakpointInfo", {"variablesReference": scope, "name": variable["name"]}),
        ("locations", {"locationReference": variable.get("declarationLocationReference", 1)}),
        ("readMemory", {**memory, "count": 4}),
        ("setVariable", {"variablesReference": scope, "name": variable["name"], "value": "0"}),
        ("setExpression", {**here, "expression": text, "value": "1"}),
        ("writeMemory", {**memory, "data": "AAAAAA=="}),
    ]


def test_stale_references_are_refused_with_a_hint_after_every_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with conversation() as client:
        client.start(EXAMPLES / "first_steps.nnc", initialize=FLAGS, stopOnExit=True)
        for command in ("next", "next", "stepIn", "next"):
            client.move(command)
        refused = 0
        for move, arguments in (*MOVES, ("restart", {})):
            old = references(client)
            client.request(move, {} if move == "restart" else {"threadId": 1, **arguments})
            client.expect_event("stopped")
            for frame, scope, variable in old:
                for command, parameters in uses(frame, scope, variable):
                    answer = client.expect_response(client.send(command, parameters))
                    if not answer["success"]:
                        refused += 1
                        assert command not in ("scopes", "variables", "stepInTargets", "dataBreakpointInfo")
                        assert any(hint in answer["message"] for hint in HINTS), (move, command, answer)
        assert refused > 100, "too few references were stale"


# -- numbers ---------------------------------------------------------------------------------------

NUMBERS = (-1, 0, 10**9, 2**31, 2**63, -(2**63), 10**30)


def test_out_of_range_numbers_are_no_internal_error() -> None:
    with conversation() as client:
        client.start(EXAMPLES / "first_steps.nnc", initialize=FLAGS)
        frame = client.top_frame()
        address = frame["instructionPointerReference"]
        for number in NUMBERS:
            lines = {"source": frame["source"], "breakpoints": [{"line": number}]}
            there = {"instructionReference": address, "offset": number}
            for command, arguments in (
                ("setBreakpoints", lines),
                ("setInstructionBreakpoints", {"breakpoints": [there]}),
            ):
                answer = client.expect_response(client.send(command, arguments))
                if answer["success"]:
                    (reported,) = answer["body"]["breakpoints"]
                    assert reported["verified"] is (number == 0 and command != "setBreakpoints"), reported
            for command, arguments in (
                ("gotoTargets", {"source": frame["source"], "line": number}),
                ("breakpointLocations", {"source": frame["source"], "line": number, "endLine": number}),
                ("disassemble", {"memoryReference": address, "offset": number, "instructionCount": 3}),
                ("variables", {"variablesReference": 1001, "start": number, "count": number}),
                ("stackTrace", {"threadId": 1, "startFrame": number, "levels": number}),
                ("modules", {"startModule": number, "moduleCount": number}),
                ("completions", {"text": "p %", "column": number, "line": number}),
                ("nncdbg/lines", {"start": number, "end": number}),
                ("nncdbg/slice", {"expression": "%x", "axes": [{"start": number, "step": number}]}),
            ):
                answer = client.expect_response(client.send(command, arguments))
                assert "internal error" not in answer.get("message", ""), (command, number, answer)


# -- nesting ---------------------------------------------------------------------------------------


def test_a_stack_of_five_hundred_layers_is_complete(tmp_path: Path) -> None:
    deep = 500
    lines = ["graph @main(%x: f32[4]) -> (%y: f32[4]) {", "  %y: f32[4] = @l0(%x)", "  return %y", "}"]
    for layer in range(deep):
        inside = f"@l{layer + 1}(%a)" if layer < deep - 1 else "Neg(%a)"
        header = f"graph @l{layer}(%a: f32[4]) -> (%b: f32[4]) {{"
        lines += [header, f"  %b: f32[4] = {inside}", "  return %b", "}"]
    with conversation() as client:
        client.start(written(tmp_path, "deep.nnc", *lines))
        for _ in range(deep):
            client.move("stepIn")
        stack = client.request("stackTrace", {"threadId": 1})
        assert len(stack["stackFrames"]) == stack["totalFrames"] == deep + 1
        assert len(client.evaluate("where", "repl").splitlines()) == deep + 1
        client.move("stepOut")
        client.move("nncdbg/reverseStepIn")
        outermost = stack["stackFrames"][-1]["id"]
        client.move("restartFrame", "restart", frameId=outermost)
        assert client.top_frame()["id"] == outermost
        client.request("continue", {"threadId": 1})
        client.expect_event("exited", exitCode=0)


# -- vanishing clients -----------------------------------------------------------------------------

HALF = b"Content-Length: 200\r\n\r\n" + json.dumps({"seq": 9, "type": "request"}).encode()


@pytest.mark.parametrize("phase", ["loading", "running", "stopped", "ended"])
@pytest.mark.parametrize("partial_frame", [b"", HALF], ids=["between frames", "within a frame"])
def test_the_next_client_is_served_after_one_vanishes(
    tmp_path: Path, phase: str, partial_frame: bytes
) -> None:
    large = [f"  %v{n}: f32[4] = Abs(%{f'v{n - 1}' if n else 'x'})" for n in range(20_000)]
    header = "graph @main(%x: f32[4]) -> (%v19999: f32[4]) {"
    program = written(tmp_path, "large.nnc", header, *large, "  return %v19999", "}")
    small = EXAMPLES / "first_steps.nnc"
    with serving(cwd=tmp_path) as server:
        with server.client() as client:
            client.request("initialize", {"adapterID": "nncdbg"})
            if phase == "loading":
                client.send("launch", {"program": str(program)})
            else:
                chosen = program if phase == "running" else small
                client.request("launch", {"program": str(chosen), "stopOnEntry": phase == "stopped"})
                client.request("configurationDone")
                client.expect_event({"running": "thread", "stopped": "stopped"}.get(phase, "terminated"))
            client.send_bytes(partial_frame)
        with next_client(server) as following:
            following.start(small)
            following.move("next")


@contextlib.contextmanager
def next_client(server: Server) -> Iterator[Client]:
    """Connect until the server accepts a client, as the end of the previous session takes a moment."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        with server.client() as client:
            answer = client.expect_response(client.send("cancel", {}))
            if answer["success"]:
                yield client
                return
            assert "another client is connected" in answer["message"]
    raise AssertionError("the vanished client still occupies the server")
