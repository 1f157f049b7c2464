"""`why` answers for every value at every stop: it never fails with an exception of Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

import nncdbg
from nncdbg.errors import NncdbgError
from tests.bugs.labels import ROOT, SECOND, Bug, corpus
from tests.engine.programs import runnable
from tests.laws import examples

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").rglob("*.nnc"))
BUGS = [bug for root in (ROOT, SECOND) for bug in corpus(root)]
MOST_STOPS = 40
"""Stops of one program; a loop repeats its statements."""

SLOW = examples(200)
QUICK = examples(2)


def check_every_value(debugger: nncdbg.Debugger, *, every: int = 1) -> int:
    """Ask `why` for each value at stops of a program, forward and once back; return the answers."""
    debugger.uncatch()
    answers = 0
    for stop in range(MOST_STOPS):
        if stop % every == 0 or debugger.ended:
            answers += _ask(debugger)
        if debugger.ended or debugger.step_into().error is not None:
            break
    if debugger.timeline.tick:
        debugger.step_back()
        answers += _ask(debugger)
    return answers


def _ask(debugger: nncdbg.Debugger) -> int:
    answers = 0
    names = sorted(name for name in debugger.loaded.names if name)
    for line in ("why", *(f"why %{name}" for name in names), *(f"why -v %{name}" for name in names[::5])):
        try:
            shown = str(nncdbg.execute(debugger, line))
        except NncdbgError:
            continue  # The value is not available: the error says why.
        assert shown.strip(), f"{line} has no answer"
        answers += 1
    return answers


def started(bug: Bug) -> nncdbg.Debugger:
    return nncdbg.Debugger(bug.program, bug.inputs())


@pytest.mark.parametrize("path", EXAMPLES[1:3], ids=lambda path: path.stem)
def test_why_answers_in_examples(path: Path) -> None:
    assert check_every_value(nncdbg.Debugger(path), every=16)


@pytest.mark.parametrize("bug", BUGS[::90], ids=str)
def test_why_answers_in_a_sample_of_the_corpora(bug: Bug) -> None:
    with bug.kernels():
        assert check_every_value(started(bug), every=16)


INPUTS = {"x": np.array([0.5, -1.0, 2.0], np.float32), "z": np.array([1.0, 0.0, -0.5], np.float32)}


@QUICK
@given(runnable())
def test_why_answers_in_random_programs(text: str) -> None:
    assert check_every_value(nncdbg.Debugger(nncdbg.parse(text), INPUTS), every=16)


@pytest.mark.laws
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_why_answers_at_each_stop_of_examples(path: Path) -> None:
    assert check_every_value(nncdbg.Debugger(path))


@pytest.mark.laws
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_why_answers_at_each_stop_of_the_corpora(bug: Bug) -> None:
    with bug.kernels():
        assert check_every_value(started(bug))


@pytest.mark.laws
@SLOW
@given(runnable())
def test_why_answers_at_each_stop_of_random_programs(text: str) -> None:
    assert check_every_value(nncdbg.Debugger(nncdbg.parse(text), INPUTS))


CALLED_AFTER_A_BRANCH = """graph @main(%x: f64[], %w: f64[], %c: bool[]) -> (%y: f64[], %z: f64[]) {
  %y: f64[] = @big(%x, %w)
  if %c @a {
    yield %x
  } else @b {
    %q = Exp(%x)
    yield %q
  } -> (%z: f64[])
  return %y, %z
}
graph @big(%a: f64[], %b: f64[]) -> (%o: f64[]) {
  %o: f64[] = Mul(%a, %b)
  return %o
}
"""


def test_why_of_a_call_before_another_block_follows_the_call() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(CALLED_AFTER_A_BRANCH), {"x": 1.0, "w": 2.0, "c": True})
    debugger.run()
    debugger.step_back()
    shown = nncdbg.execute(debugger, "why %y")
    assert "%o: f64[] = Mul(%a, %b)" in str(shown)
