"""T15: recorded results of commands: what a replay compares, and how it shows a difference."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

import nncdbg
from nncdbg.commands.recording.entries import ErrorEntry, read_recording
from nncdbg.commands.recording.results import RecordedResult
from nncdbg.commands.session import CommandSession
from nncdbg.commands.table import TABLE, load_extensions
from nncdbg.presentation.screen import Screen
from nncdbg.target.program import ProgramTarget
from nncdbg.terminal.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs `nncdbg` in a new folder with a model, with lines from a pipe."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLES / "first_steps.nnc", "model.nnc")

    def run(*arguments: str, typed: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        code = main([*arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def record(call: Call, typed: str, *arguments: str) -> None:
    call("model.nnc", "--input", "x=ones", "--record", "r.log", "--force", *arguments, typed=typed)


def results_of(path: str = "r.log") -> list[list[str]]:
    """Return the texts of the results of each command."""
    return [
        [event.text for event in each.events if isinstance(event, RecordedResult)]
        for each in read_recording(path).commands
    ]


def change(before: str, after: str, path: str = "r.log") -> None:
    """Change the text of a file, once."""
    text = Path(path).read_text()
    assert text.count(before) == 1, text
    Path(path).write_text(text.replace(before, after))


COMPARED = [
    *("p %h[0, 0]", "%h[0, 0] * 2", "$half = %h[0, 1] / 2", "stats %h", "hist %h", "show %h", "whatis %h"),
    *("why %h", "list", "where", "info values", "set %h[0, 0] = 5", "break Softmax", "catch nan"),
    *("display sum(%h)", "mark here"),
]


@pytest.mark.parametrize("line", COMPARED)
def test_the_result_of_a_command_is_recorded_and_compared(call: Call, line: str) -> None:
    """T15: what a command prints is the same in a replay, or the replay reports it."""
    record(call, f"next\n{line}\n")
    (text,) = results_of()[1]
    assert text
    code, out, _ = call("replay", "r.log")
    assert code == 0, out
    assert out.endswith("replayed 2 commands: 2 stops and 1 result are the same\n")
    recorded = [json.loads(each) for each in Path("r.log").read_text().splitlines()]
    for entry in recorded:
        if entry["entry"] == "result":
            entry |= {"text": "another text", "digest": "0" * 32, "lines": 1}
    Path("r.log").write_text("".join(f"{json.dumps(entry)}\n" for entry in recorded))
    code, out, _ = call("replay", "r.log")
    assert code == 1
    assert f"the replay differs at command 2 of 2, `{line}`:\n  recorded: another text\n" in out


VARYING = ["info time", "info memory", "info mem", "info program", "help", "goto :3", "next", "py print(1)"]


@pytest.mark.parametrize("line", VARYING)
def test_output_that_varies_is_not_recorded(call: Call, line: str) -> None:
    record(call, f"next\n{line}\n")
    assert results_of()[1] == []
    assert call("replay", "r.log", "--allow-python")[0] == 0


def test_a_listing_with_times_is_not_compared_and_other_results_are(call: Call) -> None:
    record(call, "set times on\nnext\nlist\np sum(%h)\nset times off\nlist .\n")
    assert [len(each) for each in results_of()] == [0, 0, 0, 1, 0, 1]
    code, out, _ = call("replay", "r.log")
    assert code == 0, out
    assert "the replay differs" not in out


def test_each_command_with_a_result_declares_whether_it_varies() -> None:
    assert [*load_extensions()] == []
    varying = {name for name, each in TABLE.items() if each.group in ("looking", "changing") and each.varies}
    assert varying == {"goto", "branch", "info", "list", "ll"}
    assert not TABLE["info"].compares(None, "time")
    assert TABLE["info"].compares(None, "tracks")


def test_a_changed_result_is_shown_line_by_line(call: Call) -> None:
    """T15: the first result that differs, with both texts."""
    record(call, "next\nstats %h\np %h[0, 0]\n")
    (found,) = read_recording("r.log").commands[1].events
    assert isinstance(found, RecordedResult)
    smallest = next(line for line in found.text.split("\n") if line.startswith("  min"))
    change(smallest, "  min       -7")
    change(found.digest, "0" * 32)
    code, out, _ = call("replay", "r.log")
    assert code == 1
    text = out[out.index("the replay differs") :]
    assert text == (
        "the replay differs at command 2 of 3, `stats %h`:\n"
        "  recorded:   min       -7\n"
        f"  replayed: {smallest}\n"
        "replayed 2 commands: 2 stops are the same\n"
    )


def test_a_result_that_no_longer_exists_is_a_difference(call: Call) -> None:
    record(call, "next\nsource more.cmd\n")
    assert isinstance(read_recording("r.log").commands[1].events[0], ErrorEntry)
    Path("more.cmd").write_text("p 1 + 1\n")
    record(call, "next\nsource more.cmd\n")
    Path("more.cmd").write_text("# nothing\n")
    code, out, _ = call("replay", "r.log")
    assert code == 1
    assert "  recorded: result: 2\n  replayed: no result\n" in out
    record(call, "next\nsource more.cmd\n")
    Path("more.cmd").write_text("p 1 + 1\n")
    _, out, _ = call("replay", "r.log")
    assert "  recorded: no result\n  replayed: result: 2\n" in out


def test_a_changed_weight_file_is_reported_before_the_first_result_that_differs(call: Call) -> None:
    """T15: the changed file is named before the first difference."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def write(weight: float) -> None:
        content = np.full((32, 32), weight, np.float32)
        graph = helper.make_graph(
            [helper.make_node("Mul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
            "main",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [32, 32])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [32, 32])],
            [numpy_helper.from_array(content, "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        onnx.save_model(model, "m.onnx", save_as_external_data=True, location="m.weights", size_threshold=0)

    write(2.0)
    call("m.onnx", "--input", "x=ones", "--record", "r.log", typed="info constants\nnext\np %h[0, 0]\n")
    Path("m.weights").unlink()
    write(3.0)
    code, out, err = call("replay", "r.log")
    assert code == 1
    assert "note: the file m.weights has changed since the recording" in err
    assert "the replay differs at command 1 of 3, `info constants`:\n  recorded: %w f32[32,32]" in out


def test_an_interrupted_result_is_not_compared(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    session = CommandSession(
        ProgramTarget(nncdbg.Debugger("model.nnc")), "model.nnc", Screen(io.StringIO(), io.StringIO())
    )
    session.execute("record r.log", typed=True)
    with monkeypatch.context() as patched:

        def interrupt(*_: object) -> None:
            session.screen.put("the first line")
            raise KeyboardInterrupt

        patched.setattr("nncdbg.presentation.tensor_text.show", interrupt)
        session.execute("show %x", typed=True)
    session.recorder.stop()
    (event,) = read_recording("r.log").commands[0].events
    assert isinstance(event, RecordedResult)
    assert (event.text, event.interrupted) == ("the first line", True)
    again = CommandSession(
        ProgramTarget(nncdbg.Debugger("model.nnc")), "model.nnc", Screen(io.StringIO(), io.StringIO())
    )
    assert again.replay("r.log")


def test_a_recording_of_the_format_before_results_is_replayed(call: Call) -> None:
    record(call, "next\np %h\nstats %h\n")
    entries = [json.loads(each) for each in Path("r.log").read_text().splitlines()]
    entries[0]["format"] = 2
    kept = [entry for entry in entries if entry["entry"] != "result"]
    for entry in kept:
        entry.pop("results", None)
    Path("r.log").write_text("".join(f"{json.dumps(entry)}\n" for entry in kept))
    code, out, _ = call("replay", "r.log")
    assert code == 0
    assert out.endswith("replayed 3 commands: 2 stops are the same\n")


def test_a_long_result_is_kept_as_its_beginning_and_a_digest(call: Call) -> None:
    record(call, "info line\nset precision 17\nset width 1000\nll\nll\n" + "p %x\n" * 2)
    assert all(len(text) <= 4096 for texts in results_of() for text in texts)
    assert call("replay", "r.log")[0] == 0


@pytest.mark.parametrize("width", [40, 133])
def test_a_session_at_a_terminal_replays_in_a_pipe(call: Call, tmp_path: Path, width: int) -> None:
    """T15: a replay prints results as the recorded terminal did: width, colors, short names."""
    words = ["-m", "nncdbg", "model.nnc", "--record", "r.log"]
    child = pexpect.spawn(
        sys.executable,
        words,
        encoding="utf-8",
        timeout=600,
        cwd=str(tmp_path),
        dimensions=(50, width),
        env={name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")},
    )
    for line in ("display %x", "next", "p %x", "stats", "show %x", "where", "info inputs", "set width 70"):
        child.expect(r"\(nncdbg\)")
        child.sendline(line)
    for line in ("p %x", "set names full", "set precision 9", "p %x", "list", "quit"):
        child.expect(r"\(nncdbg\)")
        child.sendline(line)
    child.expect(pexpect.EOF)
    child.close()
    shapes = [
        event.shape
        for each in read_recording("r.log").commands
        for event in each.events
        if isinstance(event, RecordedResult)
    ]
    assert shapes[0].terminal
    assert (shapes[0].width, shapes[-1].width, shapes[-1].precision) == (width, 70, 9)
    code, out, err = call("replay", "r.log")
    assert code == 0, out + err
