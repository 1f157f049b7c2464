"""Models and encoders of ``ai.onnx.ml`` for which `onnx.reference` has other results than onnxruntime.

Linear models, the regressor of support vectors and Normalizer run their formulas.
"""

from __future__ import annotations

from itertools import combinations
from types import ModuleType
from typing import Any

import numpy as np

from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops import feature_formula
from nncdbg.engine.ops.declaration import composite, op
from nncdbg.engine.ops.gradient import nothing
from nncdbg.engine.ops.onnx_messages import types_by_onnx
from nncdbg.engine.ops.post_transforms import labels_of, rows_of, transformed
from nncdbg.engine.ops.support_vector_formula import (
    check_one_decision,
    svm_classifier_formula,
    svm_regressor_formula,
)

for _name, _formula in (
    ("LinearClassifier", feature_formula.linear_classifier_formula),
    ("LinearRegressor", feature_formula.linear_regressor_formula),
    ("Normalizer", feature_formula.normalizer_formula),
    ("SVMRegressor", svm_regressor_formula),
):
    composite(f"ai.onnx.ml.{_name}", infer=types_by_onnx(f"ai.onnx.ml.{_name}", 1))(_formula)


@op(
    "ai.onnx.ml.SVMClassifier",
    infer=types_by_onnx("ai.onnx.ml.SVMClassifier", 1),
    formula=svm_classifier_formula,
)
def svm_classifier(xp: ModuleType, x: Any, **given: Any) -> Any:
    """The class with most votes, and the decisions of each two classes or, with `prob_a`, probabilities."""
    rows = rows_of(x)
    labels = labels_of(given["classlabels_ints"], given["classlabels_strings"])
    counts, classes = given["vectors_per_class"] or (), max(len(labels), 1)
    weights = np.array(given["coefficients"], rows.dtype)
    rho = np.array(given["rho"], rows.dtype)
    if not counts:
        scores = votes = rows @ weights.reshape(classes, -1).T + rho[0]
    else:
        scores, votes = _decisions(_kernels(rows, given), weights, counts, rho)
    probable = bool(counts and given["prob_a"])
    if probable:
        scores = _probabilities(scores, classes, given)
    chosen = _chosen(votes, len(rho) == 1, bool((weights >= 0).all()), probable)
    names = labels if len(labels) else np.arange(max(classes, 2))
    return names[chosen], _final(scores, classes, len(rho), given["post_transform"]).astype(np.float32)


def _kernels(rows: Any, given: dict[str, Any]) -> Any:
    """Return the kernel [N, vectors] of each sample with each support vector."""
    gamma, coef0, degree = given["kernel_params"] or (0.0, 0.0, 0.0)
    vectors = np.array(given["support_vectors"], rows.dtype).reshape(sum(given["vectors_per_class"]), -1)
    if vectors.shape[1] != rows.shape[1]:
        raise GraphError(
            f"the support vectors have {vectors.shape[1]} features, but X has {rows.shape[1]}", operand=0
        )
    if given["kernel_type"] == "RBF":
        distances = rows[:, None] - vectors
        return np.exp(-gamma * np.square(distances).sum(-1))
    dots = rows @ vectors.T
    if given["kernel_type"] == "LINEAR":
        return dots
    sloped = dots * gamma + coef0
    return np.tanh(sloped) if given["kernel_type"] == "SIGMOID" else sloped ** int(degree)


def _decisions(kernels: Any, weights: Any, counts: Any, rho: Any) -> tuple[Any, Any]:
    """Return the decisions [N, pairs] of each two classes, and the votes [N, classes] of their winners."""
    table, ends = weights.reshape(len(counts) - 1, -1), np.cumsum(counts)
    parts = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    votes = np.zeros((len(kernels), len(counts)), kernels.dtype)
    columns = []
    for number, (i, j) in enumerate(combinations(range(len(counts)), 2)):
        sums = kernels[:, parts[i]] @ table[j - 1, parts[i]] + kernels[:, parts[j]] @ table[i, parts[j]]
        columns.append(sums + rho[number])
        votes[:, i] += columns[-1] > 0
        votes[:, j] += columns[-1] <= 0
    return np.stack(columns, axis=1), votes


def _probabilities(decisions: Any, classes: int, given: dict[str, Any]) -> Any:
    """Return the probabilities [N, classes] that fit those of the pairs best (see the formula)."""
    against = np.zeros((len(decisions), classes, classes), decisions.dtype)
    for number, (i, j) in enumerate(combinations(range(classes), 2)):
        sloped = decisions[:, number] * given["prob_a"][number] + given["prob_b"][number]
        one = np.clip(1 / (1 + np.exp(sloped)), 1e-7, 1 - 1e-7)
        against[:, i, j], against[:, j, i] = one, 1 - one
    form = -against * against.swapaxes(1, 2)
    form[:, range(classes), range(classes)] = np.square(against).sum(1)
    found = np.full((len(decisions), classes), 1 / classes, decisions.dtype)
    for row, (p, q) in enumerate(zip(found, form, strict=True)):
        found[row] = _coupled(p, q)
    return found


