"""Samples of every version of every op that runs through `onnx.reference`, or did.

onnxruntime gives the right results.  Where it has no kernel for a version, `twin` is another version with the
same meaning, or `expected` is the result that the specification gives.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nncdbg.dtypes import ONNX

_RANDOM = np.random.default_rng(47)


def f(*shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def floats(*numbers: Any) -> Any:
    return np.array(numbers, np.float32)


def integers(*numbers: Any) -> Any:
    return np.array(numbers, np.int64)


def texts(*words: Any) -> Any:
    return np.array(words, object)


def scalar(number: int) -> Any:
    return np.array(number, np.int64)


@dataclass(frozen=True)
class Sample:
    """A statement of an op in one version, and its results where onnxruntime does not give them."""

    op: str
    version: int
    inputs: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    expected: tuple[Any, ...] | None = None
    twin: Sample | None = None
    """The statement that onnxruntime runs instead."""

    def __str__(self) -> str:
        keys = [f"{key}={str(value)[:20]}" for key, value in self.attributes.items()]
        return " ".join([f"{self.op}-{self.version}", *keys])


ML = "ai.onnx.ml."
IMAGE = f(2, 3, 8, 8)
BOXES = floats([0, 0, 5, 5], [1.5, 2.0, 6.2, 7.7], [-1.0, 3.0, 9.0, 4.0], [2, 2, 2.3, 2.2])
BATCHES = integers(0, 1, 1, 0)
RECURRENT = (f(3, 2, 4), f(1, 9, 4), f(1, 9, 3))
LSTM = (f(3, 2, 4), f(1, 12, 4), f(1, 12, 3))
QKV = (f(2, 4, 3, 8), f(2, 2, 5, 8), f(2, 2, 5, 6))
MASK = np.tril(np.ones((3, 5), bool))


def sample(
    op: str, version: int, *inputs: Any, outputs: int = 1, expected: Any = None, **attributes: Any
) -> Sample:
    return Sample(op, version, inputs, attributes, outputs, expected)


def as_in(twin: str, version: int, row: Sample, *inputs: Any, **attributes: Any) -> Sample:
    """Return the sample with the right results of an op in another version."""
    other = Sample(
        twin, version, inputs or row.inputs, {**row.attributes, **attributes} or row.attributes, row.outputs
    )
    return replace(row, twin=other)


def _roi(version: int, **attributes: Any) -> Sample:
    return sample("RoiAlign", version, IMAGE, BOXES, BATCHES, output_height=2, output_width=3, **attributes)


X = f(5, 3)
TREE: dict[str, Any] = {
    "nodes_falsenodeids": [2, 0, 0, 4, 0, 0][:3],
    "nodes_featureids": [0, 0, 0],
    "nodes_missing_value_tracks_true": [0, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_nodeids": [0, 1, 2],
    "nodes_treeids": [0, 0, 0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_values": [0.2, 0.0, 0.0],
}
TWO: dict[str, Any] = {
    "nodes_falsenodeids": [2, 0, 4, 0, 0, 2, 0, 0],
    "nodes_featureids": [0, 0, 2, 0, 0, 1, 0, 0],
    "nodes_missing_value_tracks_true": [1, 0, 0, 0, 0, 0, 0, 0],
    "nodes_modes": ["BRANCH_LT", "LEAF", "BRANCH_GTE", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"],
    "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
    "nodes_truenodeids": [1, 0, 3, 0, 0, 1, 0, 0],
    "nodes_values": [0.2, 0, -0.3, 0, 0, 0.1, 0, 0],
}
XT = np.concatenate([X, floats([np.nan, 0.1, 0.4], [0.2, 0.1, -0.3])])
THREE: dict[str, Any] = {
    "class_ids": [0, 1, 2, 0, 1, 2, 1],
    "class_nodeids": [1, 1, 3, 4, 1, 2, 2],
    "class_treeids": [0, 0, 0, 0, 1, 1, 1],
    "class_weights": [0.5, 0.3, 0.2, 0.1, 0.2, 0.7, 0.25],
}
ONE: dict[str, Any] = {
    "class_ids": [0] * 5,
    "class_nodeids": [1, 3, 4, 1, 2],
    "class_treeids": [0, 0, 0, 1, 1],
}
TARGETS: dict[str, Any] = {
    "n_targets": 2,
    "target_ids": [0, 1, 0, 1, 0, 1],
    "target_nodeids": [1, 3, 4, 1, 2, 2],
    "target_treeids": [0, 0, 0, 1, 1, 1],
    "target_weights": [1.5, -2.5, 0.25, 0.75, 3.0, -1.0],
}
FULL: dict[str, Any] = {
    "n_targets": 2,
    "target_ids": [0, 1] * 5,
    "target_nodeids": [1, 1, 3, 3, 4, 4, 1, 1, 2, 2],
    "target_treeids": [0] * 6 + [1] * 4,
    "target_weights": [0.5, -0.5, 0.25, 0.3, 0.75, 0.1, -0.2, 0.2, 0.6, -0.1],
}
POSTS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")


def as_tensors(attributes: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Replace these attributes by their `*_as_tensor` forms of f64."""
    import onnx.numpy_helper

    return {
        (f"{key}_as_tensor" if key in keys else key): onnx.numpy_helper.from_array(
            np.array(value, np.float64)
        )
        if key in keys
        else value
        for key, value in attributes.items()
    }


