"""Recordings: contents, replay, and protection against overwriting."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg.commands.recorded_setup import read_setup, start_recording
from nncdbg.commands.recording import close_recording
from nncdbg.terminal.main import main
from nncdbg.terminal.repl import confirmed

EXAMPLES = Path(__file__).parents[2] / "examples"

CallResult = tuple[int, str, str]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., CallResult]:
    """Return a function that runs the prompt on a model in a new folder, with lines from a pipe."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLES / "first_steps.nnc", "model.nnc")

    def run(*arguments: str, typed: str = "") -> CallResult:
        (tmp_path / "typed").write_text(typed)
        with open("typed", encoding="utf-8") as lines:
            monkeypatch.setattr("sys.stdin", lines)
            code = main(["model.nnc", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_recording_keeps_setup_commands_and_notes(call: Callable[..., CallResult]) -> None:
    np.save("x.npy", np.ones((2, 4), np.float32))
    typed = "next\n# a remark\nnote %h looks small\np %h[0, 0]\n"
    call("--input", "x=x.npy", "--seed", "7", "--allocator", "arena", "--record", "r.cmd", typed=typed)
    lines = Path("r.cmd").read_text().splitlines()
    assert lines[2:] == ["next", "# a remark", "note %h looks small", "p %h[0, 0]"]
    setup = read_setup("r.cmd")
    assert setup is not None
    assert (setup.seed, setup.backend, setup.allocator) == (7, "numpy", "arena")
    assert setup.inputs["x"].given == "x.npy"
    assert setup.versions["numpy"] == np.__version__
    assert json.loads(lines[1].partition("setup: ")[2])["model"] == "model.nnc"


def test_a_replay_takes_inputs_and_options_from_the_recording(call: Callable[..., CallResult]) -> None:
    call("--input", "x=[[1,2,3,4],[5,6,7,8]]", "--seed", "3", "--record", "r.cmd", typed="p %x[1]\n")
    code, out, err = call("--replay", "r.cmd")
    assert (code, err) == (0, "")
    assert "(nncdbg) p %x[1]\nf32[4]\n[0] 5 6 7 8" in out
    assert "setup" not in out


def test_a_replay_reports_what_has_changed(call: Callable[..., CallResult]) -> None:
    np.save("x.npy", np.ones((2, 4), np.float32))
    call("--input", "x=x.npy", "--record", "r.cmd", typed="p %x[0, 0]\n")
    np.save("x.npy", np.zeros((2, 4), np.float32))
    path = Path("model.nnc")
    path.write_text(path.read_text().replace("0.9", "0.8"))
    recording = Path("r.cmd")
    recording.write_text(recording.read_text().replace(f'"numpy":"{np.__version__}"', '"numpy":"1.0"'))
    code, _, err = call("--replay", "r.cmd", "--seed", "5")
    assert code == 0
    assert "the model has changed since the recording of model.nnc" in err
    assert "input %x differs from the recorded input (x.npy)" in err
    assert "recorded with seed 0, replayed with 5" in err
    assert f"recorded with numpy 1.0, replayed with {np.__version__}" in err


def test_a_replay_fails_if_a_command_fails(call: Callable[..., CallResult]) -> None:
    Path("r.cmd").write_text("next\np %nothing\nnext\n")
    code, out, err = call("--replay", "r.cmd")
    assert code == 1
    assert "there is no value" in err
    assert out.count("(nncdbg) next") == 2, "the commands after the failed one run"
    code, _, err = call(typed="replay r.cmd\n")
    assert code == 0
    assert "1 of the commands in r.cmd failed" in err


def test_a_recording_is_not_overwritten_without_force(
    call: Callable[..., CallResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    call("--record", "r.cmd", typed="next\n")
    before = Path("r.cmd").read_text()
    code, _, err = call("--record", "r.cmd", typed="next\n")
    assert code == 2
    assert "the recording r.cmd already exists, and was not changed" in err
    _, _, err = call(typed="record r.cmd\nnext\n")
    assert "--force" in err
    assert Path("r.cmd").read_text() == before
    call("--record", "r.cmd", "--force", typed="list\n")
    assert Path("r.cmd").read_text().splitlines()[2:] == ["list"]
    call(typed="record --force r.cmd\nlist\nlist\n")
    assert Path("r.cmd").read_text().splitlines()[2:] == ["list", "list"]
    code, _, err = call("--record", "model.nnc", "--force")
    assert code == 2
    assert "is not a recorded session" in err


@pytest.mark.parametrize(("answer", "kept"), [("y\n", False), ("n\n", True), ("", True)])
def test_overwriting_needs_confirmation(
    call: Callable[..., CallResult], monkeypatch: pytest.MonkeyPatch, answer: str, kept: bool
) -> None:
    call("--record", "r.cmd", typed="next\n")
    before = Path("r.cmd").read_text()
    debugger = nncdbg.Debugger(nncdbg.load("model.nnc"))
    Path("typed").write_text(answer)
    with open("typed", encoding="utf-8") as lines:
        monkeypatch.setattr("sys.stdin", lines)
        if kept:
            with pytest.raises(nncdbg.NncdbgError, match="was not changed"):
                start_recording("r.cmd", debugger, "model.nnc", confirm=confirmed)
        else:
            close_recording(start_recording("r.cmd", debugger, "model.nnc", confirm=confirmed))
    assert (Path("r.cmd").read_text() == before) == kept


@pytest.mark.parametrize("setup", ["{", '{"model": 3}', "null"])
def test_a_damaged_setup_is_reported(call: Callable[..., CallResult], setup: str) -> None:
    Path("r.cmd").write_text(f"# nncdbg session: model.nnc\n# setup: {setup}\nnext\n")
    code, _, err = call("--replay", "r.cmd")
    assert code == 2
    assert "the setup in r.cmd is damaged" in err