def _coupled(p: Any, q: Any) -> Any:
    """Return the probabilities that minimize the quadratic form `q`, by the iteration of libsvm."""
    for _ in range(max(100, len(p))):
        slopes = q @ p
        value = p @ slopes
        if np.abs(slopes - value).max() < 0.005 / len(p):
            break
        for t in range(len(p)):
            move = (value - slopes[t]) / q[t, t]
            p[t] += move
            value = (value + move * (move * q[t, t] + 2 * slopes[t])) / (1 + move) ** 2
            slopes = (slopes + move * q[t]) / (1 + move)
            p /= 1 + move
    return p


def _chosen(votes: Any, single: bool, positive: bool, probable: bool) -> Any:
    """Return the number of each sample's class."""
    best, classes = np.argmax(votes, axis=1), votes.shape[1]
    if not single or (classes == 2 and (probable or not positive)):
        return best
    most = votes.max(axis=1)
    return np.where(most >= 0.5, 1, best) if classes == 2 else (most > 0).astype(np.int64)


def _final(scores: Any, classes: int, decisions: int, transform: str) -> Any:
    """Return transformed scores; one decision between two classes gives a score for each."""
    if scores.shape[1] > 1:
        return transformed(scores, transform)
    if classes != 2 or decisions != 1:
        return scores
    check_one_decision(transform)
    return transformed(np.concatenate([-scores, scores], axis=1), transform)


def _label_types(version: int) -> Any:
    by_onnx = types_by_onnx("ai.onnx.ml.LabelEncoder", version)

    def infer(attributes: Any, types: Any) -> Any:
        _table(version, dict(attributes), None if types[0] is None else types[0].dtype)
        return by_onnx(attributes, types)

    return infer


_ELEMENTS = {"floats": np.float32, "int64s": np.int64, "strings": object}


def _one_of(given: dict[str, Any], kind: str) -> Any:
    """Return the keys or values as an array, from the one attribute of its kind that is given."""
    found = [(name, value) for name, value in given.items() if name.startswith(kind) and value is not None]
    if len(found) != 1:
        texts = ", ".join(name for name, _ in found) or "none"
        raise GraphError(f"LabelEncoder needs exactly one attribute {kind}_*, got {texts}")
    name, value = found[0]
    if name.endswith("_tensor"):
        return value.reshape(-1).astype(object if value.dtype.kind in "OSUT" else value.dtype)
    return np.array(value, _ELEMENTS[name.removeprefix(f"{kind}_")])


def _table(version: int, given: dict[str, Any], dtype: str | None) -> tuple[Any, Any, Any]:
    """Return the keys, the values and the default of a LabelEncoder for an operand of this element type."""
    if version == 1:
        classes = np.array(given["classes_strings"] or (), object)
        numbers = np.arange(len(classes))
        if dtype == "str":
            return classes, numbers, given["default_int64"]
        return numbers, classes, given["default_string"]
    keys, values = _one_of(given, "keys"), _one_of(given, "values")
    if len(keys) != len(values):
        raise GraphError(f"LabelEncoder has {len(keys)} keys, but {len(values)} values")
    default = given.get("default_tensor")
    if default is None:
        name = {"O": "default_string", "f": "default_float"}.get(values.dtype.kind, "default_int64")
        return keys, values, given[name]
    return keys, values, default.reshape(-1)[0]


def _label_encoder(version: int) -> Any:
    def label_encoder(xp: ModuleType, x: Any, **given: Any) -> Any:
        """Each element replaced by the value at its key, or the default; from opset 4 on, NaN finds NaN."""
        keys, values, default = _table(version, given, "str" if x.dtype.kind == "O" else "")
        pairs = list(zip(keys.tolist(), values, strict=True))
        # A repeated key: the last value from opset 4 on, as ONNX says; before, the first, as in onnxruntime.
        found = dict(pairs if version >= 4 else reversed(pairs))
        unknown = [value for key, value in pairs if version >= 4 and key != key]
        missing = unknown[-1] if unknown else default
        labels = [missing if key != key else found.get(key, default) for key in x.reshape(-1).tolist()]
        result = np.empty(x.size, values.dtype)
        result[:] = labels
        return result.reshape(x.shape)

    return label_encoder


for _since in (1, 2, 4):
    op(
        "ai.onnx.ml.LabelEncoder",
        since=_since,
        infer=_label_types(_since),
        vjp=nothing,
    )(_label_encoder(_since))


@op(
    "ai.onnx.ml.OneHotEncoder",
    infer=types_by_onnx("ai.onnx.ml.OneHotEncoder", 1),
    vjp=nothing,
)
def one_hot_encoder(
    xp: ModuleType,
    x: Any,
    *,
    cats_int64s: Any = None,
    cats_strings: Any = None,
    zeros: int = 1,
) -> Any:
    """1 at the category of each element along a new last axis, else 0; numbers are truncated to i64."""
    categories = labels_of(cats_int64s, cats_strings)
    values = x if x.dtype.kind == "O" else x.astype(np.int64)
    found = values[..., None] == categories
    if not zeros and not found.any(-1).all():
        place = np.argwhere(~found.any(-1))[0]
        raise GraphError(
            f"{values[tuple(place)]!r} at {place.tolist()} is not among the {len(categories)} categories",
            hint="set zeros=1 to encode other values as zeros",
            operand=0,
        )
    return found.astype(np.float32)