def _trees() -> list[Sample]:
    rows = []
    for version in (1, 3):
        for post in POSTS:
            rows.append(
                sample(
                    f"{ML}TreeEnsembleClassifier",
                    version,
                    XT,
                    outputs=2,
                    **TWO,
                    **THREE,
                    classlabels_int64s=[3, 5, 7],
                    post_transform=post,
                )
            )
            if post != "PROBIT":
                rows.append(
                    sample(
                        f"{ML}TreeEnsembleClassifier",
                        version,
                        XT,
                        outputs=2,
                        **TWO,
                        **ONE,
                        class_weights=[0.5, 0.3, -0.7, 0.1, 0.2],
                        classlabels_strings=["no", "yes"],
                        post_transform=post,
                    )
                )
                rows.append(
                    sample(
                        f"{ML}TreeEnsembleClassifier",
                        version,
                        XT,
                        outputs=2,
                        **TWO,
                        **ONE,
                        class_weights=[0.5, 0.3, 0.7, 0.1, 0.2],
                        classlabels_int64s=[0, 1],
                        post_transform=post,
                    )
                )
            rows.append(
                sample(
                    f"{ML}TreeEnsembleRegressor",
                    version,
                    XT,
                    **TWO,
                    **FULL,
                    base_values=[0.5, -0.5],
                    post_transform=post,
                )
            )
        rows.append(
            sample(
                f"{ML}TreeEnsembleClassifier",
                version,
                XT.astype(np.float64),
                outputs=2,
                **TWO,
                **THREE,
                classlabels_strings=["a", "b", "c"],
                base_values=[0.5, 1.5, 0.25],
            )
        )
        rows.append(
            sample(
                f"{ML}TreeEnsembleClassifier",
                version,
                integers([0, 1, 2], [1, 0, 0]),
                outputs=2,
                **TWO,
                **THREE,
                classlabels_strings=["a", "b", "c"],
            )
        )
        for aggregate in ("SUM", "AVERAGE", "MIN", "MAX"):
            rows.append(
                sample(
                    f"{ML}TreeEnsembleRegressor", version, XT, **TWO, **TARGETS, aggregate_function=aggregate
                )
            )
        rows.append(
            sample(
                f"{ML}TreeEnsembleClassifier",
                version,
                XT,
                outputs=2,
                **TWO,
                class_ids=[0, 1, 0, 1, 0, 1],
                class_nodeids=[1, 1, 3, 4, 1, 2],
                class_treeids=[0, 0, 0, 0, 1, 1],
                class_weights=[0.5, 0.2, 0.3, 0.4, 0.1, 0.6],
                classlabels_int64s=[5, 6],
                expected=(
                    integers(5, 6, 6, 5, 6, 6, 6),
                    floats(
                        [0.6, 0.2], [0.3, 0.6], [0.5, 0.8], [0.4, 0.0], [0.0, 1.0], [0.5, 0.8], [0.3, 0.6]
                    ),
                ),
            )
        )
        for base in ([0.3],):
            for post in ("NONE", "LOGISTIC"):
                rows.append(
                    sample(
                        f"{ML}TreeEnsembleClassifier",
                        version,
                        XT,
                        outputs=2,
                        **TWO,
                        **ONE,
                        class_weights=[0.5, 0.3, -0.7, 0.1, 0.2],
                        classlabels_int64s=[0, 1],
                        base_values=base,
                        post_transform=post,
                    )
                )
            for post in ("NONE", "SOFTMAX"):
                rows.append(
                    sample(
                        f"{ML}TreeEnsembleClassifier",
                        version,
                        XT,
                        outputs=2,
                        **TWO,
                        **{**ONE, "class_ids": [1] * 5},
                        class_weights=[0.5, 0.3, -0.7, 0.1, 0.2],
                        classlabels_int64s=[4, 6],
                        post_transform=post,
                    )
                )
        for post in POSTS:
            rows.append(
                sample(
                    f"{ML}TreeEnsembleRegressor",
                    version,
                    XT,
                    **TWO,
                    n_targets=1,
                    target_ids=[0] * 5,
                    target_nodeids=[1, 3, 4, 1, 2],
                    target_treeids=[0, 0, 0, 1, 1],
                    target_weights=[0.5, 0.3, 0.1, 0.2, 0.15],
                    post_transform=post,
                )
            )
        if version > 1:
            rows.append(
                sample(
                    f"{ML}TreeEnsembleClassifier",
                    version,
                    XT.astype(np.float64),
                    outputs=2,
                    classlabels_int64s=[3, 5, 7],
                    **as_tensors(
                        {**TWO, **THREE, "base_values": [0.5, 0.25, 0.125]},
                        "nodes_values",
                        "class_weights",
                        "base_values",
                    ),
                )
            )
            rows.append(
                sample(
                    f"{ML}TreeEnsembleRegressor",
                    version,
                    XT.astype(np.float64),
                    **as_tensors(
                        {**TWO, **FULL, "base_values": [0.1, 0.2]},
                        "nodes_values",
                        "target_weights",
                        "base_values",
                    ),
                )
            )
    return rows


