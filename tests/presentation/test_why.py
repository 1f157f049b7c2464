"""`why` without a name: few commands after opening a model find the statement of a planted bug."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.text import Text

import nncdbg
from nncdbg.commands.session import CommandSession
from nncdbg.presentation.screen import Screen
from nncdbg.target.program import ProgramTarget

BUGS = {
    "examples/nan_softmax.nnc": ("line 21: %logq = Log(%q) : f32[3,4]", "cause: log of zero", 2),
    "examples/overflow_f16.nnc": ("line 9: %squares = Mul(%h, %h) : f16[8]", "cause: overflow: ", 2),
    "examples/tutorials/underflow_f16.nnc": (
        "line 15: %squares = Mul(%x, %x) : f16[4,8]",
        "cause: underflow: |%x| is 1.61e-06 to 0.000129; f16 rounds results below about 3e-08 to 0",
        2,
    ),
    "examples/tutorials/wrong_axis.nnc": (
        "line 22: %weights = Softmax(%scores, axis=0) : f32[4,4]",
        "normalizes over axis 0 of 2, not the last: sums along the last axis are 0.4488 to 1.943",
        5,
    ),
}


def output_of(session: CommandSession, capsys: pytest.CaptureFixture[str], *lines: str) -> str:
    session.screen = Screen()
    capsys.readouterr()
    for line in lines:
        session.execute(line, typed=True)
    return capsys.readouterr().out


def opened(program: nncdbg.Program, **inputs: np.ndarray) -> CommandSession:
    return CommandSession(ProgramTarget(nncdbg.Debugger(program, inputs)), "model", Screen())


@pytest.mark.parametrize("model", BUGS)
def test_a_planted_bug_is_found_in_few_commands(
    model: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    statement, words, most = BUGS[model]
    commands = ("run", "why")
    assert len(commands) <= most
    lines = output_of(opened(nncdbg.load(str(repository / model))), capsys, *commands).splitlines()
    first = next(i for i, line in enumerate(lines) if "originate" in line or "suspicious" in line)
    assert lines[first + 1] == statement
    assert any(words in line for line in lines[first:])


@pytest.mark.parametrize(
    ("statements", "ending"),
    [
        ("%y = Log(%x)", "%y has NaN: `why` shows the origin; `catch nan` and `run` stop there"),
        ("%y = Div(%x, 0.0)", "%y has Inf: `why` shows the origin; `catch inf` and `run` stop there"),
        ("%y = Mul(%x, 0.0)", "%y has only zeros: `why` shows the origin"),
        ("%y = Abs(%x)", "%y f32[3] [1. 2. 3.]"),
    ],
)
def test_the_end_of_a_run_suggests_a_command_for_an_abnormal_output(
    statements: str, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"#nncdbg 1\nopset 18\ngraph @main(%x: f32[3]) -> (%y) {{\n  {statements}\n  return %y\n}}\n"
    session = opened(nncdbg.parse(text), x=np.array([-1, -2, -3], np.float32))
    assert output_of(session, capsys, "run").splitlines()[-1] == ending


def test_why_inside_of_a_graph_names_the_input_of_the_program_with_the_nan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = """#nncdbg 1
opset 18
graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %y: f32[2] = @layer(%x)
  return %y
}
graph @layer(%a: f32[2]) -> (%b: f32[2]) {
  %b: f32[2] = Relu(%a)
  return %b
}
"""
    session = opened(nncdbg.parse(text), x=np.array([1, np.nan], np.float32))
    shown = output_of(session, capsys, "break Relu", "run", "next", "why")
    assert "%x has NaN before the program runs" in shown
    assert "cause: bad input: input %x has 1 NaN among 2 elements, the first at [1]" in shown


def test_why_follows_the_infinity_that_a_nan_originates_from(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = opened(nncdbg.load(str(repository / "examples" / "nan_softmax.nnc")))
    lines = output_of(session, capsys, "catch nan", "run", "why").splitlines()
    first = lines.index("Inf originates at this statement:")
    assert lines[first + 1].startswith("line 21: %logq")
    second = lines.index("NaN originates at this statement:")
    assert first < second
    assert lines[second + 1].startswith("line 22: %terms")
    assert "path: line 21 Log -> line 22 Mul" in lines


def test_why_on_a_terminal_shows_the_source_line_of_the_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").write_text("x = read()\ny = x.log()\n")
    statement = '%y = Log(%x) loc("model.py":2, node "Encoder.layers.0.distance", from "model.py":1)'
    text = f"#nncdbg 1\nopset 18\ngraph @main(%x: f32[1]) -> (%y) {{\n  {statement}\n  return %y\n}}\n"
    (tmp_path / "model.nnc").write_text(text)
    monkeypatch.setenv("FORCE_COLOR", "1")  # As on a terminal; a pipe has whole statements.
    out = io.StringIO()
    debugger = nncdbg.Debugger(nncdbg.load(tmp_path / "model.nnc"), {"x": np.array([-1], np.float32)})
    session = CommandSession(ProgramTarget(debugger), "model", Screen(out, width=80))
    for line in ("run", "why"):
        session.execute(line, typed=True)
    shown = Text.from_ansi(out.getvalue()).plain
    assert "line 4: %y = Log(%x)\n  from model.py:2  y = x.log()\n" in shown


@pytest.mark.parametrize("model", ["train_mlp_nan", "train_cnn_nan", "train_transformer_nan"])
def test_why_after_a_training_reports_that_the_origin_left_the_history(
    model: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = opened(nncdbg.load(str(repository / "examples" / f"{model}.nnc")))
    ending = output_of(session, capsys, "run").splitlines()[-1]
    stop = "`catch inf nan` and `run` stop" if model == "train_mlp_nan" else "`catch nan` and `run` stop"
    assert ending.endswith(f"{stop} at the origin")
    lines = output_of(session, capsys, "why").splitlines()
    assert lines[1] == f"the origin is no longer in the history: {stop} there"
    at_the_origin = output_of(session, capsys, "catch inf nan", "run", "why")
    assert " originates at this statement:" in at_the_origin
    assert "for the learning rate, the loss scale and the data of a training" in at_the_origin


def test_why_at_a_stop_explains_the_value_of_the_stop(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = opened(nncdbg.load(str(repository / "examples" / "nan_softmax.nnc")))
    assert output_of(session, capsys, "why").startswith("%logits f32[3,4] min")
    assert "cause: zero times infinity" in output_of(session, capsys, "catch nan", "run", "why")
    assert (
        output_of(session, capsys, "next", "why")
        .splitlines()[-2]
        .startswith("path: line 21 Log -> line 22 Mul")
    )
    assert output_of(session, capsys, "why %q", "why -v %q 1").startswith("%q f32[3,4]")


def test_zeros_of_a_dead_activation_originate_at_the_activation(capsys: pytest.CaptureFixture[str]) -> None:
    text = """#nncdbg 1
