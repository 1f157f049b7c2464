"""T15: a session of an editor is recorded as commands of the prompt, and replays in a terminal."""

from __future__ import annotations

import ast
import base64
import json
import math
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nncdbg import dtypes
from nncdbg.commands.recording.entries import read_recording
from nncdbg.commands.recording.stops import RecordedStop
from nncdbg.dap_server.client_recorder import smallest_block, value_text
from nncdbg.terminal.main import main
from tests.dap_server.client import Client, stdio_client
from tests.dap_server.conftest import EXAMPLES
from tests.dap_server.test_moving import FOREVER

pytestmark = pytest.mark.usefixtures("forked_processes")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(EXAMPLES / "first_steps.nnc", tmp_path / "model.nnc")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def client(folder: Path) -> Iterator[Client]:
    with stdio_client(cwd=folder) as made:
        yield made


def commands_in(path: str) -> list[str]:
    return [each.command.text for each in read_recording(path).commands]


def end(client: Client) -> None:
    client.send("disconnect")
    client.expect_end()


def replayed(capfd: pytest.CaptureFixture[str], path: str = "r.log") -> str:
    """Replay a recording, and return the last line of the output."""
    folder = os.getcwd()
    capfd.readouterr()
    try:
        code = main(["replay", path])
    finally:
        os.chdir(folder)
    captured = capfd.readouterr()
    assert code == 0, captured.out + captured.err
    return captured.out.splitlines()[-1]


