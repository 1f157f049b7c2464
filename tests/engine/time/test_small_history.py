"""A history too small for the values that a training needs: old values are dropped, at little cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.memory.plain import PlainAllocation
from nncdbg.engine.time.checkpoints import MOST, UNCOUNTED, Checkpoints
from tests.presence import present

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_cnn.nnc"


def counted(monkeypatch: pytest.MonkeyPatch, steps: int, **options: Any) -> tuple[nncdbg.Debugger, int, int]:
    """Return the debugger after a training, the number of checks of its memory, and that of counts."""
    checks: list[bool] = []
    recounts: list[int] = []
    enforce, recount = Checkpoints.enforce, PlainAllocation.recount

    def checking(self: Checkpoints) -> None:
        checks.append(self.over_budget)
        enforce(self)

    def counting(self: PlainAllocation, *arguments: object) -> int:
        recounts.append(recount(self, *arguments))  # type: ignore[arg-type]
        return recounts[-1]

    monkeypatch.setattr(Checkpoints, "enforce", checking)
    monkeypatch.setattr(PlainAllocation, "recount", counting)
    debugger = nncdbg.Debugger(nncdbg.load(EXAMPLE, steps=steps), allocator="plain", **options)
    assert debugger.run().reason == "end"
    return debugger, sum(checks), len(recounts)


def test_values_are_counted_at_few_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting at each check would take three times as long as the training itself."""
    _, checks, recounts = counted(monkeypatch, 100, history=1)
    assert checks > 5
    assert recounts <= 2 + checks / UNCOUNTED


def test_memory_stays_bounded_between_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    debugger, _, _ = counted(monkeypatch, 100, history=1)
    checkpoints = debugger.timeline.checkpoints
    before = checkpoints.live_bytes()
    checkpoints.recount()
    assert checkpoints.live_bytes() < before < (UNCOUNTED + 1) * MOST
    assert checkpoints.live_bytes() < 8 << 20
    assert len(debugger.control.machine.undo_log) < 200


@pytest.mark.parametrize("history", [0, 1])
def test_a_training_without_history_has_the_same_bits_and_goes_back(
    monkeypatch: pytest.MonkeyPatch, history: int
) -> None:
    without, _, _ = counted(monkeypatch, 30, history=history)
    whole = nncdbg.Debugger(nncdbg.load(EXAMPLE, steps=30))
    assert whole.run().reason == "end"
    assert present(without.outputs)["l"].tobytes() == present(whole.outputs)["l"].tobytes()
    tick = without.timeline.tick
    for back in (1, 40, 400):
        for debugger in (without, whole):
            debugger.go_to(tick - back)
        for state, value in whole.states.items():
            np.testing.assert_array_equal(without.states[state], value)
