"""Norms over the steps of a training, and warnings about its updates (N13)."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg.nan_watch.measuring.step_norms import _MOST
from nncdbg.presentation.sparkline import sparkline
from nncdbg.terminal.main import main
from tests.nan_watch.training_corpus import NOTHING, Training, corpus

TRAINING = """#nncdbg 1
opset 21
state %w: f32[4,3] = RandomNormal(seed=1.0, shape=[4,3])
state %b: f32[3] = ConstantOfShape([3])
state %m: f32[4,3] = zeros for %w
state %v: f32[4,3] = zeros for %w
state %t: i64[] = 0

graph @train() -> (%l: f32[]) {
  %x: f32[16,4] = RandomNormal(shape=[16,4])
  %l: f32[], saved %s = @loss(%x)
  %d_w: f32[4,3], %d_b: f32[3] = @loss.backward(1.0, %s)
STEP
  %b.1: f32[3] = nncdbg.SGD(%b, %d_b, lr=0.001)
  update %w = %w.1, %b = %b.1
  return %l
}

graph @loss(%x: f32[16,4]) -> (%l: f32[]) {
  %y: f32[16,3] = MatMul(%x, %w)
  %z: f32[16,3] = Add(%y, %b)
  %h: f32[16,3] = Tanh(%z)
  %first: f32[16,3] = Expand(%x, [16, 1])
  %l: f32[] = ReduceMean(%h, keepdims=0)
  return %l
}

backward @loss.backward of @loss by (%w, %b)

