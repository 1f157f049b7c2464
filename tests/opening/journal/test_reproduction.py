"""A run that is repeated is compared with the run in the journal: results, tracks and states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
import nncdbg.journal
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.tracking import tracking
from nncdbg.engine.tracking.tracking import number_of
from nncdbg.errors import ExpressionError, RunError
from nncdbg.opening.journal.reproduction import Reproduction, reproducing
from tests.engine.tracking.programs import ALL, EVALUATE, TRACKS, TRAIN
from tests.opening.journal.trainings import Training, opened_at, run_journaled

WHOLE = Training(TRAIN + TRACKS + EVALUATE, 28, ALL)
"""With 7 steps per epoch."""


def repeated(path: Path, step: int) -> Reproduction:
    opened = opened_at(f"{path}@{step}")
    debugger = opened.debugger(statistics=False)
    with reproducing(opened, debugger) as reproduction:
        debugger.run()
    assert reproduction is not None
    assert not debugger.control.machine.problems
    return reproduction


@pytest.fixture
def path(tmp_path: Path) -> Path:
    run_journaled(WHOLE, tmp_path / "run.db", checkpoint_every="5")
    return tmp_path / "run.db"


def change_tracks(monkeypatch: pytest.MonkeyPatch, name: str, first: int, part: str | None = None) -> None:
    """Let a track have another number from a step on, or with `part` only in evaluations or steps."""

    def changed(expression: Any, values: Any) -> float | int:
        number = number_of(expression, values)
        is_test = "test_x" in values.names() or "test_labels" in values.names()
        if expression.text != name or values.variable("step") < first or (part == "test") != is_test:
            return number
        return float(np.nextafter(number, np.inf))

    monkeypatch.setattr(tracking, "number_of", changed)


def test_results_and_tracks_of_all_steps_are_the_same(path: Path) -> None:
    for step in (0, 6, 11, 27):
        assert str(repeated(path, step)).startswith(
            f"step{'s' if step < 27 else ''} {step} {'to 27 have' if step < 27 else 'has'} "
            "the same results and tracks as in run 1, bit for bit"
        )


def test_a_track_that_differs_in_its_last_bit_is_named_with_both_values(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_tracks(monkeypatch, "norm(%w)", 20)
    with nncdbg.journal.open(path) as journal:
        before = journal.values(None, "norm")[1][20]
    expected = (
        f"step 20 differs from run 1: the track norm is {float(np.nextafter(before, np.inf))!r} "
        f"instead of {float(before)!r}"
    )
    assert repeated(path, 11).difference == expected
    with pytest.raises(RunError) as raised:
        nncdbg.run(f"{path}@11")
    assert raised.value.message == expected


def test_a_track_of_an_evaluation_is_compared(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_tracks(monkeypatch, "sum(argmax(%y, 1) == %test_labels)", 13, "test")
    found = repeated(path, 9).difference
    assert found.startswith("step 13 differs from run 1: the track right (test) is ")


def test_a_track_without_a_value_is_a_difference(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(expression: Any, values: Any) -> float | int:
        if values.variable("step") == 22 and expression.text == "norm(%w)":
            raise ExpressionError("no memory")
        return number_of(expression, values)

    monkeypatch.setattr(tracking, "number_of", failing)
    assert repeated(path, 11).difference == "step 22 differs from run 1: the track norm has no value"


def test_the_first_step_that_differs_is_reported(path: Path) -> None:
    """The track of a step is known later than the results of the next ones."""

    def edited(debugger: Debugger) -> None:
        debugger.break_at(op="nncdbg.SGD", when="$step == 16")
        debugger.run()
        debugger.set_value("d_w", np.ones((2, 3), np.float32))
        debugger.delete()
        debugger.run()

    opened = opened_at(f"{path}@11")
    debugger = opened.debugger(statistics=False)
    with reproducing(opened, debugger) as reproduction:
        edited(debugger)
    assert reproduction is not None
    assert reproduction.difference.startswith("step 16 differs from run 1: the track norm is ")
