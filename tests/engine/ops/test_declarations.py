"""Each op declaration against its kernel, on one sample."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import nncdbg
from nncdbg.engine.diagnosis.explaining import cause_of
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.declaration import declared_together
from tests.engine.diagnosis.births import born, tensor
from tests.engine.ops import samples, test_influence
from tests.engine.ops.declarations import (
    check_causes,
    check_facts,
    check_formula,
    check_gradient,
    is_differentiable,
)
from tests.engine.ops.samples import Sample, by_entry, sample_of
from tests.presence import present

SAMPLES = [each[0] for each in by_entry(1).values()]
PAGE = Path(__file__).parents[3] / "docs" / "ADD_AN_OP.md"


def has_formula(sample: Sample) -> bool:
    return sample.op.formula is not None


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_results_agree_with_the_declaration(sample: Sample) -> None:
    check_facts(sample)


@pytest.mark.parametrize("sample", [*filter(has_formula, SAMPLES)], ids=str)
def test_formula_agrees_with_the_kernel(sample: Sample) -> None:
    check_formula(sample)


@pytest.mark.parametrize("sample", [*filter(is_differentiable, SAMPLES)], ids=str)
def test_gradient_agrees_with_finite_differences(sample: Sample) -> None:
    check_gradient(sample)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_each_nan_and_inf_has_a_cause(sample: Sample) -> None:
    check_causes(sample)


class Undo(Exception):
    """Leaves `declared_together` and so reverts the declarations of the page."""


def test_an_op_is_added_by_following_the_page() -> None:
    text = PAGE.read_text()
    names: dict[str, Any] = {}
    with suppress(Undo), declared_together() as added:
        for block in re.findall(r"```python\n(.*?)```", text, re.S):
            exec(block, names)
        (row,) = re.findall(r"```text\n(.*?),\n```", text, re.S)
        sample = sample_of(*eval(row, vars(samples)))
        assert [op.name for op in added] == ["nncdbg.Rsqrt"]
        assert lookup("nncdbg.Rsqrt", 1) is sample.op
        for check in (check_facts, check_formula, check_gradient, check_causes):
            check(sample)
        assert [*test_influence.disagreements(sample, places=8)] == []
        explains_and_runs()
        raise Undo
    assert lookup("nncdbg.Rsqrt", 1) is None


def explains_and_runs() -> None:
    assert cause_of(born("nncdbg.Rsqrt", tensor([4, 0]))).name == "division by zero"
    assert cause_of(born("nncdbg.Rsqrt", tensor([4, -1]))).evidence.startswith("1 of 2 elements of %a")
    program = nncdbg.parse(
        "opset 21\n\ngraph @main(%x: f32[2]) -> (%y) {\n  %y = nncdbg.Rsqrt(%x)\n  return %y\n}\n"
    )
    debugger = nncdbg.Debugger(program, {"x": tensor([4, 0.25])})
    assert debugger.run().reason == "end"
    assert present(debugger.outputs)["y"].tolist() == [0.5, 2.0]
    report = nncdbg.watch(program, {"x": tensor([4, 0])})
    assert "division by zero" in str(report)
