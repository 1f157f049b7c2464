"""Formulas of the scalers and models of ai.onnx.ml: their results and gradients against `onnx.reference`.

`onnx.reference` computes in f64 for an operand of f64, so that its differences are usable derivatives.  The
results in nncdbg are f32, as ONNX infers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import nncdbg
from nncdbg.ir.records import Graph, Node, Program, Value, type_of
from tests.engine.differentiation.node_gradients import with_loss
from tests.engine.ops.one_node import by_formula

GENERATOR = np.random.default_rng(29)
X = GENERATOR.standard_normal((5, 3))
MISSING = np.where(np.arange(15).reshape(5, 3) % 4 == 1, np.nan, X)
COEFFICIENTS = (0.5, -0.25, 0.75, 1.0, 0.125, -0.5, -0.75, 0.25, 0.375)
VECTORS = tuple(GENERATOR.standard_normal(15).astype(np.float32).tolist())
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")

LINEAR = {"coefficients": COEFFICIENTS, "intercepts": (0.1, 0.2, 0.3), "classlabels_ints": (4, 7, 9)}
TWO = {"coefficients": (0.125, 0.25, -0.125), "intercepts": (0.5,)}
MACHINE = {"kernel_type": "RBF", "kernel_params": (0.5, 0.25, 3.0)}
REGRESSOR = {"coefficients": (1.0, -0.5, 0.25, 2.0, -1.5), "support_vectors": VECTORS, "n_supports": 5}
CLASSIFIER: dict[str, Any] = {
    **MACHINE,
    "support_vectors": VECTORS,
    "vectors_per_class": (2, 2, 1),
    "coefficients": (1.0, -0.5, 0.25, 2.0, -1.5, 0.75, 0.5, -1.25, 0.375, 1.5),
    "rho": (0.25, -0.5, 0.125),
    "classlabels_ints": (3, 5, 8),
}
PAIR: dict[str, Any] = {
    **CLASSIFIER,
    "vectors_per_class": (3, 2),
    "coefficients": (1.0, -0.5, 0.25, 2.0, -1.5),
    "rho": (0.25,),
    "classlabels_ints": (3, 5),
}

# Where `onnx.reference` differs from onnxruntime, the rows are in reference_samples.py.
ROWS: list[tuple[str, dict[str, Any], tuple[Any, ...]]] = [
    ("Scaler", {"offset": (0.5, 0.25, -1.0), "scale": (1.0, 2.0, -3.0)}, (X,)),
    ("Scaler", {"offset": (0.5,), "scale": (2.0,)}, (X,)),
    ("Imputer", {"imputed_value_floats": (7.0,), "replaced_value_float": float("nan")}, (MISSING,)),
    *(("Normalizer", {"norm": norm}, (X,)) for norm in ("L1", "L2")),
    ("FeatureVectorizer", {"inputdimensions": (2, 4, 1)}, (X, X[:, :2] * 3, X[:, 0] * 2)),
    ("LinearRegressor", {"coefficients": COEFFICIENTS, "intercepts": (0.5, -1.0, 2.0), "targets": 3}, (X,)),
    *(("LinearClassifier", {**LINEAR, "post_transform": name}, (X,)) for name in TRANSFORMS),
    ("LinearClassifier", {**TWO, "classlabels_ints": (6,), "post_transform": "LOGISTIC"}, (X,)),
    *(
        ("SVMRegressor", {**MACHINE, **REGRESSOR, "kernel_type": kind, "rho": (0.25,)}, (X,))
        for kind in ("LINEAR", "POLY", "RBF", "SIGMOID")
    ),
    ("SVMRegressor", {"coefficients": (0.5, -1.0, 2.0), "rho": (0.25,)}, (X,)),
    *(("SVMClassifier", {**CLASSIFIER, "post_transform": name}, (X,)) for name in TRANSFORMS),
    *(("SVMClassifier", {**PAIR, "post_transform": name}, (X,)) for name in ("NONE", "LOGISTIC")),
    ("SVMClassifier", {**PAIR, "prob_a": (-1.0,), "prob_b": (0.125,)}, (X,)),
    ("SVMClassifier", {**LINEAR, "intercepts": None, "rho": (0.5, 0.0, 0.0), "kernel_type": "LINEAR"}, (X,)),
]

JUMPING = ("Imputer", {"imputed_value_floats": (7.0, 8.0, 9.0), "replaced_value_float": 1.0}, (np.round(X),))
"""A result that jumps after a small change of an operand."""


def given_of(attributes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if value is not None}


def by_reference(op: str, attributes: dict[str, Any], inputs: tuple[Any, ...]) -> list[Any]:
    names = [f"x{index}" for index in range(len(inputs))]
    outputs = ["y", "z"] if op.endswith("Classifier") else ["y"]
    node = helper.make_node(op, names, outputs, domain="ai.onnx.ml", **given_of(attributes))
    infos = [helper.make_tensor_value_info(name, 1, None) for name in (*names, *outputs)]
    graph = helper.make_graph([node], "model", infos[: len(names)], infos[len(names) :])
    evaluator = ReferenceEvaluator(graph, opsets={"": 21, "ai.onnx.ml": 3})
    return list(evaluator.run(None, dict(zip(names, inputs, strict=True))))


def identity(row: tuple[str, dict[str, Any], Any]) -> str:
    op, attributes, _ = row
    words = [attributes[key] for key in ("norm", "kernel_type", "post_transform") if key in attributes]
    return " ".join([op, *words])


@pytest.mark.parametrize("row", [*ROWS, JUMPING], ids=identity)
def test_the_formula_agrees_with_the_reference(row: tuple[str, dict[str, Any], tuple[Any, ...]]) -> None:
    op, attributes, inputs = row
    found = by_formula(f"ai.onnx.ml.{op}", inputs, given_of(attributes), version=1)
    wanted = by_reference(op, attributes, inputs)
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        if theirs.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        else:
            assert ours.tolist() == theirs.tolist()


def program_of(op: str, attributes: dict[str, Any], inputs: tuple[Any, ...], result: Any) -> Program:
    """A program of one statement with the weighted sum of its scores as the output `loss`."""
    names = tuple(f"x{index}" for index in range(len(inputs)))
    operands = tuple(Value(name, type_of(array)) for name, array in zip(names, inputs, strict=True))
    outputs = (Value("labels"), Value("y")) if op.endswith("Classifier") else (Value("y"),)
    node = Node(f"ai.onnx.ml.{op}", names, outputs, given_of(attributes))
    graph = Graph("main", operands, (Value("y"),), (node,), ())
    program = Program({"main": graph}, "main", opsets={"": 21, "ai.onnx.ml": 3})
    return with_loss(program, {"y": result.astype(np.float32)}, "loss")


@pytest.mark.parametrize("row", ROWS, ids=identity)
def test_the_gradient_agrees_with_differences_of_the_reference(
    row: tuple[str, dict[str, Any], tuple[Any, ...]],
) -> None:
    op, attributes, inputs = row
    scores = by_reference(op, attributes, inputs)[-1]
    # The reference has the scores of two classes in f32 even for f64.
    step, tolerance = (1e-6, 2e-6) if scores.dtype == np.float64 else (1e-2, 1e-4)
    debugger = nncdbg.Debugger(
        program_of(op, attributes, inputs, scores),
        inputs={f"x{index}": array for index, array in enumerate(inputs)},
    )
    assert debugger.run().reason == "end"
    weights = debugger.value("%y_weights")
    for index, x in enumerate(inputs):
        got = debugger.evaluate(f"grad(%loss, %x{index})")
        wanted = np.zeros(x.shape)
        for place in np.ndindex(x.shape):
            sides = []
            for sign in (1, -1):
                near = x.copy()
                near[place] += sign * step
                moved = (*inputs[:index], near, *inputs[index + 1 :])
                sides.append((by_reference(op, attributes, moved)[-1].astype(np.float64) * weights).sum())
            wanted[place] = (sides[0] - sides[1]) / (2 * step)
        assert got.dtype == x.dtype
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)
