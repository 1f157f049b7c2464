"""How the gradient of each op is computed, and why some ops have none."""

from __future__ import annotations

import pytest

from nncdbg.engine.differentiation.differentiability import differentiability, takes_and_gives_floats

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
}


@pytest.mark.parametrize("name", KINDS)
def test_kind_of_gradient(name: str) -> None:
    assert differentiability(name).kind == KINDS[name]


def test_an_op_without_a_gradient_names_the_reason() -> None:
    assert differentiability("BitCast").description == "none: it reinterprets the bits of floats"


@pytest.mark.parametrize(("name", "floats"), [("Conv", True), ("ArgMax", False), ("Constant", False)])
def test_ops_with_float_operands_and_results(name: str, floats: bool) -> None:
    assert takes_and_gives_floats(name) == floats