def _ensembles() -> list[Sample]:
    def modern(dtype: Any, x: Any, **attributes: Any) -> Sample:
        given: dict[str, Any] = {
            "n_targets": 2,
            "nodes_featureids": [0, 2, 1],
            "nodes_splits": _tensor(np.array([0.2, -0.3, 0.1], dtype)),
            "nodes_modes": _tensor(np.array([1, 2, 3], np.uint8)),
            "nodes_truenodeids": [0, 1, 3],
            "nodes_trueleafs": [1, 1, 1],
            "nodes_falsenodeids": [1, 2, 4],
            "nodes_falseleafs": [0, 1, 1],
            "nodes_missing_value_tracks_true": [1, 0, 0],
            "tree_roots": [0, 2],
            "leaf_targetids": [0, 1, 0, 1, 0],
            "leaf_weights": _tensor(np.array([0.5, -0.25, 0.75, 0.125, 0.3], dtype)),
        }
        return sample(f"{ML}TreeEnsemble", 5, x, **{**given, **attributes})

    rows = [modern(np.float32, XT, aggregate_function=kind) for kind in range(4)]
    rows += [modern(np.float32, XT, post_transform=kind) for kind in (0, 3, 4)]
    # The numbers of SOFTMAX and LOGISTIC in ONNX's text are swapped in onnxruntime.
    for kind, other in ((1, 2), (2, 1)):
        rows.append(
            as_in(f"{ML}TreeEnsemble", 5, modern(np.float32, XT, post_transform=kind), post_transform=other)
        )
    rows.append(modern(np.float64, XT.astype(np.float64)))
    rows.append(
        modern(
            np.float32,
            floats([1, 2, 3], [4, 1.5, 3], [np.nan, 2, 7]),
            nodes_modes=_tensor(np.array([6, 2, 6], np.uint8)),
            membership_values=_tensor(floats(1, 4, np.nan, 1.5, 9, np.nan)),
        )
    )
    return rows


def _linear() -> list[Sample]:
    rows = []
    w = [0.1, -0.2, 0.3, 0.4, 0.5, -0.6, 0.7, -0.8, 0.9]
    for post in POSTS:
        rows.append(
            sample(
                f"{ML}LinearClassifier",
                1,
                X,
                outputs=2,
                coefficients=w,
                intercepts=[0.1, 0.2, 0.3],
                classlabels_ints=[4, 6, 8],
                post_transform=post,
            )
        )
        if post != "PROBIT":
            rows.append(
                sample(
                    f"{ML}LinearClassifier",
                    1,
                    X,
                    outputs=2,
                    coefficients=w[:3],
                    intercepts=[0.1],
                    classlabels_strings=["n", "y"],
                    post_transform=post,
                )
            )
        rows.append(
            sample(
                f"{ML}LinearRegressor",
                1,
                X,
                coefficients=w[:6],
                intercepts=[0.1, 0.2],
                targets=2,
                post_transform=post,
            )
        )
    rows.append(
        sample(
            f"{ML}LinearClassifier",
            1,
            X[:, :2],
            outputs=2,
            coefficients=[*w, 1.0, 2.0, 3.0],
            intercepts=[0.1, 0.2, 0.3],
            classlabels_ints=[0, 1, 2],
            post_transform="SOFTMAX",
        )
    )
    rows.append(
        sample(
            f"{ML}LinearClassifier",
            1,
            integers([1, 2, 3], [4, 5, 6]),
            outputs=2,
            coefficients=w,
            intercepts=[0.1, 0.2, 0.3],
            classlabels_strings=["a", "b", "c"],
        )
    )
    rows.append(
        sample(
            f"{ML}LinearClassifier",
            1,
            X.astype(np.float64),
            outputs=2,
            coefficients=w[:6],
            intercepts=[0.1, 0.2],
            classlabels_strings=["a", "b"],
        )
    )
    rows.append(sample(f"{ML}LinearRegressor", 1, X, coefficients=w[:3]))
    rows.append(
        sample(f"{ML}LinearRegressor", 1, X[:, :2], coefficients=w[:6], intercepts=[0.1, 0.2], targets=2)
    )
    return rows


def _svm() -> list[Sample]:
    rows = []
    base: dict[str, Any] = {
        "support_vectors": [0.1, -0.2, 0.3, 0.4, 0.5, -0.6, 0.7, 0.2, -0.1, 0.3, 0.3, 0.5],
        "kernel_params": [0.5, 0.1, 3.0],
    }
    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        rows.append(
            sample(
                f"{ML}SVMRegressor",
                1,
                X,
                **base,
                kernel_type=kernel,
                coefficients=[1.0, -1.0, 0.5, 0.25],
                n_supports=4,
                rho=[0.1],
            )
        )
        rows += [
            sample(
                f"{ML}SVMRegressor",
                1,
                X,
                **base,
                kernel_type=kernel,
                coefficients=[1.0, -1.0, 0.5, 0.25],
                n_supports=4,
                rho=[0.1],
                post_transform=post,
            )
            for post in ("LOGISTIC", "PROBIT")
        ]
        for post in POSTS:
            rows.append(
                sample(
                    f"{ML}SVMClassifier",
                    1,
                    X,
                    outputs=2,
                    **base,
                    kernel_type=kernel,
                    coefficients=[1.0, -1.0, 0.5, 0.25, 0.3, -0.7, 0.9, -0.1],
                    vectors_per_class=[1, 2, 1],
                    rho=[0.1, 0.2, -0.3],
                    classlabels_ints=[3, 5, 7],
                    post_transform=post,
                )
            )
    rows.append(
        sample(
            f"{ML}SVMRegressor",
            1,
            X,
            **base,
            kernel_type="RBF",
            coefficients=[1.0, -1.0, 0.5, 0.25],
            n_supports=4,
            rho=[-0.1],
            one_class=1,
        )
    )
    rows.append(
        sample(
            f"{ML}SVMRegressor",
            1,
            X,
            kernel_type="LINEAR",
            coefficients=[1.0, -1.0, 0.5],
            rho=[0.1],
            expected=((X @ floats([1.0], [-1.0], [0.5]) + np.float32(0.1)),),
        )
    )
    for post in POSTS[:2]:
        rows.append(
            sample(
                f"{ML}SVMClassifier",
                1,
                X,
                outputs=2,
                **base,
                kernel_type="RBF",
                coefficients=[1.0, -1.0, 0.5, -0.25],
                vectors_per_class=[2, 2],
                rho=[0.1],
                classlabels_strings=["n", "y"],
                post_transform=post,
            )
        )
    for post in POSTS:
        rows.append(
            sample(
                f"{ML}SVMClassifier",
                1,
                X,
                outputs=2,
                **base,
                kernel_type="RBF",
                coefficients=[1.0, -1.0, 0.5, -0.25],
                vectors_per_class=[2, 2],
                rho=[0.1],
                classlabels_ints=[0, 1],
                prob_a=[-1.5],
                prob_b=[0.1],
                post_transform=post,
            )
        )
    rows.append(
        sample(
            f"{ML}SVMClassifier",
            1,
            X,
            outputs=2,
            **base,
            kernel_type="RBF",
            coefficients=[1.0, -1.0, 0.5, 0.25, 0.3, -0.7, 0.9, -0.1],
            vectors_per_class=[1, 2, 1],
            rho=[0.1, 0.2, -0.3],
            classlabels_strings=["a", "b", "c"],
            prob_a=[-1.5, -0.7, -1.0],
            prob_b=[0.1, 0.2, -0.1],
        )
    )
    return rows


