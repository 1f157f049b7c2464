"""Gradients of onnxruntime's float ops, through their formulas, against finite differences in f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.engine.differentiation.gradients import check

GENERATOR = np.random.default_rng(43)


def r(*shape: int) -> Any:
    return GENERATOR.standard_normal(shape)


ROWS: list[tuple[str, dict[str, Any]]] = [
    ("Gelu(%x)", {"x": r(2, 3)}),
    ("BiasGelu(%x, %b)", {"x": r(2, 3), "b": r(3)}),
    ("FastGelu(%x, %b)", {"x": r(2, 3), "b": r(3)}),
    ("QuickGelu(%x)", {"x": r(2, 3)}),
    ("FusedMatMul(%x, %b, transA=1, alpha=0.5)", {"x": r(4, 3), "b": r(4, 2)}),
    ('FusedGemm(%x, %b, %c, activation="Tanh")', {"x": r(2, 3), "b": r(3, 4), "c": r(4)}),
    ("SkipLayerNormalization(%x, %b, %c)", {"x": r(2, 4), "b": r(2, 4), "c": r(4)}),
    ("SkipSimplifiedLayerNormalization(%x, %b, %c)", {"x": r(2, 4), "b": r(2, 4), "c": r(4)}),
    ("Attention(%x, %b, %c, num_heads=2)", {"x": r(1, 3, 4), "b": r(4, 12), "c": r(12)}),
    ("MultiHeadAttention(%x, %b, %c, num_heads=2)", {"x": r(1, 2, 4), "b": r(1, 3, 4), "c": r(1, 3, 4)}),
]


@pytest.mark.parametrize(("call", "inputs"), ROWS, ids=[call.split("(")[0] for call, _ in ROWS])
def test_gradient_goes_through_the_formula(call: str, inputs: dict[str, Any]) -> None:
    lines = [f"%y = com.microsoft.{call}", "%bent = Tanh(%y)", "%loss = ReduceSum(%bent, keepdims=0)"]
    check(lines, inputs, list(inputs))
