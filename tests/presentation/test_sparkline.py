"""Bars of a series of numbers over steps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nncdbg.presentation.sparkline import BARS, NOT_FINITE, sparkline

TABLE = """
0 1 2 3 4 5 6 7   | 0 1 2 3 4 5 6 7     | 8 | ▁▂▃▄▅▆▇█
0 1 2 3           | 3 3 3 3             | 8 | ▁▁▁▁
0 1 2 3 4 5 6 7   | 1 1 1 1 9 9 9 9     | 4 | ▁▁██
0 1 2 3           | 0 nan inf 1         | 4 | ▁××█
0 1 2 3 4 5 6 99  | 0 0 0 0 0 0 0 5     | 4 | ▁▁▁█
0 2 4 6           | 0 1 2 3             | 7 | ▁▁▃▃▆▆█
0 1               | -1.7e308 1.7e308    | 2 | ▁█
5                 | 2                   | 8 | ▁
                  |                     | 8 |
"""


@pytest.mark.parametrize("row", TABLE.strip("\n").split("\n"))
def test_the_bars_of_a_series(row: str) -> None:
    steps, numbers, width, bars = row.split("|")
    found = sparkline([*map(int, steps.split())], [*map(float, numbers.split())], int(width))
    assert found == bars[1:]


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.floats()), unique_by=lambda pair: pair[0], max_size=60),
    st.integers(1, 40),
)
def test_bars_are_as_many_as_wanted_and_reach_from_the_lowest_to_the_highest(
    pairs: list[tuple[int, float]], width: int
) -> None:
    pairs.sort()
    bars = sparkline([step for step, _ in pairs], [number for _, number in pairs], width)
    assert len(bars) <= width
    assert {*bars} <= {*BARS, NOT_FINITE}
    if any(math.isfinite(number) for _, number in pairs):
        assert BARS[0] in bars
        distinct = {*bars} - {NOT_FINITE}
        assert len(distinct) == 1 or BARS[-1] in bars
