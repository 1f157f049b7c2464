"""ONNX's operators on torch: the node cases of ONNX, and a model as a second opinion."""

from __future__ import annotations

from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")

import nncdbg
from nncdbg.engine.backends.torch import Torch
from nncdbg.engine.backends.torch_onnx import mapped
from nncdbg.engine.errors import UnsupportedOp
from tests.engine.backends.calls import call_of, results_of
from tests.engine.ops.onnx_cases import NodeCase, all_cases, assert_close


@cache
def backend() -> Any:
    return Torch()


def by_op() -> list[Any]:
    cases = sorted((case for case in all_cases() if case.op in mapped()), key=lambda case: case.op)
    return [pytest.param(list(group), id=op) for op, group in groupby(cases, key=lambda case: case.op)]


def run(case: NodeCase) -> bool:
    """Check one case; return False if torch has no kernel for its attributes or dtypes."""
    bound = call_of(case)
    try:
        results = results_of(bound, backend().bind(bound).run(*map(backend().to_device, case.inputs)))
    except UnsupportedOp:
        return False
    for result, expected in zip(results, case.outputs, strict=False):
        found = np.asarray(backend().to_host(result))
        assert found.dtype == expected.dtype
        assert_close(found, expected, case.rtol, case.atol)
    return True


@pytest.mark.parametrize("group", by_op())
def test_the_cases_of_a_mapped_operator_pass(group: list[NodeCase]) -> None:
    assert sum([run(case) for case in group]) >= len(group) / 3


MODEL = """
graph @main(%x: f32[2,3,8,8], %w: f32[4,3,3,3], %v: f32[4,5]) -> (%y: f32[2,5]) {
  %h = Conv(%x, %w, pads=[1,1,1,1])
  %a = Relu(%h)
  %p = GlobalAveragePool(%a)
  %f = Flatten(%p)
  %g = Gemm(%f, %v)
  %y = Softmax(%g)
  return %y
}
"""


def test_diff_compares_a_model_with_torch() -> None:
    report = nncdbg.diff(nncdbg.parse(MODEL), backend_b="torch")
    assert report.status == "equal"
    assert report.matched["place"] == 6


def test_a_nan_is_found_on_torch() -> None:
    text = "graph @main(%x: f32[2]) -> (%y: f32[2]) {\n  %h = Log(%x)\n  %y = Relu(%h)\n  return %y\n}\n"
    report = nncdbg.watch(nncdbg.parse(text), {"x": np.array([-1, 1], np.float32)}, backend="torch")
    assert [finding.op for finding in report.findings if finding.first] == ["Log"]