def _features() -> list[Sample]:
    return [
        sample(f"{ML}ArrayFeatureExtractor", 1, X, integers(0, 2)),
        sample(f"{ML}ArrayFeatureExtractor", 1, X[0], integers(0, 2)),
        sample(f"{ML}ArrayFeatureExtractor", 1, X, integers([1, 2, 0])),
        sample(f"{ML}ArrayFeatureExtractor", 1, texts("a", "b", "c"), integers(2)),
        sample(f"{ML}Binarizer", 1, X, threshold=0.1),
        sample(f"{ML}Binarizer", 1, floats([0.5, 0.4, 0.6]), threshold=0.5),
        sample(f"{ML}FeatureVectorizer", 1, X, X[:, :2].copy(), inputdimensions=[3, 2]),
        sample(f"{ML}FeatureVectorizer", 1, X, X[:, :2].copy(), inputdimensions=[2, 4]),
        sample(f"{ML}FeatureVectorizer", 1, integers([1, 2], [3, 4]), inputdimensions=[2]),
        sample(
            f"{ML}Imputer",
            1,
            floats([1, np.nan, 3], [np.nan, 5, 6]),
            imputed_value_floats=[7.0, 8.0, 9.0],
            replaced_value_float=float("nan"),
        ),
        sample(
            f"{ML}Imputer",
            1,
            floats([1, 2, 3], [2, 5, 6]),
            imputed_value_floats=[7.0],
            replaced_value_float=2.0,
        ),
        sample(
            f"{ML}Imputer",
            1,
            integers([1, 2, 3], [2, 5, 6]),
            imputed_value_int64s=[7],
            replaced_value_int64=2,
        ),
        *(
            sample(f"{ML}Normalizer", 1, np.concatenate([X, np.zeros((1, 3), np.float32)]), norm=norm)
            for norm in ("MAX", "L1", "L2")
        ),
        sample(f"{ML}Normalizer", 1, floats([1, -8, 3], [-2, -4, -1], [0, 0, 0])),
        *(
            sample(f"{ML}Normalizer", 1, integers([1, -2, 3], [2, 5, -6]), norm=norm)
            for norm in ("MAX", "L1", "L2")
        ),
        sample(f"{ML}Normalizer", 1, X[0], norm="L2"),
        sample(f"{ML}OneHotEncoder", 1, integers(0, 2, 1, 9), cats_int64s=[0, 1, 2], zeros=1),
        sample(f"{ML}OneHotEncoder", 1, texts("a", "c"), cats_strings=["a", "b", "c"]),
        sample(f"{ML}OneHotEncoder", 1, integers([0, 2], [1, 9]), cats_int64s=[0, 1, 2]),
        sample(f"{ML}OneHotEncoder", 1, floats(0.0, 1.7), cats_int64s=[0, 1, 2]),
        sample(f"{ML}OneHotEncoder", 1, integers([[0, 2], [1, 9]]), cats_int64s=[0, 1, 2]),
        sample(f"{ML}Scaler", 1, X, offset=[0.1, 0.2, 0.3], scale=[1.0, 2.0, 3.0]),
        sample(f"{ML}Scaler", 1, X, offset=[0.5], scale=[2.0]),
        sample(f"{ML}Scaler", 1, integers([1, 2, 3]), offset=[0.5, 1.0, 0.0], scale=[2.0, 1.0, 3.0]),
        sample(f"{ML}LabelEncoder", 1, texts("b", "x", "a"), classes_strings=["a", "b", "c"]),
        sample(
            f"{ML}LabelEncoder", 1, texts("b", "x", "a"), classes_strings=["a", "b", "c"], default_int64=9
        ),
        sample(f"{ML}LabelEncoder", 1, integers(1, 5, 0), classes_strings=["a", "b", "c"]),
        sample(
            f"{ML}LabelEncoder", 1, integers(1, 5, 0), classes_strings=["a", "b", "c"], default_string="?"
        ),
        sample(f"{ML}LabelEncoder", 2, texts("b", "x"), keys_strings=["a", "b"], values_strings=["1", "2"]),
        sample(f"{ML}LabelEncoder", 2, texts("b", "x"), keys_strings=["a", "b"], values_int64s=[1, 2]),
        sample(
            f"{ML}LabelEncoder",
            2,
            texts("b", "x"),
            keys_strings=["a", "b"],
            values_floats=[1.5, 2.5],
            default_float=9.0,
        ),
        sample(
            f"{ML}LabelEncoder",
            2,
            integers([1, 2], [3, 0]),
            keys_int64s=[0, 3],
            values_strings=["zero", "three"],
        ),
        sample(f"{ML}LabelEncoder", 2, integers(1, 0, 3), keys_int64s=[0, 3], values_floats=[0.5, 3.5]),
        sample(f"{ML}LabelEncoder", 2, floats(1, np.nan, 3), keys_floats=[np.nan, 3.0], values_int64s=[7, 3]),
        sample(
            f"{ML}LabelEncoder",
            2,
            floats(1, np.nan, 3),
            keys_floats=[np.nan, 3.0],
            values_strings=["nan", "three"],
            default_string="d",
        ),
        sample(f"{ML}LabelEncoder", 2, integers(1, 0, 1), keys_int64s=[1, 1], values_int64s=[5, 6]),
        sample(
            f"{ML}LabelEncoder",
            4,
            texts("b", "x"),
            keys_strings=["a", "b"],
            values_int64s=[1, 2],
            default_int64=7,
        ),
        sample(
            f"{ML}LabelEncoder",
            4,
            integers(2, 9, 1),
            keys_tensor=_tensor(integers(1, 2)),
            values_tensor=_tensor(np.array([1.5, 2.5], np.float64)),
            default_tensor=_tensor(np.array([-1.0], np.float64)),
        ),
        sample(
            f"{ML}LabelEncoder",
            4,
            texts("a", "q"),
            keys_tensor=_tensor(texts("a", "b")),
            values_tensor=_tensor(np.array([1, 2], np.int16)),
            default_tensor=_tensor(np.array([-1], np.int16)),
        ),
        sample(
            f"{ML}LabelEncoder",
            4,
            np.array([2.0, np.nan]),
            keys_tensor=_tensor(np.array([np.nan, 2.0])),
            values_tensor=_tensor(np.array([1.0, 4.0])),
            default_tensor=_tensor(np.array([0.0])),
        ),
    ]


