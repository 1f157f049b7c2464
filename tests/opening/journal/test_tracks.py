"""Tracks in the journal: those of runs and evaluations, on forks, and of several `run` lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import nncdbg.journal
from nncdbg.engine.debugger import Debugger
from nncdbg.opening.journal.journaling import journaled
from tests.engine.tracking.programs import ALL, DATA, EVALUATE, TRACKS, TRAIN
from tests.opening.journal.trainings import Training, opened_at, run_journaled, written

WHOLE = Training(TRAIN + TRACKS + EVALUATE, 28, ALL)


def recorded(path: Path, run: int) -> dict[tuple[str, str], dict[int, float]]:
    """Return the values of a run by name and part."""
    with nncdbg.journal.open(path) as journal:
        found = {}
        for name, part in journal.tracks(run):
            steps, values = journal.values(run, name, part)
            found[name, part] = dict(zip(steps.tolist(), values.tolist(), strict=True))
        return found


def tracked(debugger: Debugger) -> dict[tuple[str, str], dict[int, float]]:
    return {
        (each.name, each.part): dict(zip(each.steps, each.numbers, strict=True)) for each in debugger.tracks
    }


def test_tracks_of_a_run_and_its_evaluation_are_written(tmp_path: Path) -> None:
    debugger = run_journaled(WHOLE, tmp_path / "run.db")
    found = recorded(tmp_path / "run.db", 1)
    expected = tracked(debugger)
    assert {*expected} == {
        ("acc", "train"),
        ("loss", "train"),
        ("norm", "train"),
        ("acc", "test"),
        ("right", "test"),
    }
    assert {key: found[key] for key in expected} == expected


def test_the_steps_of_several_runs_are_numbered_on(tmp_path: Path) -> None:
    first = "run @train for %x, %t batch 25 epochs 3\ntrack a = %l\n"
    text = TRAIN.replace("run @train for %x, %t batch 8 epochs 4 shuffle 1\n", first) + first.replace(
        " a ", " b "
    )
    debugger = run_journaled(Training(text, 12, DATA), tmp_path / "run.db")
    found = recorded(tmp_path / "run.db", 1)
    assert [*found["a", "train"]] == [*range(6)]
    assert [*found["b", "train"]] == [*range(6, 12)]
    assert [each.steps for each in debugger.tracks] == [[*range(6)], [*range(6)]], "as $step"


def test_a_fork_has_the_tracks_of_its_own_steps(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    run_journaled(WHOLE, path, checkpoint_every="5")
    opened = opened_at(f"{path}@16", fork=True, checkpoint_every="5")
    debugger = opened.debugger(statistics=False)
    with journaled(opened, debugger) as recorder:
        debugger.run()
    assert recorder is not None
    assert recorder.problem is None
    assert not debugger.control.machine.problems
    assert recorded(path, 2) == recorded(path, 1)
    assert tracked(debugger)["loss", "train"].keys() == {*range(16, 28)}


def test_an_edit_leaves_the_tracks_of_the_first_run(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    opened = written(WHOLE, path)
    debugger = opened.debugger(statistics=False)
    with journaled(opened, debugger):
        debugger.break_at(op="nncdbg.SGD", when="$step == 9")
        debugger.run()
        debugger.set_value("w", np.ones((2, 3), np.float32))
        debugger.delete()
        debugger.run()
    whole = run_journaled(WHOLE, tmp_path / "whole.db")
    first, fork = recorded(path, 1), recorded(path, 2)
    expected: Mapping[Any, Any] = tracked(whole)
    for key in expected:
        before = {step: number for step, number in expected[key].items() if step < 9}
        assert first[key] == before
        assert {step: number for step, number in fork[key].items() if step < 9} == before
        assert {step: number for step, number in fork[key].items() if step >= 9} == {
            step: number for step, number in tracked(debugger)[key].items() if step >= 9
        }
