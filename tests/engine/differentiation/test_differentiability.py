"""How the gradient of each op is computed, and why some ops have none."""

from __future__ import annotations

import pytest

from nncdbg.engine.differentiation.differentiability import differentiability, takes_and_gives_floats
from nncdbg.engine.ops.schema import schema_names

KINDS = {
    "Conv": "rule",
    "MaxPool": "rule",
    "Softmax": "rule",
    "AveragePool": "formula",
    "LpPool": "formula",
    "GridSample": "formula",
    "CenterCropPad": "formula",
    "BatchNormalization": "formula",
    "Attention": "formula",
    "Floor": "zero",
    "Hardmax": "zero",
    "QLinearMatMul": "zero",
    "RoiAlign": "formula",
    "DeformConv": "formula",
    "MaxRoiPool": "formula",
    "LinearAttention": "formula",
    "Crop": "formula",
    "ai.onnx.ml.SVMClassifier": "formula",
    "Loop": "blocks",
    "Scan": "blocks",
    "MemcpyFromHost": "none",
}


@pytest.mark.parametrize("name", KINDS)
def test_kind_of_gradient(name: str) -> None:
    assert differentiability(name).kind == KINDS[name]


def test_an_op_without_a_gradient_names_the_reason() -> None:
    assert differentiability("BitCast").description == "none: it reinterprets the bits of floats"


def test_every_float_op_has_a_gradient_or_a_reason() -> None:
    found = {name: differentiability(name) for name in schema_names(["", "ai.onnx.ml"])}
    floats = {name: each for name, each in found.items() if takes_and_gives_floats(name)}
    assert len(floats) >= 170
    assert [name for name, each in floats.items() if each.kind == "untried"] == []
    without = {name for name, each in floats.items() if each.kind == "none"}
    assert without == {
        "BitCast",
        "MemcpyFromHost",
        "MemcpyToHost",
        "ai.onnx.ml.TreeEnsemble",
        "ai.onnx.ml.TreeEnsembleClassifier",
        "ai.onnx.ml.TreeEnsembleRegressor",
    }
    assert all(floats[name].reason for name in without)


@pytest.mark.parametrize(("name", "floats"), [("Conv", True), ("ArgMax", False), ("Constant", False)])
def test_ops_with_float_operands_and_results(name: str, floats: bool) -> None:
    assert takes_and_gives_floats(name) == floats
