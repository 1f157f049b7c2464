"""Formulas of ReduceMean, Sum, Mean, OneHot and others: kernel, formula and ONNX Runtime agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nncdbg.dtypes import NUMPY
from tests.engine.ops.one_node import assert_same, by_formula, by_kernel, check_all

GENERATOR = np.random.default_rng(5)


def f(*shape: int) -> Any:
    return GENERATOR.standard_normal(shape).astype(np.float32)


ROWS: list[tuple[str, int, tuple[Any, ...], dict[str, Any]]] = [
    ("ReduceMean", 18, (f(3, 4, 5), np.array([0, -1])), {"keepdims": 0}),
    ("ReduceMean", 18, (f(3, 4),), {}),
    ("ReduceMean", 18, (f(3, 4),), {"noop_with_empty_axes": 1}),
    ("ReduceMean", 13, (f(3, 4),), {"axes": [1]}),
    ("Sum", 13, (f(3, 1), f(4), f(1, 1)), {}),
    ("Sum", 13, (f(3),), {}),
    ("Mean", 13, (f(3, 1), f(4), f(1, 1)), {}),
    ("Mean", 13, (f(3),), {}),
]


@pytest.mark.parametrize(("name", "version", "inputs", "attributes"), ROWS, ids=[r[0] for r in ROWS])
def test_formula(name: str, version: int, inputs: Any, attributes: dict[str, Any]) -> None:
    pytest.importorskip("onnxruntime")
    check_all(name, inputs, attributes, version=version)
    assert_same(
        by_formula(name, inputs, attributes, version=version),
        by_kernel(name, inputs, attributes, version=version),
    )


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i32"])
@pytest.mark.parametrize("name", ["ReduceMean", "Mean", "Sum"])
def test_formula_of_other_types(name: str, dtype: str) -> None:
    x = np.array([[-3, 0, 1], [4, 5, 7]]).astype(NUMPY[dtype])
    inputs = (x, np.array([1])) if name == "ReduceMean" else (x, x[:1], x)
    if dtype == "i32" and name != "ReduceMean":
        pytest.skip("ONNX defines it for floats only")
    assert_same(by_formula(name, inputs, {}), by_kernel(name, inputs, {}))


@pytest.mark.parametrize("name", ["ReduceMean", "Mean", "Sum"])
def test_formula_keeps_nan(name: str) -> None:
    x = np.array([1, np.nan], np.float32)
    (y,) = by_formula(name, (x,), {})
    assert np.isnan(y).any()