opset 18
graph @main(%x: f32[4]) -> (%y) {
  %a = Abs(%x)
  %n = Neg(%a)
  %r = Relu(%n)
  %y = Mul(%r, 3.0)
  return %y
}
"""
    shown = output_of(opened(nncdbg.parse(text)), capsys, "run", "why")
    assert "Zeros originate at this statement:\nline 6: %r" in shown
    assert "cause: no positive input: the largest element of %n is -" in shown
    assert "path: line 6 Relu -> line 7 Mul" in shown


def test_zeros_of_integers_do_not_originate_at_a_cast(capsys: pytest.CaptureFixture[str]) -> None:
    text = """#nncdbg 1
opset 18
graph @main(%n: i64[2]) -> (%y) {
  %m = Mul(%n, 0)
  %y = Cast(%m, to=1)
  return %y
}
"""
    shown = output_of(opened(nncdbg.parse(text)), capsys, "run", "why")
    assert "originate" not in shown
    assert "path: line 4 Mul -> line 5 Cast" in shown or "path: line 5 Cast" in shown


def test_why_follows_a_value_through_a_branch_of_another_frame(capsys: pytest.CaptureFixture[str]) -> None:
    text = """#nncdbg 1
opset 18
graph @main(%x: f32[3], %c: bool[]) -> (%y) {
  %a = Abs(%x)
  if %c {
    %p = Neg(%a)
    yield %p
  } else {
    yield %a
  } -> (%b)
  %d = @inner(%b, %c)
  %y = Add(%d, %b)
  return %y
}

graph @inner(%u: f32[3], %c: bool[]) -> (%v) {
  if %c {
    %w = Exp(%u)
    yield %w
  } else {
    yield %u
  } -> (%v)
  return %v
}
"""
    for chosen in (False, True):
        session = opened(nncdbg.parse(text), c=np.array(chosen))
        assert "(input)" in output_of(session, capsys, "run", "why", "why -v")


def test_a_nan_set_by_hand_is_not_attributed_to_the_kernel(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = opened(nncdbg.load(str(repository / "examples" / "first_steps.nnc")))
    shown = output_of(
        session, capsys, "until 12", "set %scores[0, 0] = nan", "delete", "continue", "why %probs"
    )
    assert "%scores has NaN since it was set" in shown
    assert "cause: set by hand: %scores, set at step 6, has 1 NaN among 6 elements" in shown
    assert "report the bug" not in shown


def test_zeros_set_by_hand_are_not_attributed_to_the_op(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = opened(nncdbg.load(str(repository / "examples" / "first_steps.nnc")))
    shown = output_of(session, capsys, "until 12", "set %scores = 0", "why %scores")
    assert "cause: set by hand: at step 6; MatMul did not compute it" in shown


def test_diff_of_branches_counts_nan_on_one_side(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = opened(nncdbg.load(str(repository / "examples" / "first_steps.nnc")))
    shown = output_of(session, capsys, "until 12", "set %scores[0, 0] = nan", "diff %scores")
    assert "1 of 6 elements differ\n  NaN on one side: 1\n  the other elements are equal\n" in shown
    assert "largest difference" not in shown
    shown = output_of(session, capsys, "set %scores[1] = [inf, 0, 0]", "diff %scores 0")
    assert "  Inf on one side, or of the other sign: 1\n  largest difference" in shown