def test_a_session_of_an_editor_replays_in_a_terminal(
    client: Client, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """T15: breakpoints, moves, edits, notes and console commands."""
    source = {"path": str(folder / "model.nnc")}
    client.launch("model.nnc", record="r.log", inputs={"x": [[1, 2, 3, 4], [5, 6, 7, 8]]}, cwd=str(folder))
    client.request("setBreakpoints", {"source": source, "breakpoints": [{"line": 10}, {"line": 14}]})
    client.request("setExceptionBreakpoints", {"filters": ["nan", "inf"]})
    client.request(
        "setFunctionBreakpoints", {"breakpoints": [{"name": "@layer", "condition": "max(%x) > 9"}]}
    )
    client.request("configurationDone")
    client.expect_stop("breakpoint")
    client.move("next")
    client.move("continue", "breakpoint")
    spread = [{"line": 14, "condition": "$iter == 2"}, {"line": 17, "logMessage": "mean {mean(%s)}"}]
    client.request("setBreakpoints", {"source": source, "breakpoints": spread})
    client.request("evaluate", {"expression": "note the second iteration", "context": "repl"})
    assert "no command" in client.refused("evaluate", {"expression": "foo", "context": "repl"})
    client.request("setExpression", {"expression": "%s[0, 1]", "value": "2.5"})
    client.move("stepBack")
    client.move("stepIn")
    client.move("continue", "breakpoint")
    client.move("nncdbg/reverseStepIn")
    client.move("reverseContinue", "entry")
    client.move("continue", "breakpoint")
    client.move("stepOut")
    client.request("evaluate", {"expression": "break 28", "context": "repl"})
    client.request("evaluate", {"expression": "continue", "context": "repl"})
    client.expect_stop("breakpoint")
    client.request("continue", {"threadId": 1})
    client.expect_event("terminated")
    end(client)
    commands = commands_in("r.log")
    assert commands[:3] == ["break 10", "break 14", "uncatch uninitialized guard"]
    assert commands[3:6] == ["catch nan", "catch inf", "break @layer if max(%x) > 9"]
    assert commands[6:8] == ["next", "continue"]
    assert "delete 1" in commands
    assert "break 14 if $iter == 2" in commands
    assert "log 17 mean {mean(%s)}" in commands
    assert "set %s[0, 1] = 2.5" in commands
    assert commands[-3:] == ["break 28", "continue", "continue"]
    assert read_recording("r.log").closed
    assert "12 stops and 1 result are the same" in replayed(capfd)


def test_edits_of_variables_and_memory_replay(
    client: Client, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    references = {"supportsMemoryReferences": True}
    client.start("model.nnc", record="r.log", cwd=str(folder), initialize=references)
    client.move("next")
    scopes = client.request("scopes", {"frameId": client.top_frame()["id"]})["scopes"]
    for scope in scopes:
        reference = scope["variablesReference"]
        names = [
            each["name"]
            for each in client.request("variables", {"variablesReference": reference})["variables"]
        ]
        if "%h" in names:
            break
    client.request("setVariable", {"variablesReference": reference, "name": "%h", "value": "%h * 2"})
    text = client.request("setVariable", {"variablesReference": reference, "name": "%h", "value": "zeros"})[
        "value"
    ]
    edited = text.replace("[[0.", "[[nan", 1)
    assert edited != text
    client.request("setVariable", {"variablesReference": reference, "name": "%h", "value": edited})
    listed = client.request("variables", {"variablesReference": reference})["variables"]
    memory = next(each for each in listed if each["name"] == "%h")["memoryReference"]
    data = base64.b64encode(np.array([7.25, -np.inf], np.float32).tobytes()).decode()
    client.request("writeMemory", {"memoryReference": memory, "offset": 4, "data": data})
    client.move("next")
    end(client)
    assert sum(each.startswith("set %h") for each in commands_in("r.log")) == 4
    assert "3 stops are the same" in replayed(capfd)


def test_moves_to_marks_targets_and_frames_replay(
    client: Client, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    client.start("model.nnc", record="r.log", cwd=str(folder))
    client.request("nncdbg/marks", {"action": "set", "name": "begin"})
    client.move("next")
    client.move("next")
    client.move("stepIn")
    client.move("next")
    target = client.request("gotoTargets", {"source": {"path": str(folder / "model.nnc")}, "line": 17})
    client.move("goto", "goto", targetId=target["targets"][0]["id"])
    client.move("restartFrame", "restart", frameId=client.top_frame()["id"])
    client.request("setExpression", {"expression": "%s", "value": "ones"})
    client.request("nncdbg/moment", {"statements": 12, "branch": 0})
    client.expect_stop("goto")
    client.request("nncdbg/marks", {"action": "goto", "name": "begin"})
    client.expect_stop("entry")
    client.move("next", granularity="instruction")
    client.move("next", granularity="instruction")
    end(client)
    commands = commands_in("r.log")
    assert "mark begin" in commands
    assert "goto 0:12" in commands
    assert commands[-3:] == ["goto begin", "next", "stepi"]
    assert "same" in replayed(capfd)


def test_a_pause_and_a_breakpoint_while_the_program_runs_replay(
    client: Client, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = folder / "forever.nnc"
    path.write_text(FOREVER, encoding="utf-8")
    client.launch(path, record="r.log", cwd=str(folder))
    client.request("configurationDone")
    client.request("pause", {"threadId": 1})
    client.expect_stop("pause")
    client.request("continue", {"threadId": 1})
    client.request("setBreakpoints", {"source": {"path": str(path)}, "breakpoints": [{"line": 7}]})
    client.expect_stop("breakpoint")
    client.move("next")
    end(client)
    commands = read_recording("r.log").commands
    texts = [each.command.text for each in commands]
    assert [text for text in texts if text != "continue"] == ["break 7", "next"]
    pauses = [
        event
        for each in commands
        for event in each.events
        if isinstance(event, RecordedStop) and event.is_pause
    ]
    assert len(pauses) == 2
    assert "same" in replayed(capfd)


def test_each_launch_and_each_restart_has_a_recording_of_its_own(
    client: Client, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    client.start("model.nnc", record="r.log", cwd=str(folder))
    client.move("next")
    client.request("restart")
    client.expect_stop("entry")
    client.move("stepIn")
    end(client)
    assert commands_in("r.log") == ["next"]
    assert commands_in("r-2.log") == ["step"]
    assert read_recording("r.log").closed
    assert "2 stops are the same" in replayed(capfd, "r-2.log")


def test_a_restart_with_edits_continues_the_recording(
    client: Client, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    client.start("model.nnc", record="r.log", cwd=str(folder))
    client.move("next")
    client.request("setExpression", {"expression": "%h[0]", "value": "1"})
    client.request("restart")
    client.expect_stop("entry")
    client.move("next")
    end(client)
    assert commands_in("r.log") == ["next", "set %h[0] = 1", "restart", "next"]
    assert "4 stops are the same" in replayed(capfd)


def test_a_recording_from_the_debug_console_includes_what_the_client_did_before(
    client: Client, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    client.start("model.nnc", cwd=str(folder))
    client.request("setFunctionBreakpoints", {"breakpoints": [{"name": "Softmax"}]})
    client.move("continue", "function breakpoint")
    assert client.evaluate("record r.log", "repl") == "recording to r.log"
    client.move("next")
    assert client.evaluate("$half = 0.5", "repl") == "0.5"
    client.evaluate("sum(%p) * $half", "repl")
    end(client)
    assert commands_in("r.log") == ["break Softmax", "continue", "next", "$half = 0.5", "sum(%p) * $half"]
    assert "2 stops and 2 results are the same" in replayed(capfd)


def test_a_launch_with_a_recording_that_cannot_be_written_fails(client: Client, folder: Path) -> None:
    client.request("initialize", {"adapterID": "nncdbg"})
    arguments = {"program": "model.nnc", "record": "/nowhere/r.log", "cwd": str(folder)}
    assert "cannot record to /nowhere/r.log: No such file or directory" in client.refused("launch", arguments)


MOVES = (
    *("next", "stepIn", "stepOut", "stepBack", "continue", "reverseContinue"),
    *("nncdbg/reverseStepIn", "nncdbg/reverseStepOut", "restartFrame", "nncdbg/moment", "console"),
)


def change(client: Client, generator: random.Random, source: dict[str, str]) -> None:
    """Set breakpoints or a value at random; a value that is not in scope is refused."""
    kind = generator.choice(["lines", "functions", "value", "filters"])
    if kind == "lines":
        lines = generator.sample(range(8, 29), generator.randint(0, 3))
        places = [{"line": line, "condition": generator.choice(["", "$iter > 1"])} for line in lines]
        client.request("setBreakpoints", {"source": source, "breakpoints": places})
    elif kind == "functions":
        names = generator.sample(["Softmax", "@layer", "%p", "Less"], generator.randint(0, 2))
        client.request("setFunctionBreakpoints", {"breakpoints": [{"name": name} for name in names]})
    elif kind == "filters":
        client.request(
            "setExceptionBreakpoints", {"filters": generator.sample(["nan", "inf", "overflow"], 2)}
        )
    else:
        name = generator.choice(["%h", "%s", "%scores", "%x"])
        value = generator.choice(["ones", f"{name} * 0.1", str(generator.uniform(-3, 3))])
        client.expect_response(client.send("setExpression", {"expression": name, "value": value}))


def move(client: Client, generator: random.Random) -> None:
    """Move at random, and wait for the stop unless the move is refused."""
    command = generator.choice(MOVES)
    arguments = {"threadId": 1}
    if command == "restartFrame":
        arguments = {"frameId": client.top_frame()["id"]}
    elif command == "nncdbg/moment":
        arguments = {"statements": generator.randint(0, 25)}
    elif command == "console":
        command, text = (
            "evaluate",
            generator.choice(["next 2", "goto :5", "back", "restart", "foo", "break 13"]),
        )
        arguments = {"expression": text, "context": "repl"}  # type: ignore[dict-item]
        if text in ("foo", "break 13"):
            client.expect_response(client.send(command, arguments))
            return
    elif generator.random() < 0.2 and command in ("next", "stepIn", "stepBack"):
        arguments["granularity"] = "instruction"  # type: ignore[assignment]
    if client.expect_response(client.send(command, arguments))["success"]:
        client.wait_for(lambda message: message.get("event") in ("stopped", "terminated"))


@pytest.mark.parametrize("seed", range(12))
def test_random_sessions_of_an_editor_replay(
    client: Client, folder: Path, capfd: pytest.CaptureFixture[str], seed: int
) -> None:
    """T15: random moves, breakpoints, edits and console commands have the same stops in a terminal."""
    generator = random.Random(seed)
    client.start("model.nnc", record="r.log", cwd=str(folder), stopOnExit=True)
    for _ in range(30):
        if generator.random() < 0.3:
            change(client, generator, {"path": str(folder / "model.nnc")})
        elif client.messages[-1].get("event") != "terminated":
            move(client, generator)
        if any(message.get("event") == "terminated" for message in client.messages):
            break
    end(client)
    replayed(capfd)


LARGE = """#nncdbg 1
opset 18

graph @main(%x: f32[64,64]) -> (%y: f32[64,64]) {
  %h: f32[64,64] = Mul(%x, 2.0)
  %y: f32[64,64] = Relu(%h)
  return %y
}
"""


def memory_of(client: Client, name: str) -> str:
    """Return the memory reference of a value in scope."""
    for scope in client.request("scopes", {"frameId": client.top_frame()["id"]})["scopes"]:
        arguments = {"variablesReference": scope["variablesReference"]}
        for each in client.request("variables", arguments)["variables"]:
            if each["name"] == name:
                return str(each["memoryReference"])
    raise AssertionError(f"{name} is not in scope")


def test_an_edit_of_the_memory_of_a_large_tensor_replays(
    client: Client, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """T15: an edit in the memory view is one command, however large the tensor is."""
    (folder / "model.nnc").write_text(LARGE)
    client.start("model.nnc", record="r.log", cwd=str(folder), initialize={"supportsMemoryReferences": True})
    client.move("next")
    data = base64.b64encode(np.array([7.25, -1.5, 3], np.float32).tobytes()).decode()
    reference = memory_of(client, "%h")
    client.request("writeMemory", {"memoryReference": reference, "offset": 4 * 70, "data": data})
    client.request("writeMemory", {"memoryReference": reference, "offset": 4 * 63, "data": data})
    client.move("next")
    end(client)
    commands = commands_in("r.log")
    assert commands[1] == "set %h[1:2, 6:9] = [[7.25, -1.5, 3.0]]"
    assert commands[2].startswith("set %h[0:2] = [[")
    assert not any(text.startswith("note") for text in commands)
    assert "3 stops are the same" in replayed(capfd)


@given(st.lists(st.integers(1, 4), max_size=4), st.data())
def test_the_smallest_block_has_the_elements(sizes: list[int], data: st.DataObject) -> None:
    """T15: a block has all elements of a range, and its first and last element are those of the range."""
    shape = tuple(sizes)
    count = math.prod(shape)
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    positions = np.arange(count).reshape(shape)
    found = positions[smallest_block(shape, start, stop)].reshape(-1)
    assert {*range(start, stop)} <= {*found.tolist()}
    rows = [(tuple(np.unravel_index(each, shape))) for each in (start, stop - 1)] if shape else []
    if rows and rows[0][:-1] == rows[1][:-1]:
        assert [*found] == [*range(start, stop)], "a range in one row has no other elements"


@pytest.mark.parametrize("kind", ["f16", "bf16", "f8e4m3fn", "i4", "u2", "bool", "i64", "u64", "f64"])
def test_a_value_as_text_has_the_same_elements(kind: str) -> None:
    dtype = dtypes.NUMPY[kind]
    array = np.array([0, 1, 1]).astype(dtype)
    text = value_text(array)
    assert text is not None
    again = np.array(ast.literal_eval(text.replace("true", "True").replace("false", "False"))).astype(dtype)
    assert again.tobytes() == array.tobytes()


def test_a_value_that_is_no_number_has_no_text() -> None:
    assert value_text(np.array(["a"], object)) is None
    assert value_text(np.array([1j], np.complex64)) is None
    assert value_text(np.zeros(1025, np.float32)) is None


def test_results_of_the_debug_console_are_compared(
    client: Client, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """T15: what the console shows is compared in a terminal; displays and breakpoint commands too."""
    client.start("model.nnc", record="r.log", cwd=str(folder), inputs={"x": [[1, 2, 3, 4], [5, 6, 7, 8]]})
    client.evaluate("display sum(%x)", "repl")
    client.move("next")
    for line in ("%h[0]", "$half = max(%h) / 2", "stats %h", "p %h, %x", "where", "info values", "$_"):
        client.evaluate(line, "repl")
    client.evaluate("break 14", "repl")
    client.evaluate("commands\np max(%p)\nend", "repl")
    client.expect_stop("step")  # several lines run as a move does, which ends in a stop
    client.move("continue", "breakpoint")
    end(client)
    assert "results are the same" in replayed(capfd)
    recording = Path("r.log")
    entries = [json.loads(line) for line in recording.read_text().splitlines()]
    results = [entry for entry in entries if entry["entry"] == "result"]
    assert len(results) == 12
    for changed in results:
        altered = [{**entry, "digest": "0" * 32} if entry is changed else entry for entry in entries]
        Path("other.log").write_text("".join(f"{json.dumps(entry)}\n" for entry in altered))
        home = os.getcwd()
        try:
            assert main(["replay", "other.log"]) == 1
        finally:
            os.chdir(home)
