"""Differentiability of ops with a formula but no gradient rule."""

from __future__ import annotations

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.differentiation.differentiability import rule_gaps
from tests.presence import present

THROUGH = ["Elu", "LayerNormalization", "LSTM", "BatchNormalization", "Gelu", "AffineGrid", "Attention"]
GAPS = {
    "Conv": {"nncdbg.Windows"},
    "MaxPool": {"nncdbg.Windows"},
    "AveragePool": {"nncdbg.Windows"},
    "CenterCropPad": {"Pad"},
}


@pytest.mark.parametrize("name", THROUGH)
def test_these_formulas_are_differentiable(name: str) -> None:
    assert rule_gaps(name) == frozenset()


@pytest.mark.parametrize("name", GAPS)
def test_ops_without_a_rule_are_named(name: str) -> None:
    assert present(rule_gaps(name)) == GAPS[name]


@pytest.mark.parametrize("name", ["Det", "NonZero", "nncdbg.Windows"])
def test_rule_gaps_of_ops_without_a_formula_are_none(name: str) -> None:
    assert rule_gaps(name) is None


def test_the_run_fails_at_the_op_that_rule_gaps_lists() -> None:
    from onnx import helper
    from onnx.helper import make_tensor_value_info as info

    node = helper.make_node("Conv", ["x", "w"], ["y"])
    gradient = helper.make_node(
        "Gradient", ["x", "w"], ["d"], domain="ai.onnx.preview.training", xs=["x"], y="y", zs=["w"]
    )
    shapes = {"x": (1, 1, 4, 4), "w": (1, 1, 2, 2)}
    graph = helper.make_graph(
        [node, gradient],
        "main",
        [info(name, 1, shape) for name, shape in shapes.items()],
        [info("d", 1, shapes["x"])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.preview.training", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    given = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    stop = nncdbg.Debugger(nncdbg.load(model), given).run()
    assert stop.reason == "exception"
    assert "nncdbg.Windows" in str(stop.error)
