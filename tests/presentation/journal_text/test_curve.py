"""A curve as a plot of several lines."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nncdbg.presentation.elements import Layout
from nncdbg.presentation.journal.run_log import curve

PLAIN = Layout(width=22, unicode=False)

RISING = """
3 |               ****
  |           *****
  |      ******
  |  *****
1 |***
  +-------------------
   0      step       4
"""

# A spike of one step among a hundred is in the plot, as is the NaN.
SPIKE = """
             x
 9 |        *
   |        *
   |        *
-1 |******************
   +------------------
    0      step     99
"""


def _shown(steps: Sequence[int], numbers: Sequence[float], height: int, branch: int = 0) -> str:
    lines = curve(np.array(steps), np.array(numbers, float), PLAIN, height=height, branch=branch)
    return "\n".join(line.plain.rstrip() for line in lines)


def test_numbers_that_rise_and_fall() -> None:
    assert _shown(range(5), [1, 1.5, 2, 2.5, 3], 5) == RISING.strip("\n")


def test_a_spike_and_a_nan_among_many_steps_are_visible() -> None:
    numbers = np.full(100, -1.0)
    numbers[50], numbers[55] = 9, np.nan
    assert _shown(range(100), numbers.tolist(), 4) == SPIKE.strip("\n")


def test_columns_before_the_branch_are_dim() -> None:
    lines = curve(np.arange(100), np.zeros(100), Layout(width=103), height=1, branch=50)
    dim = [span for span in lines[0].spans if span.style == "dim"]
    assert dim[-1].end - dim[-1].start == pytest.approx(50, abs=1)


@given(
    st.lists(st.floats(width=64), min_size=1, max_size=60),
    st.integers(1, 7),
    st.integers(10, 90),
    st.booleans(),
)
def test_no_line_is_wider_than_the_layout(
    numbers: list[float], height: int, width: int, unicode: bool
) -> None:
    layout = Layout(width=width, unicode=unicode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lines = curve(np.arange(len(numbers)) * 3, np.array(numbers), layout, height=height)
    finite = np.isfinite(numbers)
    dots = lines[:-2] if finite.all() else lines[1:-2]
    assert len(dots) == height
    labels = max(len(line.plain) for line in lines) if width < 24 else width
    assert all(line.cell_len <= max(width, labels) for line in lines)
    assert any(line.plain.strip(" ┤|0123456789.e+-na") for line in dots) == bool(finite.any())
