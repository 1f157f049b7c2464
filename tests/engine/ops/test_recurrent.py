"""RNN, GRU, LSTM: ONNX's cases, a table of configurations against ONNX Runtime and the formula, types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nncdbg.engine.ops.schema import complete
from nncdbg.errors import GraphError
from nncdbg.ir.records import TensorType
from tests.engine.ops.one_node import (
    OPSET,
    assert_same,
    by_formula,
    by_kernel,
    by_runtime,
    check_all,
    check_kernel,
    declared,
    normal,
)
from tests.engine.ops.onnx_cases import NodeCase, cases_of, check, uncovered

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
ACTIVATIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
OUTPUTS = {"RNN": 2, "GRU": 2, "LSTM": 3}
TIME, BATCH, FEATURES, HIDDEN = 5, 3, 4, 2

every = pytest.mark.parametrize("name", list(GATES))


@pytest.mark.parametrize("case", cases_of(GATES), ids=str)
def test_onnx_case(case: NodeCase) -> None:
    check(case)


def test_every_op_has_a_case() -> None:
    assert uncovered(GATES) == []


def inputs_of(
    name: str,
    *,
    directions: int = 1,
    bias: bool = True,
    lengths: list[int] | None = None,
    initial: bool = False,
    peepholes: bool = False,
    dtype: str = "f32",
    batch_first: bool = False,
) -> list[Any]:
    rows = GATES[name] * HIDDEN
    steps = (BATCH, TIME) if batch_first else (TIME, BATCH)
    state = (BATCH, directions, HIDDEN) if batch_first else (directions, BATCH, HIDDEN)
    inputs = [
        normal(1, *steps, FEATURES, dtype=dtype),
        normal(2, directions, rows, FEATURES, dtype=dtype),
        normal(3, directions, rows, HIDDEN, dtype=dtype),
        normal(4, directions, 2 * rows, dtype=dtype) if bias else None,
        None if lengths is None else np.array(lengths, np.int32),
        normal(5, *state, dtype=dtype) if initial else None,
    ]
    if name == "LSTM":
        inputs.append(normal(6, *state, dtype=dtype) if initial else None)
        inputs.append(normal(7, directions, 3 * HIDDEN, dtype=dtype) if peepholes else None)
    return inputs


CONFIGURATIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"bias": False}, {}),
    ({"initial": True}, {}),
    ({"initial": True}, {"direction": "reverse"}),
    ({"initial": True, "directions": 2}, {"direction": "bidirectional"}),
    ({"lengths": [5, 2, 1]}, {}),
    ({"lengths": [3, 5, 1], "initial": True}, {"direction": "reverse"}),
    ({"lengths": [3, 5, 1], "initial": True, "directions": 2}, {"direction": "bidirectional"}),
    ({"initial": True}, {"clip": 0.5}),
]


@every
@pytest.mark.parametrize(("given", "attributes"), CONFIGURATIONS)
def test_agrees_with_runtime_and_formula(
    name: str, given: dict[str, Any], attributes: dict[str, Any]
) -> None:
    attributes = {**attributes, "hidden_size": HIDDEN}
    check_all(name, inputs_of(name, **given), attributes, count=OUTPUTS[name])


@pytest.mark.parametrize(("given", "attributes"), CONFIGURATIONS)
@pytest.mark.parametrize("option", [{"peepholes": True}, {"input_forget": 1}])
def test_lstm_variants_agree(
    given: dict[str, Any], attributes: dict[str, Any], option: dict[str, Any]
) -> None:
    peepholes = bool(option.get("peepholes"))
    attributes = {**attributes, "hidden_size": HIDDEN, "input_forget": option.get("input_forget", 0)}
    check_all("LSTM", inputs_of("LSTM", **given, peepholes=peepholes), attributes, count=3)


@pytest.mark.parametrize(("given", "attributes"), CONFIGURATIONS)
def test_gru_with_linear_before_reset_agrees(given: dict[str, Any], attributes: dict[str, Any]) -> None:
    attributes = {**attributes, "hidden_size": HIDDEN, "linear_before_reset": 1}
    check_all("GRU", inputs_of("GRU", **given), attributes, count=2)


NAMED: list[tuple[str, list[float], list[float]]] = [
    ("Affine", [0.7], [0.2]),
    ("Relu", [], []),
    ("LeakyRelu", [0.3], []),
    ("ThresholdedRelu", [0.4], []),
    ("ScaledTanh", [0.8], [0.9]),
    ("HardSigmoid", [0.25], [0.4]),
    ("Elu", [0.6], []),
    ("Softsign", [], []),
    ("Softplus", [], []),
    ("Sigmoid", [], []),
]


@pytest.mark.parametrize(("activation", "alpha", "beta"), NAMED)
def test_every_activation_agrees(activation: str, alpha: list[float], beta: list[float]) -> None:
    attributes: dict[str, Any] = {"hidden_size": HIDDEN, "activations": [activation]}
    if alpha:
        attributes["activation_alpha"] = alpha
    if beta:
        attributes["activation_beta"] = beta
    check_all("RNN", inputs_of("RNN"), attributes, count=2)


def test_activations_are_named_in_any_case() -> None:
    lower, upper = (
        by_kernel("RNN", inputs_of("RNN"), {"hidden_size": HIDDEN, "activations": [name]})
        for name in ("scaledtanh", "ScaledTanh")
    )
    assert_same(lower, upper, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_activations_of_both_directions_take_their_parameters_in_order(name: str) -> None:
    names = ["HardSigmoid", "LeakyRelu", "Tanh"][: ACTIVATIONS[name]]
    attributes = {
        "hidden_size": HIDDEN,
        "direction": "bidirectional",
        "activations": [*names, "Sigmoid", *names[1:]],
        "activation_alpha": [0.3, 0.1, 0.2],
        "activation_beta": [0.45],
    }
    inputs = inputs_of(name, directions=2)
    check_kernel(name, inputs, attributes, count=OUTPUTS[name])
    assert_same(
        by_formula(name, inputs, attributes), by_kernel(name, inputs, attributes, count=OUTPUTS[name])
    )
    forward = {
        **attributes,
        "direction": "forward",
        "activations": names,
        "activation_alpha": [0.3, 0.1],
    }
    half = [None if a is None else a[:1] if a.ndim in (2, 3) and i else a for i, a in enumerate(inputs)]
    (both, *_), (first, *_) = (
        by_kernel(name, given, chosen) for given, chosen in ((inputs, attributes), (half, forward))
    )
    np.testing.assert_allclose(both[:, :1], first, rtol=1e-5)
    assert_same(by_runtime(name, half, forward), [first])


@every
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_batch_first_equals_the_transposed_default_layout(name: str, direction: str) -> None:
    directions = 2 if direction == "bidirectional" else 1
    attributes = {"hidden_size": HIDDEN, "direction": direction}
    given: dict[str, Any] = {"directions": directions, "initial": True, "lengths": [5, 2, 4]}
    first = inputs_of(name, **given, batch_first=True)
    swapped = [a.swapaxes(0, 1).copy() if i in (0, 5, 6) else a for i, a in enumerate(first)]
    count = OUTPUTS[name]
    results = check_kernel(name, first, {**attributes, "layout": 1}, count=count)
    plain = by_kernel(name, swapped, attributes, count=count)
    assert_same(results, [plain[0].transpose(2, 0, 1, 3), *(a.swapaxes(0, 1) for a in plain[1:])])
    assert_same(by_formula(name, first, {**attributes, "layout": 1}), results)


@every
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_other_floats(name: str, dtype: str) -> None:
    inputs = inputs_of(name, dtype=dtype, initial=True)
    results = check_kernel(name, inputs, {"hidden_size": HIDDEN}, count=OUTPUTS[name])
    wide = [None if a is None else a.astype(np.float64) for a in inputs]
    exact = by_kernel(name, wide, {"hidden_size": HIDDEN}, count=OUTPUTS[name])
    step = {"f16": 2**-10, "bf16": 2**-7, "f64": 1e-12}[dtype]
    for result, truth in zip(results, exact, strict=True):
        np.testing.assert_allclose(result.astype(np.float64), truth, rtol=step, atol=1e-5)
    assert_same(by_formula(name, inputs, {"hidden_size": HIDDEN}), results, rtol=2 * step, atol=step)


@every
def test_nan_propagates_to_later_times(name: str) -> None:
    inputs = inputs_of(name)
    inputs[0][2, 1, 0] = np.nan
    whole, last = by_kernel(name, inputs, {"hidden_size": HIDDEN}, count=2)
    assert np.isnan(whole).all(axis=(1, 3)).tolist() == [[False, time >= 2, False] for time in range(TIME)]
    assert np.isnan(last).all(axis=(0, 2)).tolist() == [False, True, False]


@every
def test_type_inference(name: str) -> None:
    infer = declared(name).infer
    assert infer is not None
    rows = GATES[name] * 8
    types = [TensorType("f32", shape) for shape in (("T", "N", 4), (2, rows, 4), (2, rows, 8))]
    attributes = complete(name, OPSET, {"direction": "bidirectional"})
    last = TensorType("f32", (2, "N", 8))
    assert list(infer(attributes, types)) == [
        TensorType("f32", ("T", 2, "N", 8)),
        *[last] * (OUTPUTS[name] - 1),
    ]


@every
@pytest.mark.parametrize(
    ("x", "weight", "recurrent", "fact"),
    [
        ((5, 3), None, None, "X has 2 axes, expected 3"),
        ((5, 3, 4), (1, "rows", 7), (1, "rows", 8), "W needs 7 features, but X has 4"),
        ((5, 3, 4), (2, "rows", 4), (1, "rows", 8), "W has 2 directions, expected 1"),
        ((5, 3, 4), (1, 5, 4), (1, "rows", 8), "W has 5 rows"),
        ((5, 3, 4), (1, "rows", 4), (1, "rows", 9), "hidden_size is 8, R has 9"),
    ],
)
def test_incompatible_types_are_refused(name: str, x: Any, weight: Any, recurrent: Any, fact: str) -> None:
    infer = declared(name).infer
    assert infer is not None
    rows = GATES[name] * 8
    shapes = [
        shape and tuple(rows if size == "rows" else size for size in shape)
        for shape in (x, weight, recurrent)
    ]
    types = [shape and TensorType("f32", shape) for shape in shapes]
    with pytest.raises(GraphError, match=fact):
        infer(complete(name, OPSET, {"hidden_size": 8}), types)


@every
def test_an_unknown_activation_is_refused(name: str) -> None:
    attributes = {"hidden_size": HIDDEN, "activations": ["Sinus"] * ACTIVATIONS[name]}
    with pytest.raises(GraphError, match="unknown activation 'Sinus'"):
        by_kernel(name, inputs_of(name), attributes)
    with pytest.raises(GraphError, match="got 4"):
        by_kernel(
            name, inputs_of(name), {"hidden_size": HIDDEN, "activations": ["Relu", "Tanh", "Elu", "Tanh"]}
        )
