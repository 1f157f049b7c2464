"""`why` without a name: planted bugs lead to their statement in few commands from opening the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg.commands.session import CommandSession
from nncdbg.presentation.screen import Screen

BUGS = {
    "examples/nan_softmax.nnc": ("line 21: %logq: f32[3,4] = Log(%q)", "cause: log of zero", 2),
    "examples/overflow_f16.nnc": ("line 9: %squares: f16[8] = Mul(%h, %h)", "cause: overflow: ", 2),
    "examples/tutorials/underflow_f16.nnc": (
        "line 15: %squares: f16[4,8] = Mul(%x, %x)",
        "cause: underflow: |%x| is 1.61e-06 to 0.000129; f16 rounds results below about 3e-08 to 0",
        2,
    ),
    "examples/tutorials/wrong_axis.nnc": (
        "line 22: %weights: f32[4,4] = Softmax(%scores, axis=0)",
        "normalizes over axis 0 of 2, not the last: sums along the last axis are 0.4488 to 1.943",
        5,
    ),
}


def said(session: CommandSession, capsys: pytest.CaptureFixture[str], *lines: str) -> str:
    session.screen = Screen()
    capsys.readouterr()
    for line in lines:
        session.execute(line, typed=True)
    return capsys.readouterr().out


def opened(program: nncdbg.Program, **inputs: np.ndarray) -> CommandSession:
    return CommandSession(nncdbg.Debugger(program, inputs), "model", Screen())


@pytest.mark.parametrize("model", BUGS)
def test_planted_bug_is_found_in_few_commands(
    model: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    statement, words, most = BUGS[model]
    commands = ("run", "why")
    assert len(commands) <= most
    lines = said(opened(nncdbg.load(str(repository / model))), capsys, *commands).splitlines()
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
def test_end_names_the_command_for_an_abnormal_output(
    statements: str, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"#nncdbg 1\nopset 18\ngraph @main(%x: f32[3]) -> (%y) {{\n  {statements}\n  return %y\n}}\n"
    session = opened(nncdbg.parse(text), x=np.array([-1, -2, -3], np.float32))
    assert said(session, capsys, "run").splitlines()[-1] == ending


def test_why_at_a_stop_explains_what_the_stop_is_about(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = opened(nncdbg.load(str(repository / "examples" / "nan_softmax.nnc")))
    assert said(session, capsys, "why").startswith("%logits f32[3,4] min")
    assert "cause: zero times infinity" in said(session, capsys, "catch nan", "run", "why")
    assert (
        said(session, capsys, "next", "why").splitlines()[-2].startswith("path: line 21 Log -> line 22 Mul")
    )
    assert said(session, capsys, "why %q", "why -v %q 1").startswith("%q f32[3,4]")


def test_zeros_of_a_dead_activation_name_it(capsys: pytest.CaptureFixture[str]) -> None:
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
    shown = said(opened(nncdbg.parse(text)), capsys, "run", "why")
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
    shown = said(opened(nncdbg.parse(text)), capsys, "run", "why")
    assert "originate" not in shown
    assert "path: line 4 Mul -> line 5 Cast" in shown or "path: line 5 Cast" in shown


def test_why_passes_a_branch_whose_frame_is_not_of_the_statement(capsys: pytest.CaptureFixture[str]) -> None:
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
        assert "(input)" in said(session, capsys, "run", "why", "why -v")


def test_a_nan_set_by_hand_is_not_blamed_on_the_kernel(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = opened(nncdbg.load(str(repository / "examples" / "first_steps.nnc")))
    shown = said(session, capsys, "until 12", "set %scores[0, 0] = nan", "delete", "continue", "why %probs")
    assert "cause: set by hand at step 6; MatMul did not compute it" in shown
    assert "report the bug" not in shown


def test_zeros_set_by_hand_are_not_blamed_on_the_op(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = opened(nncdbg.load(str(repository / "examples" / "first_steps.nnc")))
    shown = said(session, capsys, "until 12", "set %scores = 0", "why %scores")
    assert "cause: set by hand at step 6; MatMul did not compute it" in shown


def test_diff_of_branches_counts_nan_on_one_side(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = opened(nncdbg.load(str(repository / "examples" / "first_steps.nnc")))
    shown = said(session, capsys, "until 12", "set %scores[0, 0] = nan", "diff %scores")
    assert "1 of 6 elements differ\n  NaN on one side: 1\n  the other elements are equal\n" in shown
    assert "largest difference" not in shown
    shown = said(session, capsys, "set %scores[1] = [inf, 0, 0]", "diff %scores 0")
    assert "  Inf on one side, or of the other sign: 1\n  largest difference" in shown
