"""The binomial plan: the least number of recomputations, by a search over all plans and by the formula."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.engine.ops.cotangent import kept_before, reach, recomputations
from nncdbg.errors import RunError


@cache
def least(iterations: int, checkpoints: int) -> int:
    """t(n, s) by the recursion of Griewank and Walther, over all places for the next checkpoint."""
    if iterations < 2:
        return 0
    if checkpoints == 1:
        return iterations * (iterations - 1) // 2
    return min(
        ahead + least(iterations - ahead, checkpoints - 1) + least(ahead, checkpoints)
        for ahead in range(1, iterations)
    )


def swept(iterations: int, checkpoints: int) -> tuple[int, int]:
    """The numbers of recomputed iterations and of held checkpoints of a loop that follows the plan."""
    held, computed, most = [0], 0, 1
    for index in reversed(range(iterations)):
        start = held[-1]
        free, ahead = checkpoints - len(held), index - start
        for step in range(ahead):
            if step in kept_before(ahead + 1, free + 1):
                held.append(start + step)
            computed += 1
        most = max(most, len(held))
        if held[-1] == index:
            held.pop()
    assert not held
    return computed, most


@pytest.mark.parametrize("checkpoints", [1, 2, 3, 4, 7, 12])
def test_the_formula_is_the_least_number_of_recomputations(checkpoints: int) -> None:
    """D12: t(n, s) = r * n - beta(s + 1, r - 1), Griewank and Walther, Algorithm 799."""
    for iterations in range(1, 60):
        assert recomputations(iterations, checkpoints) == least(iterations, checkpoints), iterations


@given(iterations=st.integers(1, 300), checkpoints=st.integers(1, 20))
def test_a_loop_that_follows_the_plan_needs_no_more(iterations: int, checkpoints: int) -> None:
    """D12: with at most `checkpoints` held, exactly t(n, s) iterations are computed again."""
    computed, most = swept(iterations, checkpoints)
    assert computed == recomputations(iterations, checkpoints)
    assert most <= checkpoints


def test_the_plan_of_a_thousand_iterations() -> None:
    """Ten checkpoints reverse 1001 iterations, none of them computed more than four times again."""
    assert reach(10, 3) < 1000 <= reach(10, 4) == 1001
    assert recomputations(1000, 10) == 4 * 1000 - reach(11, 3) == 3636


PROGRAM = """graph @main(%step: i64[], %ahead: i64[], %free: i64[]) -> (%keeps: bool[]) {
  %keeps: bool[] = nncdbg.KeepsCheckpoint(%step, %ahead, %free)
  return %keeps
}
"""


def test_the_op_follows_the_plan() -> None:
    program = nncdbg.parse(PROGRAM)
    found = [nncdbg.run(program, {"step": step, "ahead": 9, "free": 2})["keeps"] for step in range(10)]
    assert {step for step, keeps in enumerate(found) if keeps} == kept_before(10, 3)
    assert all(keeps.dtype == np.bool_ for keeps in found)


def test_negative_numbers_are_an_error() -> None:
    with pytest.raises(RunError, match="free=-1 must not be negative"):
        nncdbg.run(nncdbg.parse(PROGRAM), {"step": 0, "ahead": 3, "free": -1})
