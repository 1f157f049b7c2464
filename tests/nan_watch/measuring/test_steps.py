"""The watch of a training in graph text: where it ends, and the verdicts on what went wrong (N7, N8)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.errors import UsageError
from nncdbg.nan_watch.records import Report, TrainingStep, WatchFinding
from nncdbg.terminal.main import main

HEAD = """#nncdbg 1
opset 18
state %w: TYPE[4] = [0.5, 0.25, 0.5, 1.0]
state %m: TYPE[4] = zeros for %w
state %n: f32[] = 9.0

graph @train(INPUT) -> (%l: TYPE[]) {
  DRAW
  %l: TYPE[], saved %s = @loss(%x)
  %d_w: TYPE[4] = @loss.backward(SCALE, %s)
  STEP
  return %l
}

graph @loss(%x: TYPE[8,4]) -> (%l: TYPE[]) {
  %y: TYPE[8,4] = Mul(%x, %w)
  %q: TYPE[8,4] = Mul(%y, %y)
  %l: TYPE[] = ReduceSum(%q, keepdims=0)
  return %l
}

backward @loss.backward of @loss by (%w)

"""

DRAW = "%x: TYPE[8,4] = RandomNormal(seed=1.0, dtype=ONNX, shape=[8,4])"

SGD = """%w.1: TYPE[4], %m.1: TYPE[4] = nncdbg.SGD(%w, %d_w, %m, lr=RATE, momentum=0.5)
  update %w = %w.1, %m = %m.1"""

BY_HAND = """%step: TYPE[4] = Mul(%d_w, RATE)
  %w.1: TYPE[4] = Sub(%w, %step)
  update %w = %w.1"""

SCALED = """%g: TYPE[4] = Div(%d_w, SCALE)
  %w.1: TYPE[4] = nncdbg.SGD(%w, %g, lr=0.01)
  update %w = %w.1"""

LOG = """%log: f32[] = Log(%n)
  %rate: f32[] = Mul(%log, 1e-3)
  %step: f32[4] = Mul(%d_w, %rate)
  %w.1: f32[4] = Sub(%w, %step)
  %n.1: f32[] = Sub(%n, 1.0)
  update %w = %w.1, %n = %n.1"""

HIDDEN = """%zero: f32[] = Sub(%n, %n)
  %bad: f32[4] = Div(%d_w, %zero)
  %no: bool[4] = Greater(%w, 1e9)
  %g: f32[4] = Where(%no, %bad, %d_w)
  %w.1: f32[4] = nncdbg.SGD(%w, %g, lr=0.001)
  update %w = %w.1"""


def training(
    step: str, *, rate: str = "0.001", scale: str = "1.0", half: bool = False, data: bool = False
) -> str:
    """Return a training of 40 steps with these statements of the update."""
    text = HEAD.replace("STEP", step).replace("RATE", rate).replace("SCALE", scale)
    text = text.replace("INPUT", "%x: TYPE[8,4]" if data else "").replace(
        "  DRAW\n", "" if data else f"  {DRAW}\n"
    )
    text += "run @train for %x batch 8 epochs 2\n" if data else "run @train steps 40\n"
    return text.replace("TYPE", "f16" if half else "f32").replace("ONNX", "10" if half else "1")


def watched(text: str, **inputs: Any) -> Report:
    return nncdbg.watch(nncdbg.parse(text), inputs)


def first_of(report: Report) -> WatchFinding:
    return next(each for each in report.findings if each.first)


VERDICTS = [
    (training(SGD, rate="30.0"), "learning rate too high: the norm of %w grew from", "smaller learning rate"),
    (training(BY_HAND, rate="30.0"), "learning rate too high: the norm of %w grew", "smaller learning rate"),
    (training(SGD, rate="1e20"), "learning rate too high: the norm of %w grew", "smaller learning rate"),
    (training(SCALED, scale="32768.0", half=True), "loss scale too large: f16 cannot", "dynamic loss scale"),
    (training(LOG), "faulty op: the carried values were steady before (the norm of %w was", "Log"),
]


@pytest.mark.parametrize(("text", "evidence", "hint"), VERDICTS)
def test_the_evidence_explains_a_failed_training(text: str, evidence: str, hint: str) -> None:  # N7
    first = first_of(watched(text))
    assert evidence in first.evidence
    assert hint in first.hint


def test_a_loss_scale_in_a_state_is_named() -> None:  # N7
    text = training(SCALED, scale="%scale", half=True)
    text = text.replace("graph @train", "state %scale: f16[] = 32768.0\n\ngraph @train", 1)
    assert "loss scale too large: f16 cannot represent its factor %scale" in first_of(watched(text)).evidence


CLEAN = [
    training(SGD),
    training(BY_HAND),
    training(SCALED, scale="4.0", half=True),
    training(HIDDEN),
]


@pytest.mark.parametrize("text", CLEAN)
def test_a_training_that_learns_has_no_verdict(text: str) -> None:  # N7
    report = watched(text)
    assert report.ok
    assert not [each for each in report.findings if each.trips]
    assert report.error is None


def test_a_nan_in_the_data_is_reported_with_its_batch() -> None:  # N8
    x = np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32)
    x[58, 1] = np.nan
    report = watched(training(SGD, data=True), x=x)
    found = first_of(report)
    assert (found.cause, found.value) == ("bad input", "x")
    assert "at index 58 of axis 0" in found.evidence
    assert found.used is not None
    assert found.used.at_step == TrainingStep(7, 0)
    assert "run @train" in nncdbg.parse(training(SGD, data=True)).as_listing().lines[(found.line or 0) - 1]


def test_a_watch_ends_after_the_first_bad_step() -> None:
    report = watched(training(SGD, rate="30.0"))
    found = first_of(report)
    assert found.at_step == TrainingStep(found.iteration[0])
    assert report.notes[-1] == f"the watch ended after {found.at_step}: later steps use its values"
    assert (report.exit_code, report.error) == (1, None)
    fields = found.as_dict()
    assert (fields["step"], fields["epoch"]) == (found.iteration[0], None)


def test_a_collected_result_shows_the_effect_of_an_overflow() -> None:
    """The driver collects copies of scalars; the loss of the last step is Inf, and no state."""
    text = training(SGD, rate="0.0").replace("update %w", "%big: f32[] = Mul(%l, 3e38)\n  update %w")
    text = text.replace("return %l\n}\n\ngraph @loss", "return %big\n}\n\ngraph @loss").replace(
        "(%l: f32[]) {\n  %x", "(%big: f32[]) {\n  %x"
    )
    found = first_of(watched(text.replace("steps 40", "steps 3")))
    assert (found.op, found.reaches_output, found.trips) == ("Mul", True, True)


def test_steps_set_the_length_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "train.nnc"
    path.write_text(training(SGD))
    assert len(nncdbg.run(nncdbg.load(path, steps=3))["l"]) == 3
    assert len(nncdbg.run(nncdbg.load(path, steps=50))["l"]) == 50


def test_the_lines_of_the_runs_have_the_chosen_number_of_steps(tmp_path: Path) -> None:
    path = tmp_path / "train.nnc"
    path.write_text(training(SGD) + "\nrun @train steps 7\n")
    program = nncdbg.load(path, steps=3)
    lines = nncdbg.load(path).as_listing().lines
    changed = {
        number: (old, new)
        for number, (old, new) in enumerate(zip(lines, program.as_listing().lines, strict=True), 1)
        if old != new
    }
    assert [*changed.values()] == [(f"run @train steps {steps}", "run @train steps 3") for steps in (40, 7)]
    debugger = nncdbg.Debugger(program)
    debugger.break_at(value="w.1", when="$step == 2")
    for line in changed:
        assert debugger.run().reason == "breakpoint"
        assert debugger.frames[1].progress == "step 2 of 3"
        assert debugger.loaded.line(debugger.frames[1].code, 0) == line


@pytest.mark.parametrize(("text", "steps"), [(training(SGD), 0), ("graph @main() -> () {\n  return\n}\n", 1)])
def test_steps_need_a_run_and_a_positive_number(text: str, steps: int) -> None:
    with pytest.raises(UsageError) as error:
        nncdbg.load(nncdbg.parse(text), steps=steps)
    assert error.value.hint


def test_the_command_writes_every_report_of_a_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, bundle = tmp_path / "train.nnc", tmp_path / "bundle"
    path.write_text(training(SGD, rate="30.0"))
    files = {form: tmp_path / form for form in ("sarif", "junit")}
    options = [word for form, file in files.items() for word in (f"--{form}", str(file))]
    assert main(["watch", str(path), "--steps", "30", "--bundle", str(bundle), "--json", *options]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["findings"][0]["step"] is not None
    assert json.loads(files["sarif"].read_text())["runs"][0]["results"]
    assert "learning rate too high" in files["junit"].read_text()
    assert main(["watch", str(bundle)]) == 1
    assert main(["watch", str(path), "--steps", "2"]) == 0