def _tensor(array: Any) -> Any:
    import onnx.numpy_helper

    return onnx.numpy_helper.from_array(array)


def _signal() -> list[Sample]:
    wave, window = f(1, 64, 1), np.hanning(16).astype(np.float32)
    rows = [
        sample("STFT", 17, wave, scalar(16), window, scalar(16)),
        sample("STFT", 17, wave, scalar(8), window),
        sample("STFT", 17, wave, scalar(8), window, onesided=0),
        sample("STFT", 17, wave, scalar(8), None, scalar(16)),
        sample("STFT", 17, wave[:, :, 0], scalar(16), window, scalar(16)),
        sample("STFT", 17, f(1, 32, 2), scalar(16), window, scalar(16), onesided=0),
        sample(
            "MelWeightMatrix",
            17,
            scalar(8),
            scalar(16),
            scalar(8192),
            np.array(0, np.float32),
            np.array(4096, np.float32),
        ),
        sample(
            "MelWeightMatrix",
            17,
            scalar(5),
            scalar(400),
            scalar(16000),
            np.array(20, np.float32),
            np.array(8000, np.float32),
            output_datatype=ONNX["f64"],
        ),
    ]
    for name in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        rows += [
            sample(name, 17, scalar(10)),
            sample(name, 17, scalar(9), periodic=0),
            sample(name, 17, scalar(4), output_datatype=ONNX["f64"]),
            sample(name, 17, scalar(1), periodic=0),
            sample(name, 17, scalar(1)),
        ]
    x = f(2, 6, 5, 1)
    rows += [
        sample("DFT", 17, x),
        sample("DFT", 17, x, axis=2),
        sample("DFT", 17, x, onesided=1),
        sample("DFT", 17, x, scalar(8)),
        sample("DFT", 17, f(2, 6, 5, 2), inverse=1),
        sample("DFT", 17, f(2, 6, 5, 2), axis=2),
        sample("DFT", 17, x, scalar(4), axis=1, onesided=1),
        sample("DFT", 20, x),
        sample("DFT", 20, x, None, scalar(1)),
        sample("DFT", 20, x, scalar(8), scalar(2), onesided=1),
        sample("DFT", 20, f(2, 6, 5, 2), None, scalar(-2), inverse=1),
        sample("DFT", 20, f(2, 6, 2), scalar(4)),
        sample("DFT", 17, x.astype(np.float64)),
    ]
    return rows


