"""The steps of the visits of a value, as `stats %value COUNT` and the Statistics view number them."""

from __future__ import annotations

import pytest

import nncdbg

TWO_RUNS = """opset 21
state %count: f64[] = 0.0

graph @train() -> (%l: f64[]) {
  %h = Mul(%count, 10.0)
  %l: f64[] = Neg(%h)
  %count.1 = Add(%count, 1.0)
  update %count = %count.1
  return %l
}

run @train steps 5
run @train steps 4
"""

H, AFTER_H, SECOND_RUN = 5, 6, 13
"""Lines: the statement of %h, the next one, the second run."""


def visits(debugger: nncdbg.Debugger, name: str = "h") -> list[tuple[int | None, float]]:
    return [(step, float(value)) for step, value in debugger.values.visits(name)]


def at(step: int, run: int, line: int = AFTER_H) -> nncdbg.Debugger:
    """Return the debugger before a line in a step of the first or second run."""
    debugger = nncdbg.Debugger(nncdbg.parse(TWO_RUNS))
    debugger.break_at(line=line, when=f"$step == {step}")
    for _ in range(run):
        assert debugger.run().reason == "breakpoint"
    return debugger


@pytest.mark.parametrize(
    ("step", "run", "expected"),
    [
        (0, 1, [(0, 0)]),
        (3, 1, [(3, 30), (2, 20), (1, 10), (0, 0)]),
        (0, 2, [(0, 50)]),
        (3, 2, [(3, 80), (2, 70), (1, 60), (0, 50)]),
    ],
)
def test_visits_have_the_steps_of_their_own_run(
    step: int, run: int, expected: list[tuple[int, float]]
) -> None:
    assert visits(at(step, run)) == expected


@pytest.mark.parametrize(("run", "values"), [(1, [20, 10, 0]), (2, [70, 60, 50])])
def test_a_value_that_this_step_has_not_computed_has_the_step_that_computed_it(
    run: int, values: list[float]
) -> None:
    assert visits(at(3, run, H)) == [*zip((2, 1, 0), values, strict=True)]


def test_after_a_run_its_steps_remain() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TWO_RUNS))
    debugger.break_at(line=SECOND_RUN)
    assert debugger.run().line == SECOND_RUN
    assert visits(debugger) == [(4, 40), (3, 30), (2, 20), (1, 10), (0, 0)]
    assert debugger.run().reason == "end"
    assert visits(debugger) == [(3, 80), (2, 70), (1, 60), (0, 50)]


def test_step_back_into_the_first_run_gives_its_steps() -> None:
    debugger = at(0, 2)
    assert debugger.frames[1].progress == "step 0 of 4"
    while not any(frame.progress == "step 4 of 5" for frame in debugger.frames):
        debugger.go_to(debugger.timeline.tick - 1)
    assert visits(debugger) == [(4, 40), (3, 30), (2, 20), (1, 10), (0, 0)]
