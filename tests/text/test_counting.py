"""Counts in messages: one element is worded as one."""

import numpy as np
import pytest

import nncdbg
from nncdbg.text.counting import counted, elements


@pytest.mark.parametrize(
    ("count", "form", "text"),
    [
        (0, "", "0 steps"),
        (1, "", "1 step"),
        (2, "", "2 steps"),
        (2000, "", "2000 steps"),
        (2000, ",", "2,000 steps"),
    ],
)
def test_noun_follows_the_count(count: int, form: str, text: str) -> None:
    assert counted(count, "step", form) == text


def test_a_single_element_is_not_counted() -> None:
    assert elements(3, 12, "%x") == "3 of 12 elements of %x are"
    assert elements(1, 1, "%x") == "%x is"
    assert elements(1, 1) == "the element is"


@pytest.mark.parametrize(
    ("data", "evidence"),
    [([np.nan], "input %x is NaN"), ([1, np.nan], "input %x has 1 NaN among 2 elements, the first at [1]")],
)
def test_cause_of_a_bad_input_of_one_element(data: list[float], evidence: str) -> None:
    x = np.asarray(data, np.float32)
    text = f"graph @main(%x: f32[{x.size}]) -> (%y) {{\n  %y = Neg(%x)\n  return %y\n}}\n"
    report = nncdbg.watch(nncdbg.parse(text), {"x": x})
    assert report.findings[0].evidence == evidence