def _text() -> list[Sample]:
    words = texts("Monday", "", "tuesday", "Wednesday")
    # onnxruntime needs the locale en_US to change or ignore the case.
    kept: dict[tuple[str, int], Any] = {
        ("LOWER", 0): texts("", "tuesday", "wednesday"),
        ("LOWER", 1): texts("monday", "", "tuesday", "wednesday"),
        ("UPPER", 0): texts("", "TUESDAY", "WEDNESDAY"),
        ("UPPER", 1): texts("MONDAY", "", "TUESDAY", "WEDNESDAY"),
        ("NONE", 0): texts("", "tuesday", "Wednesday"),
        ("NONE", 1): None,
    }
    rows = []
    for (action, sensitive), result in kept.items():
        for row in (False, True):
            expected = None if result is None else (result.reshape(1, -1) if row else result,)
            rows.append(
                sample(
                    "StringNormalizer",
                    10,
                    words.reshape(1, 4) if row else words,
                    case_change_action=action,
                    is_case_sensitive=sensitive,
                    stopwords=["monday"],
                    expected=expected,
                )
            )
    rows += [
        sample("StringNormalizer", 10, words, is_case_sensitive=1, stopwords=[*words.tolist()]),
        sample("StringNormalizer", 10, texts("Monday to day", "to"), stopwords=["to"], is_case_sensitive=1),
        sample("StringConcat", 20, texts(["a", "b"], ["c", ""]), texts("x", "y")),
        sample("StringConcat", 20, texts(["a", "b"], ["c", ""]), np.array("s", object)),
        sample("StringSplit", 20, texts("a b c", "", " d  e "), outputs=2),
        sample("StringSplit", 20, texts("a,b,c", "x", ",,"), delimiter=",", outputs=2),
        sample("StringSplit", 20, texts("a,b,c", "x"), delimiter=",", maxsplit=1, outputs=2),
        sample("StringSplit", 20, texts("a b  c", "x"), maxsplit=1, outputs=2),
        sample("StringSplit", 20, texts(["aXXb", "XX"], ["", "c"]), delimiter="XX", outputs=2),
        sample(
            "RegexFullMatch", 20, texts("www.google.com", "abc", "www.x.comx"), pattern=r"www\.[\w.-]+\.com"
        ),
        sample("RegexFullMatch", 20, texts(["a1", "b"]), pattern="[a-z][0-9]"),
    ]
    grams: dict[str, Any] = {
        "min_gram_length": 2,
        "max_gram_length": 2,
        "max_skip_count": 0,
        "ngram_counts": [0, 4],
        "ngram_indexes": [0, 1, 2, 3, 4, 5, 6],
        "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
    }
    line = np.array([1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8], np.int32)
    for mode in ("TF", "IDF", "TFIDF"):
        rows.append(sample("TfIdfVectorizer", 9, line, mode=mode, weights=[0.5, 1, 2, 3, 4, 5, 6], **grams))
        rows.append(sample("TfIdfVectorizer", 9, line.reshape(2, 6), mode=mode, **grams))
        rows.append(sample("TfIdfVectorizer", 9, line, mode=mode, **{**grams, "max_skip_count": 5}))
        rows.append(
            sample(
                "TfIdfVectorizer", 9, line, mode=mode, **{**grams, "max_skip_count": 5, "min_gram_length": 1}
            )
        )
    rows.append(
        sample(
            "TfIdfVectorizer",
            9,
            texts("a", "b", "c", "b"),
            mode="TF",
            min_gram_length=1,
            max_gram_length=1,
            max_skip_count=0,
            ngram_counts=[0],
            ngram_indexes=[1, 0],
            pool_strings=["b", "c"],
        )
    )
    return rows


def _attention() -> list[Sample]:
    rows = []
    q, k, v = QKV
    mask, past = f(3, 5), (f(2, 2, 3, 8), f(2, 2, 3, 6))
    empty = (past[0][:, :, :0], past[1][:, :, :0])
    for version in (23, 24, 25):
        rows += [
            sample("Attention", version, q, k, v),
            sample("Attention", version, q, k, v, scale=0.3, softcap=2.0),
            sample("Attention", version, q, k, v, is_causal=1),
            sample("Attention", version, q, k, v, mask),
            sample("Attention", version, q, k, v, MASK),
            sample("Attention", version, q, k, v, mask, *empty, outputs=3),
            sample("Attention", version, q, k, v, f(3, 8), *past, outputs=3),
            sample("Attention", version, q, k, v, None, *past, outputs=3, is_causal=1),
            sample("Attention", version, f(2, 3, 8), f(2, 5, 8), f(2, 5, 12), q_num_heads=2, kv_num_heads=2),
            sample("Attention", version, f(2, 3, 8), f(2, 5, 4), f(2, 5, 6), q_num_heads=2, kv_num_heads=1),
        ]
        for mode in range(4):
            given: dict[str, Any] = {"outputs": 4, "qk_matmul_output_mode": mode}
            rows.append(sample("Attention", version, q, k, v, mask, softcap=1.5, **given))
            # With a mask of bool, onnxruntime writes the lowest number for ONNX's -Inf.
            rows.append(sample("Attention", version, q, k, v, *((MASK,) if mode != 2 else ()), **given))
    banned = np.triu(np.ones((3, 5), bool)) & np.tril(np.ones((3, 5), bool))
    window = replace(
        sample("Attention", 25, q, k, v, left_window_size=0, right_window_size=0),
        twin=sample("Attention", 23, q, k, v, banned),
    )
    flex = replace(sample("ai.onnx.preview.FlexAttention", 1, *QKV), twin=sample("Attention", 23, *QKV))
    return [
        *rows,
        window,
        flex,
        sample("Attention", 24, q, k, v, None, None, None, integers(2, 5)),
        sample("Attention", 24, q, k, v, None, None, None, integers(3, 5), is_causal=1),
    ]


