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
from nncdbg.engine.ops.cast import cast_to as cast_to_type
from nncdbg.engine.ops.declaration import composite, op
from nncdbg.engine.ops.gradient import nothing
from nncdbg.engine.ops.onnx_messages import types_by_onnx
from nncdbg.engine.ops.post_transforms import labels_of, rows_of, transformed
from nncdbg.engine.ops.support_vector_formula import (
    check_one_decision,
    svm_classifier_formula,
    svm_regressor_formula,
)
from nncdbg.ir.records import Map, MapType, SequenceType, TensorType

_OF_MAPS = "its operand is a map"

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


def _zipped_types(attributes: Any, types: Any) -> Any:
    texts = bool(attributes["classlabels_strings"])
    return (SequenceType(MapType("str" if texts else "i64", "f32")),)


@op("ai.onnx.ml.ZipMap", infer=_zipped_types, no_gradient="its result is a map")
def zip_map(xp: ModuleType, x: Any, **labels: Any) -> Any:
    """A map from classes to scores for each row of x [N, classes] or [classes]."""
    classes, rows = labels_of(labels["classlabels_int64s"], labels["classlabels_strings"]), rows_of(x)
    if len(classes) != rows.shape[1]:
        raise GraphError(f"ZipMap has {len(classes)} classes, but X has {rows.shape[1]} columns", operand=0)
    return [Map([classes, row.copy()]) for row in rows]


@op("ai.onnx.ml.DictVectorizer", infer=types_by_onnx("ai.onnx.ml.DictVectorizer", 1), no_gradient=_OF_MAPS)
def dict_vectorizer(xp: ModuleType, x: Any, **words: Any) -> Any:
    """The values of a map in the order of a vocabulary [1, words]; 0 for a word that is not in the map."""
    vocabulary = labels_of(words["int64_vocabulary"], words["string_vocabulary"]).tolist()
    given, zero = dict(x.items), "" if x[1].dtype.kind == "O" else 0
    return np.array([[given.get(word, zero) for word in vocabulary]], x[1].dtype)


_CASTS = {"TO_FLOAT": np.float32, "TO_INT64": np.int64, "TO_STRING": object}


@op("ai.onnx.ml.CastMap", infer=types_by_onnx("ai.onnx.ml.CastMap", 1), no_gradient=_OF_MAPS)
def cast_map(xp: ModuleType, x: Any, *, cast_to: str, map_form: str, max_map: int) -> Any:
    """The values of a map as a tensor [1, N], in the order of the keys; `SPARSE` places them at the keys."""
    order, dtype = np.argsort(x[0]), np.dtype(_CASTS[cast_to])
    keys, values = x[0][order], cast_to_type(np, x[1][order], dtype)
    if map_form == "DENSE":
        return values.reshape(1, -1)
    if len(keys) and not 0 <= keys.min() <= keys.max() < max_map:
        raise GraphError(f"the keys {keys.min()} to {keys.max()} are not in [0, {max_map})", operand=0)
    result = np.full((1, max_map), "" if dtype.kind == "O" else 0, dtype)
    result[0, keys] = values
    return result


def _mapped_types(attributes: Any, types: Any) -> Any:
    given = types[0]
    return (None if given is None else TensorType("i64" if given.dtype == "str" else "str", given.shape),)


@op("ai.onnx.ml.CategoryMapper", infer=_mapped_types, vjp=nothing)
def category_mapper(
    xp: ModuleType,
    x: Any,
    *,
    cats_int64s: Any = None,
    cats_strings: Any = None,
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Any:
    """Strings replaced by the integers of their category, or integers by the strings."""
    numbers, texts = list(cats_int64s or ()), list(cats_strings or ())
    if len(numbers) != len(texts):
        raise GraphError(f"CategoryMapper has {len(numbers)} integers, but {len(texts)} strings")
    of_texts = x.dtype.kind == "O"
    found: dict[Any, Any] = dict(
        zip(texts, numbers, strict=True) if of_texts else zip(numbers, texts, strict=True)
    )
    default = default_int64 if of_texts else default_string
    result = np.empty(x.size, np.int64 if of_texts else object)
    result[:] = [found.get(value, default) for value in x.reshape(-1).tolist()]
    return result.reshape(x.shape)
