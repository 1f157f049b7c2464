"""Tracks in the journal: those of runs and evaluations, on forks, and of several `run` lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg.journal
from nncdbg.engine.debugger import Debugger
from nncdbg.errors import UsageError
from nncdbg.opening.journal.recording import journaled
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


def test_a_track_with_the_name_of_a_result_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the track l has the name of the result %l"):
        run_journaled(Training(TRAIN + "track l = norm(%w)\n", 28, DATA), tmp_path / "run.db")
    assert not (tmp_path / "run.db").exists()


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
    assert tracked(debugger)["loss", "train"].keys() == {*range(28)}, "those before are its parent's"


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


# -- a run that is opened at a step -------------------------------------------------------------------

SEVERAL = Training(
    WHOLE.text.replace("epochs 4", "epochs 2") + TRAIN[TRAIN.index("run @train") :] + "track late = %l\n",
    42,
    ALL,
)


def documents(debugger: Debugger) -> list[dict[str, object]]:
    """Return all numbers, and the means of the epochs."""
    return [each.as_dict() for each in debugger.tracks]


def until(debugger: Debugger, steps: int) -> list[list[tuple[int, float]]]:
    """Return the numbers of the first steps of all ``run`` lines."""
    firsts = {"late": 14} if len(debugger.program.runs) > 1 else {}
    return [
        [
            (step, number)
            for step, number in zip(each.steps, each.numbers, strict=True)
            if step + firsts.get(each.name, 0) < steps
        ]
        for each in debugger.tracks
    ]


@pytest.mark.parametrize("training", [WHOLE, SEVERAL], ids=["one run", "several runs"])
@pytest.mark.parametrize("every", ["5", "1"])
def test_tracks_begin_with_those_of_the_run(training: Training, every: str, tmp_path: Path) -> None:
    """A run that is opened at a step has the tracks of the whole run, with the same means."""
    path = tmp_path / "run.db"
    whole = run_journaled(training, path, checkpoint_every=every)
    for step in (0, 6, 7, 13, 14, 15, 21, training.steps):
        debugger = opened_at(f"{path}@{step}").debugger(statistics=False)
        assert until(debugger, training.steps) == until(whole, step), step
        if step < training.steps:
            debugger.run()
        assert documents(debugger) == documents(whole), step


def test_a_step_back_across_the_opened_step_loses_and_repeats_no_number(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    whole = run_journaled(WHOLE, path, checkpoint_every="1")
    debugger = opened_at(f"{path}@16").debugger(statistics=False)
    there = debugger.timeline.tick
    debugger.break_at(graph="train")
    for step in (15, 14, 13, 12):
        debugger.reverse_continue()
        assert until(debugger, 28) == until(whole, step)
    for step in (13, 14):
        debugger.run()
        assert until(debugger, 28) == until(whole, step)
    debugger.go_to(there)
    assert until(debugger, 28) == until(whole, 16)
    debugger.restart()
    assert until(debugger, 28) == until(whole, 0)
    debugger.delete()
    debugger.run()
    assert documents(debugger) == documents(whole)


def test_an_edit_before_the_opened_step_replaces_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    whole = run_journaled(WHOLE, path, checkpoint_every="1")
    debugger = opened_at(f"{path}@16").debugger(statistics=False)
    debugger.break_at(op="nncdbg.SGD")
    debugger.reverse_continue()
    debugger.reverse_continue()
    debugger.set_value("w", np.ones((2, 3), np.float32))
    assert until(debugger, 28) == until(whole, 14)
    debugger.step_into()
    debugger.run()
    assert until(debugger, 14) == until(whole, 14)
    assert until(debugger, 15) != until(whole, 15)
    debugger.timeline.switch(0)
    assert until(debugger, 28) == until(whole, 14)


def test_tracks_of_a_fork_of_a_fork_begin_with_those_of_both_parents(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    run_journaled(WHOLE, path, checkpoint_every="5")
    for address, change in ((f"{path}#1@9", 0.25), (f"{path}#2@17", 0.125)):
        opened = opened_at(address, fork=True, changes={"lr": change}, checkpoint_every="5")
        debugger = opened.debugger(statistics=False)
        with journaled(opened, debugger):
            debugger.run()
        assert not debugger.control.machine.problems
    found, expected = tracked(debugger), recorded(path, 3)
    assert {key: expected[key] for key in found} == found
    assert tracked(opened_at(f"{path}#3@12").debugger())["norm", "train"] == {
        step: number for step, number in expected["norm", "train"].items() if step < 12
    }


def test_a_track_that_is_new_at_an_opened_step_has_the_numbers_of_the_session(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    run_journaled(WHOLE, path, checkpoint_every="1")
    debugger = opened_at(f"{path}@16", tracks={"mean": "mean(%w)"}).debugger(statistics=False)
    debugger.run()
    assert [*tracked(debugger)["mean", "train"]] == [*range(16, 28)]
    assert [*tracked(debugger)["norm", "train"]] == [*range(28)]