def _vision() -> list[Sample]:
    indices, x, rows = integers([[[5, 7], [13, 15]]]), floats([[[1, 2], [3, 4]]]), []
    two: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    # ONNX's own case has indices into the shape without `output_shape`; onnxruntime has them into that shape.
    spread = np.zeros((1, 1, 5, 5), np.float32)
    for row, column, value in ((1, 1, 1), (1, 3, 2), (3, 1, 3), (3, 3, 4)):
        spread[0, 0, row, column] = value
    for version in (9, 11, 22):
        rows += [
            sample("MaxUnpool", version, x, indices, **two),
            sample("MaxUnpool", version, x, indices, integers(1, 1, 5, 5), **two, expected=(spread,)),
            sample("MaxUnpool", version, x, indices, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 0, 1]),
            sample("MaxUnpool", version, x, integers([[[0, 2], [3, 5]]]), kernel_shape=[2, 2]),
        ]
    for mode in ("avg", "max"):
        for ratio in (0, 2):
            given: dict[str, Any] = {"mode": mode, "sampling_ratio": ratio}
            rows.append(_roi(10, **given))
            for more in ({}, {"coordinate_transformation_mode": "output_half_pixel", "spatial_scale": 0.5}):
                rows.append(_roi(16, **given, **more))
                rows.append(as_in("RoiAlign", 16, _roi(22, **given, **more)))
    corner = (floats([[[0, 0], [0, 1]]]), floats([0, 0, 1, 1]), integers(0))
    rows.append(sample("RoiAlign", 10, *corner, expected=(floats([[[0.25]]]),)))
    pixels = bytes(
        [
            66,
            77,
            58,
            *[0] * 7,
            54,
            0,
            0,
            0,
            40,
            0,
            0,
            0,
            1,
            0,
            0,
            0,
            1,
            0,
            0,
            0,
            1,
            0,
            24,
            *[0] * 25,
            1,
            2,
            3,
            0,
        ]
    )
    image = np.frombuffer(pixels, np.uint8)
    return [
        *rows,
        sample("ImageDecoder", 20, image, expected=(np.array([[[3, 2, 1]]], np.uint8),)),
        sample("ImageDecoder", 20, image, pixel_format="BGR", expected=(np.array([[[1, 2, 3]]], np.uint8),)),
        sample("Col2Im", 18, f(2, 12, 6), integers(3, 4), integers(2, 2)),
        sample("Col2Im", 18, f(1, 9, 4), integers(5, 5), integers(3, 3), strides=[2, 2]),
        sample("Col2Im", 18, f(1, 9, 9), integers(5, 5), integers(3, 3), dilations=[2, 2], pads=[1, 1, 1, 1]),
        sample("Col2Im", 18, f(1, 8, 8), integers(3, 3, 3), integers(2, 2, 2)),
        sample("AffineGrid", 20, f(2, 2, 3), integers(2, 3, 4, 5)),
        sample("AffineGrid", 20, f(2, 2, 3), integers(2, 3, 4, 5), align_corners=1),
        sample("AffineGrid", 20, f(2, 3, 4), integers(2, 3, 2, 4, 5)),
        sample("CenterCropPad", 18, f(5, 7), integers(3, 10)),
        sample("CenterCropPad", 18, f(5, 7, 3), integers(8), axes=[-1]),
        sample("CenterCropPad", 18, f(4, 7, 3), integers(7, 4), axes=[0, 1]),
        sample("DynamicQuantizeLinear", 11, f(4, 5), outputs=3),
        sample("DynamicQuantizeLinear", 11, np.abs(f(4, 5)), outputs=3),
        sample("DynamicQuantizeLinear", 11, np.zeros((2, 2), np.float32), outputs=3),
        sample("DynamicQuantizeLinear", 11, floats(-127.5, 127.5, 0.5, 1.5), outputs=3),
    ]


def first_versions() -> list[Sample]:
    """Samples of the ops in `nncdbg/engine/ops/early.py`."""
    x = f(2, 3, 4)
    scales, variance = f(3), np.abs(f(3)) + 1
    wave = sample("LpPool", 1, f(1, 2, 6, 6), kernel_shape=[3, 3], pads=[1, 1, 1, 1], p=3.0)
    batch = sample(
        "BatchNormalization", 1, x, scales, scales, scales, variance, consumed_inputs=[0] * 5, is_test=1
    )
    wide = np.repeat(np.repeat(floats([[[1, 2], [3, 4]]]), 2, 2), 3, 3)
    return [
        *(
            as_in(op, 6, sample(op, 1, x * 3))
            for op in ("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid")
        ),
        as_in("Selu", 6, sample("Selu", 1, x), alpha=1.6732, gamma=1.0507),
        as_in("HardSigmoid", 6, sample("HardSigmoid", 1, x * 3, alpha=0.3, beta=0.4)),
        as_in("PRelu", 7, sample("PRelu", 1, x, scales), x, scales[:, None]),
        as_in("PRelu", 7, sample("PRelu", 1, x, floats(0.3))),
        as_in("InstanceNormalization", 6, sample("InstanceNormalization", 1, x, scales, scales, epsilon=0.1)),
        replace(batch, twin=sample("BatchNormalization", 7, *batch.inputs)),
        as_in("GlobalLpPool", 2, sample("GlobalLpPool", 1, f(1, 2, 3, 3), p=3.0), p=3),
        as_in("LpPool", 2, wave, p=3),
        as_in("GRU", 7, sample("GRU", 1, *RECURRENT, hidden_size=3, outputs=2), direction="forward"),
        as_in("GRU", 7, sample("GRU", 3, *RECURRENT, hidden_size=3, linear_before_reset=1, outputs=2)),
        as_in("LSTM", 7, sample("LSTM", 1, *LSTM, hidden_size=3, direction="reverse", outputs=3)),
        as_in("RNN", 7, sample("RNN", 1, RECURRENT[0], f(1, 3, 4), f(1, 3, 3), hidden_size=3, outputs=2)),
        sample(
            "Upsample", 1, floats([[[1, 2], [3, 4]]]), height_scale=2.0, width_scale=3.0, expected=(wide,)
        ),
        sample("Tile", 1, floats([1, 2]), floats(2), floats(1), expected=(floats([1, 2, 1, 2]),)),
        sample("Cast", 1, floats(1.9, -1.9), to="INT32", expected=(np.array([1, -1], np.int32),)),
        sample("Cast", 1, integers(0, 2), to="BOOL", expected=(np.array([False, True]),)),
    ]


