"""The models of other tests: each form computes the same outputs as the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.models.forms import inputs_of, optimized, quantized, quantized_dynamically, renamed, reordered
from tests.models.making import ARCHITECTURES

onnxruntime = pytest.importorskip("onnxruntime")


def outputs_of(model: Any, inputs: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: list[Any] = session.run(None, inputs)
    return found


@pytest.mark.parametrize("name", ["mlp", "token_classifier", "mixer"])
@pytest.mark.parametrize(
    ("form", "tolerance"),
    [(optimized, 1e-5), (renamed, 0), (reordered, 0), (quantized, 0.2), (quantized_dynamically, 0.2)],
)
def test_every_form_computes_the_outputs_of_the_model(
    name: str, form: Callable[[Any], Any], tolerance: float
) -> None:
    model = ARCHITECTURES[name]()
    inputs, before = inputs_of(model), model.SerializeToString()
    wanted, found = outputs_of(model, inputs), outputs_of(form(model), inputs)
    assert model.SerializeToString() == before
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance, rtol=tolerance)
