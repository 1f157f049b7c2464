"""ONNX's operators on torch: the node cases of ONNX, and a model as a second opinion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="needs torch")

import nncdbg
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.backends.torch import Torch
from nncdbg.engine.backends.torch_onnx import mapped
from nncdbg.errors import RunError, UnsupportedOp
from tests.engine.backends.calls import call_of, results_of
from tests.engine.ops.onnx_cases import NodeCase, all_cases, assert_close


@cache
def backend() -> Any:
    return Torch()


def by_op() -> list[Any]:
    cases = sorted((case for case in all_cases() if case.op in mapped()), key=lambda case: case.op)
    return [pytest.param(list(group), id=op) for op, group in groupby(cases, key=lambda case: case.op)]


def placed(inputs: Sequence[Any]) -> list[Any] | None:
    """Return operands as tensors; None for an element type that torch lacks."""
    try:
        return [*map(backend().to_device, inputs)]
    except RunError:
        return None


ROUGH = {"float16": 1e-2}
"""Relative tolerances: torch computes attention in f32, and rounds the result."""


def run(case: NodeCase) -> bool:
    """Check one case; return False if torch has no kernel for its attributes or dtypes."""
    bound, operands = call_of(case), placed(case.inputs)
    if operands is None:
        return False
    try:
        results = results_of(bound, backend().bind(bound).run(*operands))
    except UnsupportedOp:
        return False
    for result, expected in zip(results, case.outputs, strict=False):
        found = np.asarray(backend().to_host(result))
        assert found.dtype == expected.dtype
        assert_close(found, expected, max(case.rtol, ROUGH.get(expected.dtype.name, 0)), case.atol)
    return True


SHARES = {"Cast": 8, "CastLike": 8, "Attention": 4}
"""One of how many cases must run on torch.

Most cases of casts have element types of 4 or 8 bits, those of attention a cache or several results.
"""


@pytest.mark.parametrize("group", by_op())
def test_the_cases_of_a_mapped_operator_pass(group: list[NodeCase]) -> None:
    passed = sum([run(case) for case in group])
    assert passed >= len(group) / SHARES.get(group[0].op, 3)


def permitted(case: NodeCase, positions: list[int], dtype: str) -> bool:
    """Return whether ONNX permits operands of a dtype at these positions."""
    schema = onnx.defs.get_schema(case.op, case.version)
    kinds = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    name = {"float16": "float16", "float32": "float", "float64": "double"}.get(dtype, dtype)
    formal = [schema.inputs[min(position, len(schema.inputs) - 1)].type_str for position in positions]
    return all(f"tensor({name})" in kinds.get(each, [each]) for each in formal)


def cast_inputs(case: NodeCase, dtype: str) -> tuple[Any, ...] | None:
    """Return the inputs of a case with those of the first one's dtype cast; None if ONNX forbids it."""
    first = next((each for each in case.inputs if isinstance(each, np.ndarray)), None)
    if first is None or first.dtype.kind in "OUS":
        return None
    positions = [
        position
        for position, each in enumerate(case.inputs)
        if isinstance(each, np.ndarray) and each.dtype == first.dtype
    ]
    if not permitted(case, positions, dtype):
        return None
    return tuple(
        each.astype(dtype) if position in positions else each for position, each in enumerate(case.inputs)
    )


DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint32", "bool")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_have_the_values_and_dtypes_of_numpy(dtype: str) -> None:
    """For each dtype that ONNX permits, torch gives what NumPy gives, or has no kernel."""
    on_numpy, compared = NumPy(), 0
    for case in all_cases():
        inputs = cast_inputs(case, dtype) if case.op in mapped() else None
        operands = placed(inputs) if inputs is not None else None
        if inputs is None or operands is None:
            continue
        bound = call_of(replace(case, inputs=inputs))
        try:
            wanted = results_of(bound, on_numpy.bind(bound).run(*inputs))
            found = results_of(bound, backend().bind(bound).run(*operands))
        except UnsupportedOp:
            continue
        for one, other in zip(wanted, map(backend().to_host, found), strict=True):
            assert np.asarray(other).dtype == np.asarray(one).dtype, (case, dtype)
            assert_close(np.asarray(other), np.asarray(one), ROUGH.get(dtype, 1e-4), 1e-3)
            compared += 1
    assert compared > 20


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