run @train steps STEPS
"""

DECAYS = [
    "  %w.1: f32[4,3] = nncdbg.SGD(%w, %d_w, lr=0.1, weight_decay=1.0)",
    "  %w.1: f32[4,3], %m.1: f32[4,3], %v.1: f32[4,3], %t.1: i64[] = "
    "nncdbg.AdamW(%w, %d_w, %m, %v, %t, lr=0.001, weight_decay=100.0)\n"
    "  update %m = %m.1, %v = %v.1, %t = %t.1",
    "  %kept: f32[4,3] = Mul(%w, 0.9)\n  %move: f32[4,3] = Mul(%d_w, 0.1)\n"
    "  %w.1: f32[4,3] = Sub(%kept, %move)",
]


def training(step: str, steps: int = 19) -> str:
    text = TRAINING.replace("STEPS", str(steps)).replace("STEP", step)
    return text.replace("  %first: f32[16,3] = Expand(%x, [16, 1])\n", "")


@pytest.mark.parametrize("step", DECAYS)
def test_a_planted_weight_decay_of_a_tenth_is_flagged_in_fewer_than_20_steps(step: str) -> None:
    """N13: c = 0.1; a warning, which does not trip a gate."""
    report = nncdbg.watch(nncdbg.parse(training(step)))
    (warning,) = report.findings
    assert (warning.kind, warning.verdict, warning.trips) == ("update", "weight decay too strong", False)
    assert report.ok
    assert report.exit_code == 0
    assert warning.actual == pytest.approx(0.1, abs=0.02)
    assert "each update shrank %w by" in warning.evidence
    assert "weight decay" in warning.hint
    assert "ok (1 warning)" in str(report)
    assert "warning: weight decay too strong: %w at" in str(report)


def test_a_usual_weight_decay_is_not_flagged() -> None:
    """N13: the decay of 0.01 * 0.1 per step is that of many published trainings."""
    text = training("  %w.1: f32[4,3] = nncdbg.SGD(%w, %d_w, lr=0.1, weight_decay=0.01)", 60)
    assert not nncdbg.watch(nncdbg.parse(text)).findings


@pytest.mark.parametrize("each", [each for each in corpus() if each.verdict == NOTHING], ids=str)
def test_no_update_of_a_clean_training_is_flagged(each: Training) -> None:
    """N13."""
    assert not [finding for finding in each.watch().findings if finding.is_warning]


def test_updates_of_a_third_of_the_norm_are_flagged() -> None:
    step = (
        "  %unit: f32[4,3] = Sign(%d_w)\n  %size: f32[4,3] = Mul(%w, 0.5)\n"
        "  %abs: f32[4,3] = Abs(%size)\n  %move: f32[4,3] = Mul(%unit, %abs)\n"
        "  %w.1: f32[4,3] = Sub(%w, %move)"
    )
    (warning,) = nncdbg.watch(nncdbg.parse(training(step, 15))).findings
    assert (warning.verdict, warning.line is not None) == ("updates too large", True)


def test_a_gate_on_updates_replaces_the_warning() -> None:
    report = nncdbg.watch(nncdbg.parse(training(DECAYS[0])), fail_on="nan,update:0.05 in w")
    assert [(each.kind, each.trips) for each in report.findings] == [("update", True)]


def test_the_history_has_the_norms_of_a_plain_loop() -> None:
    """N13: norms, update ratios and gradient norms equal those of the values at each step."""
    text = training("  %w.1: f32[4,3] = nncdbg.SGD(%w, %d_w, lr=0.1)", 12)
    (history,) = nncdbg.watch(nncdbg.parse(text)).training
    assert history.steps == [*range(12)]
    weights = next(each for each in history.parameters if each.name == "w")
    debugger = nncdbg.Debugger(nncdbg.parse(text))
    debugger.break_at(value="w.1")
    for step in range(12):
        debugger.run()
        old, gradient = (np.float64(debugger.value(name)) for name in ("w", "d_w"))
        debugger.step_over()
        change = np.float64(debugger.value("w.1")) - old
        assert weights.norms[step] == pytest.approx(np.linalg.norm(old), rel=1e-5)
        assert weights.ratios[step] == pytest.approx(np.linalg.norm(change) / np.linalg.norm(old), rel=1e-4)
        assert weights.gradient_norms[step] == pytest.approx(np.linalg.norm(gradient), rel=1e-5)
        assert weights.gradient == "d_w"
        assert history.results["l"][step] == debugger.value("l")


def test_the_steps_of_a_history_are_in_order() -> None:
    """The last steps are measured at the end; step 96 was measured before step 85."""
    text = training("  %w.1: f32[4,3] = nncdbg.SGD(%w, %d_w, lr=0.0001)", 100)
    (history,) = nncdbg.watch(nncdbg.parse(text)).training
    assert history.steps == sorted({*history.steps})
    losses = nncdbg.run(nncdbg.parse(text))["l"]
    assert history.results["l"] == [losses[step] for step in history.steps]


def test_a_long_history_is_thinned_and_keeps_the_first_and_last_steps() -> None:
    text = training("  %w.1: f32[4,3] = nncdbg.SGD(%w, %d_w, lr=0.0001)", 3000)
    (history,) = nncdbg.watch(nncdbg.parse(text)).training
    steps = history.steps
    assert steps == sorted({*steps})
    assert len(steps) <= _MOST + 17
    assert steps[:20] == [*range(20)]
    assert steps[-16:] == [*range(2984, 3000)]
    assert max(np.diff(steps)) < 150
    assert {len(series) for series in history.series} == {len(steps)}


def test_json_has_the_history_of_a_training_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.nnc").write_text(training("  %w.1: f32[4,3] = Mul(%d_w, inf)"))
    main(["watch", str(tmp_path / "t.nnc"), "--json"])
    (history,) = json.loads(capsys.readouterr().out)["training"]
    assert (history["graph"], history["steps"]) == ("train", [0])
    weights = next(each for each in history["parameters"] if each["name"] == "w")
    assert math.isfinite(weights["norm"][0])
    assert weights["update_ratio"] == [None]


def test_the_report_has_the_first_the_last_and_the_largest_norms() -> None:
    report = nncdbg.watch(nncdbg.parse(training("  %w.1: f32[4,3] = nncdbg.SGD(%w, %d_w, lr=0.1)", 30)))
    (history,) = report.training
    weights = next(each for each in history.parameters if each.name == "w")
    largest = max(weights.gradient_norms)
    line = next(line for line in str(report).split("\n") if line.startswith("  %w: "))
    bars = sparkline(history.steps, weights.norms, 8)
    assert len(bars) == 8
    assert f"norm {weights.norms[0]:.4g} to {weights.norms[-1]:.4g} {bars}, update / norm " in line
    at = history.steps[weights.gradient_norms.index(largest)]
    assert line.endswith(f"largest {largest:.4g} in step {at}")
    assert "steps 0 to 29 of @train, %l " in str(report)


def test_a_report_of_a_program_without_a_training_has_no_norms() -> None:
    report = nncdbg.watch(nncdbg.parse("graph @main() -> (%y) {\n  %y = Add(1.0, 2.0)\n  return %y\n}\n"))
    assert report.training == []
    assert "training" not in report.as_dict()
