"""When checkpoints are written, and which ones a budget keeps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nncdbg.errors import UsageError
from nncdbg.opening.journal.policy import CheckpointPolicy, Every, kept, read_every, spacing

TEXTS = """
50        | Every(steps=50)
50 steps  | Every(steps=50)
1step     | Every(steps=1)
3epochs   | Every(epochs=3)
1 epoch   | Every(epochs=1)
30s       | Every(seconds=30.0)
0.5s      | Every(seconds=0.5)
"""


@pytest.mark.parametrize("line", TEXTS.strip().splitlines())
def test_distances_in_text(line: str) -> None:
    text, expected = map(str.strip, line.split("|"))
    assert read_every(text) == eval(expected)


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "3e", "1.5", "3 epoch s", "1e3", "10m", "0epochs"])
def test_texts_that_are_no_distance(text: str) -> None:
    with pytest.raises(UsageError, match="not a distance"):
        read_every(text)


def test_each_unit() -> None:
    now = [0.0]
    by_step, by_epoch, by_time = (
        CheckpointPolicy(each, 1 << 40, lambda: now[0])
        for each in (Every(steps=3), Every(epochs=2), Every(seconds=2.0))
    )
    found: list[tuple[int, ...]] = []
    for policy in (by_step, by_epoch, by_time):
        steps = []
        for step in range(12):
            now[0] = 0.5 * step
            if policy.due(step, step // 3):
                assert policy.written(step, step // 3, 1) == []
                steps.append(step)
        found.append(tuple(steps))
    assert found == [(0, 3, 6, 9), (0, 6), (0, 4, 8)]


def run(count: int, most: int) -> list[int]:
    """Write `count` checkpoints with a budget for `most`; return the steps of those that are kept."""
    policy, present = CheckpointPolicy(Every(steps=1), most * 100), []
    for step in range(count):
        assert policy.due(step, 0)
        present.append(step)
        for dropped in policy.written(step, 0, 100):
            present.remove(dropped)
        assert len(present) <= max(2, most)
        assert (present[0], present[-1]) == (0, step)
    return present


@pytest.mark.parametrize("most", [0, 1, 2, 3, 5, 8, 13, 20, 50, 200, 1000])
def test_a_budget_is_never_exceeded(most: int) -> None:
    run(1500, most)


def test_a_budget_without_need_drops_nothing() -> None:
    assert run(100, 100) == [*range(100)]


@pytest.mark.parametrize("density", [1, 2, 3, 8, 50])
@pytest.mark.parametrize("count", [1, 2, 10, 1000, 4097])
def test_recomputed_steps_match_the_formula(count: int, density: int) -> None:
    """D12: memory of O(k log n), and the steps that going back to each step computes again.

    The count is the remainder of the step by the least power of two that is the spacing at the checkpoint.
    """
    stay = kept(range(count), count - 1, density)
    assert len(stay) <= density * max(0.0, math.log2(max(1, (count - 1) / density))) + 2 * density + 2
    for step in range(count):
        distance = count - 1 - step
        wide, before = spacing(distance, density), 0
        while wide != before:
            before, wide = wide, spacing(distance + step % wide, density)
        computed = step - max(each for each in stay if each <= step)
        assert computed == step % wide
        assert computed <= 2 * distance / density


@given(st.integers(1, 400), st.integers(1, 40), st.integers(0, 400), st.integers(0, 39))
def test_a_dropped_checkpoint_is_never_needed_later(
    count: int, density: int, later: int, sparser: int
) -> None:
    before = {*kept(range(count), count - 1, density)}
    after = {*kept(range(count), count - 1 + later, max(1, density - sparser))}
    assert after <= before
