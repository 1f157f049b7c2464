"""`--track`: tracks in the output of `run` and `watch`, where they are added, and wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.commands.execute import execute
from nncdbg.terminal.main import main
from tests.engine.tracking.programs import ALL, EVALUATE, TRAIN

EVALUATION = EVALUATE.splitlines()[0] + "\n"
ACCURACY = "acc=mean(argmax(%y, 1) == %labels)"


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options for the inputs of `train.nnc` in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("train.nnc").write_text(TRAIN + EVALUATION, encoding="utf-8")
    for name, array in ALL.items():
        np.save(f"{name}.npy", array)
    return [word for name in ("x", "t", "test_x") for word in ("--input", f"{name}={name}.npy")]


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_tracks_of_a_run_as_json(inputs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    tracks = ["--track", "loss=%l", "--track", "ratio=%l / ($step - 1)"]
    found = document(capsys, "run", "train.nnc", *inputs, *tracks, "--steps", "9")
    loss, ratio = found["tracks"]
    assert {name: loss[name] for name in ("name", "part", "steps")} == {
        "name": "loss",
        "part": "train",
        "steps": [*range(9)],
    }
    assert [each["epoch"] for each in loss["epochs"]] == [0, 1]
    assert loss["epochs"][1]["mean"] == pytest.approx(np.mean(loss["values"][7:]))
    assert ratio["values"][1] is None, "JSON has no infinity"
    assert ratio["values"][0] == -loss["values"][0]


def test_tracks_of_a_watch(inputs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "watch", "train.nnc", *inputs, "--track", "mean=mean(%y)")
    assert [(each["name"], each["part"], len(each["steps"])) for each in found["tracks"]] == [
        ("mean", "train", 28),
        ("mean", "test", 4),
    ]
    assert main(["watch", "train.nnc", *inputs, "--track", "mean=mean(%y)"]) == 0
    assert "track mean (test) " in capsys.readouterr().out


def test_a_run_without_tracks_prints_no_table(inputs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "train.nnc", *inputs]) == 0
    assert "part" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("track", "words"),
    [
        ("acc", '--track "acc" is not NAME=EXPR'),
        ("mean(%l)==3", '--track "mean(%l)==3" is not NAME=EXPR'),
        ("acc=mean(%l", "track acc: expected `,` or `)`"),
        (ACCURACY, "track acc reads %labels, which no statement of @train computes"),
        ("acc=prev(%l)", "track acc: a track cannot use `prev`"),
    ],
)
def test_a_wrong_track_ends_with_exit_code_2(
    inputs: list[str], capsys: pytest.CaptureFixture[str], track: str, words: str
) -> None:
    assert main(["run", "train.nnc", *inputs, "--track", track]) == 2
    assert words in capsys.readouterr().err


def test_a_name_may_be_given_once(inputs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "train.nnc", *inputs, "--track", "a=%l", "--track", "a=%w"]) == 2
    assert '--track sets "a" twice' in capsys.readouterr().err
    Path("train.nnc").write_text(TRAIN + "track a = %l\n", encoding="utf-8")
    assert main(["run", "train.nnc", *inputs[:4], "--track", "a=%l"]) == 2
    assert "the program has a track a already" in capsys.readouterr().err


def test_a_program_without_a_run_has_no_tracks(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(repository / "examples" / "first_steps.nnc"), "--track", "a=1"]) == 2
    assert "the program has no `run` line" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("expression", "on_run", "on_evaluation"),
    [
        ("mean(%y)", True, True),
        ("mean(%z)", True, False),
        ("mean(argmax(%y, 1) == %labels)", True, False),
        ("norm(%d_w)", True, False),
        ("$step", True, True),
    ],
)
def test_where_a_track_is_added(expression: str, on_run: bool, on_evaluation: bool) -> None:
    program = nncdbg.load(nncdbg.parse(TRAIN + EVALUATION), tracks={"a": expression})
    (run,) = program.runs
    assert ([each.name for each in run.tracks] == ["a"]) is on_run
    assert ([each.name for each in run.evaluations[0].tracks] == ["a"]) is on_evaluation
    assert "track" not in str(program.as_listing().lines)


def test_info_tracks_at_the_prompt() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TRAIN + "track loss = %l\n"), {"x": ALL["x"], "t": ALL["t"]})
    assert "loss  train      0     -    -    -" in execute(debugger, "info tracks")
    debugger.run()
    name, part, steps, last, *_ = execute(debugger, "info tracks").splitlines()[1].split()
    assert (name, part, steps) == ("loss", "train", "28")
    assert debugger.outputs is not None
    assert float(last) == pytest.approx(float(debugger.outputs["l"][-1]), rel=1e-5)
    without = nncdbg.Debugger(nncdbg.parse(TRAIN), {"x": ALL["x"], "t": ALL["t"]})
    assert "nothing is tracked" in execute(without, "info tracks")
