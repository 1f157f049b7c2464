"""Ops of the domain ai.onnx.ml run through `onnx.reference` and are marked as such."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nncdbg.engine.ops import lookup
from nncdbg.terminal.one_shot.ops import known
from tests.engine.ops.against_runtime import Row, by_nncdbg, by_runtime, compare, program_of

pytest.importorskip("onnxruntime")

X = np.random.default_rng(47).standard_normal((5, 3)).astype(np.float32)
TREE: dict[str, Any] = {
    "nodes_falsenodeids": [2, 0, 0],
    "nodes_featureids": [0, 0, 0],
    "nodes_hitrates": [1.0, 1.0, 1.0],
    "nodes_missing_value_tracks_true": [0, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_nodeids": [0, 1, 2],
    "nodes_treeids": [0, 0, 0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_values": [0.2, 0.0, 0.0],
}
CLASSES: dict[str, Any] = {
    "class_ids": [0, 1, 2, 0, 1, 2],
    "class_nodeids": [1, 1, 1, 2, 2, 2],
    "class_treeids": [0] * 6,
    "class_weights": [0.5, 0.3, 0.2, 0.1, 0.2, 0.7],
    "classlabels_strings": ["a", "b", "c"],
    "post_transform": "SOFTMAX",
}
TARGETS: dict[str, Any] = {
    "n_targets": 1,
    "target_ids": [0, 0],
    "target_nodeids": [1, 2],
    "target_treeids": [0, 0],
    "target_weights": [1.5, -2.5],
}
VECTORS: dict[str, Any] = {
    "kernel_type": "RBF",
    "kernel_params": [0.5, 0.0, 3.0],
    "coefficients": [1.0, -1.0],
    "support_vectors": [0.1, -0.2, 0.3, 0.4, 0.5, -0.6],
    "n_supports": 2,
    "rho": [0.1],
}
LINEAR: dict[str, Any] = {
    "coefficients": [0.1, -0.2, 0.3, 0.4, 0.5, -0.6, 0.7, -0.8, 0.9],
    "intercepts": [0.1, 0.2, 0.3],
    "classlabels_ints": [0, 1, 2],
    "post_transform": "SOFTMAX",
}


def row(op: str, *inputs: Any, outputs: int = 1, version: int = 1, **attributes: Any) -> Row:
    return Row(f"ai.onnx.ml.{op}", inputs, attributes, outputs, version=version)


ROWS = [
    row("Scaler", X, offset=[0.1, 0.2, 0.3], scale=[1.0, 2.0, 3.0]),
    row("Normalizer", X, norm="L2"),
    row("Binarizer", X, threshold=0.1),
    row("Imputer", X, imputed_value_floats=[7.0], replaced_value_float=float(X[0, 0])),
    row("LinearRegressor", X, coefficients=[1.0, 2.0, 3.0], intercepts=[0.5], targets=1),
    row("LinearClassifier", X, outputs=2, **LINEAR),
    row("ArrayFeatureExtractor", X, np.array([0, 2])),
    row("FeatureVectorizer", X, X[:, :2].copy(), inputdimensions=[3, 2]),
    row("OneHotEncoder", np.array([0, 2, 1]), cats_int64s=[0, 1, 2], zeros=1),
    row("LabelEncoder", np.array([0, 2]), keys_int64s=[0, 2], values_strings=["a", "c"], version=2),
    row("TreeEnsembleRegressor", X, **TREE, **TARGETS),
    row("TreeEnsembleClassifier", X, outputs=2, **TREE, **CLASSES),
    row("SVMRegressor", X, **VECTORS),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_op_runs_through_the_reference_and_agrees_with_onnxruntime(row: Row) -> None:
    op = lookup(row.op, row.version)
    assert op is not None
    assert op.reference
    assert known(row.op).reference
    compare(by_nncdbg(program_of(row), row), by_runtime(row), 1e-5, 1e-5)


def test_ops_over_maps_are_listed_as_not_runnable() -> None:
    for name in ("ZipMap", "CastMap"):
        assert known(f"ai.onnx.ml.{name}").support() == ["not runnable"]