def _recent() -> list[Sample]:
    a, b = f(3, 4), f(3, 4)
    x, w, bias, past = f(2, 3, 5), f(3, 1, 4), f(3), f(2, 3, 3)
    whole = np.concatenate([past, x], 2)
    windows = np.stack([whole[:, :, i : i + 4] for i in range(5)], 2)
    mixed = np.einsum("bctk,ck->bct", windows, w[:, 0]) + bias[:, None]
    rows = [
        sample("TensorScatter", 24, f(2, 2, 6, 3), f(2, 2, 2, 3), integers(1, 3)),
        sample("TensorScatter", 24, f(2, 2, 6, 3), f(2, 2, 3, 3), integers(4, 5), mode="circular"),
        sample("TensorScatter", 24, f(2, 6, 3), f(2, 2, 3)),
        sample("TensorScatter", 24, f(2, 6, 3), f(2, 6, 2), integers(1, 0), axis=-1),
        sample("RotaryEmbedding", 23, f(2, 2, 3, 4), f(5, 2), f(5, 2), integers([0, 1, 2], [2, 3, 4])),
        sample(
            "RotaryEmbedding",
            23,
            f(2, 2, 3, 4),
            f(5, 2),
            f(5, 2),
            integers([0, 1, 2], [2, 3, 4]),
            interleaved=1,
        ),
        sample("RotaryEmbedding", 23, f(2, 3, 8), f(2, 3, 2), f(2, 3, 2), num_heads=2),
        sample("RotaryEmbedding", 23, f(2, 2, 3, 6), f(2, 3, 2), f(2, 3, 2), rotary_embedding_dim=4),
        sample("SwiGLU", 28, a, b, alpha=1.5, expected=(a / (1 + np.exp(-1.5 * a)) * b,)),
        sample("CausalConvWithState", 27, x, w, bias, past, outputs=2, expected=(mixed, whole[:, :, -3:])),
        sample(
            "CausalConvWithState",
            27,
            x,
            w,
            bias,
            past,
            activation="silu",
            outputs=2,
            expected=(mixed / (1 + np.exp(-mixed)), whole[:, :, -3:]),
        ),
    ]
    q, k, v, state = f(2, 4, 8), f(2, 4, 4), f(2, 4, 6), f(2, 1, 4, 6)
    decay, rate = -np.abs(f(2, 4, 1)), np.abs(f(2, 4, 1))
    for rule in ("linear", "gated", "delta", "gated_delta"):
        given = (decay if "gated" in rule else None, rate if "delta" in rule else None)
        rows.append(
            sample(
                "LinearAttention",
                27,
                q,
                k,
                v,
                state,
                *given,
                q_num_heads=2,
                kv_num_heads=1,
                scale=0.5,
                update_rule=rule,
                outputs=2,
                expected=_linear_attention(q, k, v, state, *given),
            )
        )
    return rows


def _linear_attention(q: Any, k: Any, v: Any, past: Any, decay: Any, rate: Any) -> tuple[Any, Any]:
    """The recurrence of the specification for two query heads over one key head, with the scale 0.5."""
    state, outputs = past[:, 0].copy(), []
    for t in range(q.shape[1]):
        if decay is not None:
            state *= np.exp(decay[:, t])[:, :, None]
        new = v[:, t]
        if rate is not None:
            new = rate[:, t] * (new - np.einsum("bkv,bk->bv", state, k[:, t]))
        state = state + k[:, t, :, None] * new[:, None]
        heads = q[:, t].reshape(-1, 2, 4)
        outputs.append(0.5 * np.einsum("bhk,bkv->bhv", heads, state).reshape(len(q), -1))
    return np.stack(outputs, 1), state[:, None]


def _optimizers() -> list[Sample]:
    rate, step = np.array(0.1, np.float32), np.array(3, np.int64)
    x, g, first, second = f(3), f(3), f(3), np.abs(f(3))
    penalized = np.float32(0.01) * x + g
    squares = second + penalized**2
    shrunk = np.float32(0.1) / np.float32(1 + 3 * 0.5)
    adagrad = (x - shrunk * penalized / (np.sqrt(squares) + np.float32(1e-5)), squares)
    v, h = 0.9 * first + (1 - 0.9) * penalized, 0.8 * second + (1 - 0.8) * penalized**2
    adjusted = 0.1 * np.sqrt(1 - 0.8**3) / (1 - 0.9**3)
    adam = (x - adjusted * v / (np.sqrt(h) + 1e-5), v, h)
    velocity = 0.9 * first + 0.5 * penalized
    given: dict[str, Any] = {"norm_coefficient": 0.01}
    training = "ai.onnx.preview.training."
    momentum = {"alpha": 0.9, "beta": 0.5, **given}
    return [
        sample(
            f"{training}Adagrad",
            1,
            rate,
            step,
            x,
            g,
            second,
            epsilon=1e-5,
            decay_factor=0.5,
            outputs=2,
            expected=adagrad,
            **given,
        ),
        sample(
            f"{training}Adam",
            1,
            rate,
            step,
            x,
            g,
            first,
            second,
            alpha=0.9,
            beta=0.8,
            epsilon=1e-5,
            outputs=3,
            expected=adam,
            **given,
        ),
        sample(
            f"{training}Momentum",
            1,
            rate,
            step,
            x,
            g,
            first,
            mode="standard",
            outputs=2,
            expected=(x - rate * velocity, velocity),
            **momentum,
        ),
        sample(
            f"{training}Momentum",
            1,
            rate,
            step,
            x,
            g,
            first,
            mode="nesterov",
            outputs=2,
            expected=(x - rate * (penalized + np.float32(0.9) * velocity), velocity),
            **momentum,
        ),
    ]


SAMPLES = [
    *_trees(),
    *_ensembles(),
    *_linear(),
    *_svm(),
    *_features(),
    *_signal(),
    *_text(),
    *_attention(),
    *_vision(),
    *first_versions(),
    *_recent(),
    *_optimizers(),
]
