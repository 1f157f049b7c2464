"""Tree ensembles of ``ai.onnx.ml``: the leaf of each sample in each tree, and the scores of the leaves.

The semantics are those of onnxruntime.  `onnx.reference` has another label for two classes, no transforms
of a regressor, and no f64 attributes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import pi
from types import ModuleType
from typing import Any

import numpy as np

from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.onnx_schemas import types_by_onnx
from nncdbg.errors import GraphError

WINITZKI = 0.147
"""The free parameter of the approximation of the inverse of erf, as in onnxruntime."""


def labels_of(integers: Sequence[int] | None, texts: Sequence[str] | None) -> Any:
    """Return the classes of a model, as i64 or as strings."""
    return np.array(texts, object) if texts else np.array(integers or (), np.int64)


def rows_of(x: Any) -> Any:
    """Return samples as f64 if they are f64, else as f32, with one row per sample."""
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    return rows if rows.dtype == np.float64 else rows.astype(np.float32)


def transformed(scores: Any, name: str) -> Any:
    """Return the scores [N, classes] after a `post_transform`."""
    with np.errstate(all="ignore"):
        return _TRANSFORMS[name](scores)


def one_score(scores: Any, name: str) -> Any:
    """Return transformed scores [N, targets]; of one target, onnxruntime transforms only by PROBIT."""
    return scores if scores.shape[1] == 1 and name != "PROBIT" else transformed(scores, name)


def _softmax(scores: Any) -> Any:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _softmax_zero(scores: Any) -> Any:
    """Softmax in which a score of 0 keeps the weight 0."""
    greatest = scores.max(axis=1, keepdims=True)
    powers = np.where(np.abs(scores) > 1e-7, np.exp(scores - greatest), scores * np.exp(-greatest))
    total = powers.sum(axis=1, keepdims=True)
    return np.where(total == 0, scores.dtype.type(0.5), powers / np.where(total == 0, 1, total))


def _logistic(scores: Any) -> Any:
    powers = np.exp(-np.abs(scores))
    return np.where(scores < 0, powers, 1) / (1 + powers)


def _probit(scores: Any) -> Any:
    """The quantiles of the normal distribution, by Winitzki's approximation."""
    z = 2 * scores - 1
    log = np.log((1 - z) * (1 + z))
    half = 2 / (pi * WINITZKI) + 0.5 * log
    size = np.sqrt(np.sqrt(half * half - log / WINITZKI) - half)
    return scores.dtype.type(1.41421356) * np.where(z < 0, -size, size)


_TRANSFORMS = {
    "NONE": lambda scores: scores,
    "LOGISTIC": _logistic,
    "SOFTMAX": _softmax,
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}


def labels_constant(integers: Sequence[object] | None, texts: Sequence[object] | None) -> str:
    """Return the constant `%labels`: the classes, which are integers or texts."""
    if texts:
        return f"%labels: str[{len(texts)}] = [{', '.join(json.dumps(text) for text in texts)}]"
    return f"%labels: i64[{len(integers or ())}] = {[*(integers or ())]}"


def transform_lines(name: str, source: str, target: str) -> list[str]:
    """Compute `target` from the scores `source` [N, classes] by a `post_transform`."""
    if name == "NONE":
        return [f"%{target} = Identity(%{source})"]
    if name == "LOGISTIC":
        return [f"%{target} = Sigmoid(%{source})"]
    if name == "SOFTMAX":
        return [f"%{target} = Softmax(%{source}, axis=1)"]
    return _softmax_zero_lines(source, target) if name == "SOFTMAX_ZERO" else _probit_lines(source, target)


def _softmax_zero_lines(source: str, target: str) -> list[str]:
    """Softmax in which a score of 0 keeps the weight 0."""
    return [
        f"%greatest = ReduceMax(%{source}, [1])",
        f"%below = Sub(%{source}, %greatest)",
        "%powers = Exp(%below)",
        "%less = Neg(%greatest)",
        "%unit = Exp(%less)",
        f"%small = Mul(%{source}, %unit)",
        f"%sizes = Abs(%{source})",
        "%counts = Greater(%sizes, 0.0000001)",
        "%parts = Where(%counts, %powers, %small)",
        "%total = ReduceSum(%parts, [1])",
        "%empty = Equal(%total, 0)",
        "%divisor = Where(%empty, 1, %total)",
        "%shares = Div(%parts, %divisor)",
        f"%{target} = Where(%empty, 0.5, %shares)",
    ]


def _probit_lines(source: str, target: str) -> list[str]:
    """The quantiles of the normal distribution, by Winitzki's approximation."""
    return [
        f"%double = Mul(%{source}, 2)",
        "%z = Sub(%double, 1)",
        "%under = Sub(1, %z)",
        "%over = Add(%z, 1)",
        "%t = Mul(%under, %over)",
        "%log = Log(%t)",
        "%half = Mul(%log, 0.5)",
        f"%v = Add(%half, {2 / (pi * WINITZKI)})",
        f"%w = Div(%log, {WINITZKI})",
        "%square = Mul(%v, %v)",
        "%rest = Sub(%square, %w)",
        "%root = Sqrt(%rest)",
        "%excess = Sub(%root, %v)",
        "%size = Sqrt(%excess)",
        "%negative = Less(%z, 0)",
        "%mirrored = Neg(%size)",
        "%quantile = Where(%negative, %mirrored, %size)",
        f"%{target} = Mul(%quantile, 1.41421356)",
    ]


_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_COMPARE = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORM_NAMES = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_NO_GRADIENT = "it is constant between the thresholds of its trees"


@dataclass(frozen=True, slots=True)
class Trees:
    """The nodes of all trees; a node with a mode of -1 is a leaf.  All arrays have one entry per node."""

    features: Any
    thresholds: Any
    modes: Any
    yes: Any
    no: Any
    missing_is_yes: Any
    roots: Any
    members: dict[int, Any]
    """The values that a node of mode BRANCH_MEMBER accepts."""

    def leaves(self, x: Any) -> Any:
        """Return the leaf [N, trees] that each row of `x` [N, F] reaches in each tree."""
        if x.shape[-1] <= self.features.max(initial=0):
            needed = int(self.features.max()) + 1
            raise GraphError(f"the trees need {needed} features, but X has {x.shape[-1]}", operand=0)
        at = np.broadcast_to(self.roots, (len(x), len(self.roots))).copy()
        rows = np.arange(len(x))[:, None]
        for _ in range(len(self.modes) + 1):
            modes = self.modes[at]
            if (modes < 0).all():
                return at
            values, limits = x[rows, self.features[at]], self.thresholds[at]
            taken = np.isnan(values) & self.missing_is_yes[at]
            for mode, compare in enumerate(_COMPARE):
                taken |= (modes == mode) & compare(values, limits)
            for node, accepted in self.members.items():
                taken |= (at == node) & np.isin(values, accepted)
            at = np.where(modes < 0, at, np.where(taken, self.yes[at], self.no[at]))
        raise GraphError("the nodes of a tree form a cycle", hint="export the model again: it is damaged")


def _attribute(given: dict[str, Any], name: str, dtype: Any = np.float32) -> Any:
    """Return a list of numbers as an array; the `_as_tensor` form (f64) takes precedence."""
    tensor = given.get(f"{name}_as_tensor")
    return tensor if tensor is not None and tensor.size else np.asarray(given.get(name) or (), dtype)


def _by_number(given: dict[str, Any], dtype: Any) -> tuple[Trees, dict[tuple[int, int], int]]:
    """Return the trees of opsets 1 to 4, and the position of each (tree, node)."""
    numbers = list(zip(given["nodes_treeids"], given["nodes_nodeids"], strict=True))
    place = {number: position for position, number in enumerate(numbers)}
    modes = np.array([-1 if mode == "LEAF" else _MODES.index(mode) for mode in given["nodes_modes"]])

    def children(key: str) -> Any:
        found = []
        for (tree, _), child, mode in zip(numbers, given[key], modes, strict=True):
            if mode >= 0 and (tree, child) not in place:
                raise GraphError(f"tree {tree} has no node {child}", attribute=key)
            found.append(place[tree, child] if mode >= 0 else 0)
        return np.array(found, np.int64)

    yes, no = children("nodes_truenodeids"), children("nodes_falsenodeids")
    inner = modes >= 0
    parented = {*yes[inner].tolist(), *no[inner].tolist()}
    trees = Trees(
        np.asarray(given["nodes_featureids"], np.int64) * inner,
        _attribute(given, "nodes_values").astype(dtype),
        modes,
        yes,
        no,
        np.asarray(given["nodes_missing_value_tracks_true"] or [0] * len(modes), bool),
        np.array([position for position in range(len(modes)) if position not in parented], np.int64),
        {},
    )
    return trees, place


def _scores(leaves: Any, targets: Any, weights: Any, nodes: int, count: int, aggregate: str) -> Any:
    """Return the scores [N, count], and which of them a leaf contributes to.

    Entry i of `targets` is (node, target); a node may have several entries, also of one target.
    """
    table = np.zeros((nodes, count), weights.dtype)
    given = np.zeros((nodes, count), bool)
    np.add.at(table, tuple(targets), weights)
    given[tuple(targets)] = True
    reached = given[leaves]
    if aggregate in ("MIN", "MAX"):
        worst = np.inf if aggregate == "MIN" else -np.inf
        reduce = np.minimum if aggregate == "MIN" else np.maximum
        extreme = reduce.reduce(np.where(reached, table[leaves], worst), axis=1)
        return np.where(reached.any(1), extreme, 0).astype(weights.dtype), reached.any(1)
    total = table[leaves].sum(axis=1, dtype=weights.dtype)
    return total / leaves.shape[1] if aggregate == "AVERAGE" else total, reached.any(1)


def _entries(given: dict[str, Any], kind: str, place: dict[tuple[int, int], int]) -> Any:
    numbers = zip(given[f"{kind}_treeids"], given[f"{kind}_nodeids"], strict=True)
    return np.array([[place[number] for number in numbers], given[f"{kind}_ids"]], np.int64)


def tree_ensemble_regressor(xp: ModuleType, x: Any, **given: Any) -> Any:
    """The aggregated weights of the leaves that a sample reaches, plus `base_values`, transformed."""
    rows = rows_of(x)
    trees, place = _by_number(given, rows.dtype)
    weights = _attribute(given, "target_weights").astype(rows.dtype)
    targets, count = _entries(given, "target", place), given["n_targets"] or 1
    scores, _ = _scores(
        trees.leaves(rows), targets, weights, len(trees.modes), count, given["aggregate_function"]
    )
    base = _attribute(given, "base_values")
    if base.size:
        scores = scores + base.astype(rows.dtype)
    return one_score(scores, given["post_transform"]).astype(np.float32)


def tree_ensemble_classifier(xp: ModuleType, x: Any, **given: Any) -> Any:
    """The class with the largest sum of weights, and the transformed sums of all classes."""
    rows = rows_of(x)
    trees, place = _by_number(given, rows.dtype)
    labels = labels_of(given["classlabels_int64s"], given["classlabels_strings"])
    weights = _attribute(given, "class_weights").astype(rows.dtype)
    targets = _entries(given, "class", place)
    base = _attribute(given, "base_values").astype(rows.dtype)
    scores, reached = _scores(
        trees.leaves(rows), targets, weights, len(trees.modes), max(len(labels), 1), "SUM"
    )
    if len(labels) == 2 and len(set(given["class_ids"])) == 1:
        return _of_two(scores, labels, base, bool((weights >= 0).all()), given)
    if len(labels) < 2:
        raise GraphError(f"TreeEnsembleClassifier has {len(labels)} classes, it needs 2 or more")
    if base.size == len(labels):
        scores, reached = scores + base, reached | True
    best = np.argmax(np.where(reached, scores, -np.inf), axis=1)
    return labels[best], transformed(scores, given["post_transform"]).astype(np.float32)


def _of_two(scores: Any, labels: Any, base: Any, positive: bool, given: dict[str, Any]) -> Any:
    """Return the label and both scores of two classes, if all leaves contribute to one of them."""
    transform, number = given["post_transform"], given["class_ids"][0]
    if base.size > 1 - number:
        raise GraphError(
            f"{base.size} base_values are not defined for two classes with leaves of class {number} only",
            attribute="base_values",
        )
    score = scores[:, number] + base.sum()
    chosen = (score > (0.5 if positive else 0)).astype(int)
    if number == 0:
        if transform == "PROBIT":
            raise GraphError(
                "PROBIT is not defined for two classes with one score", attribute="post_transform"
            )
        other = 1 - score if positive and transform != "LOGISTIC" else -score
        scores = np.stack([other, score], axis=1)
        transform = transform if transform == "LOGISTIC" else "NONE"
    return labels[chosen], transformed(scores, transform).astype(np.float32)


def tree_ensemble(xp: ModuleType, x: Any, **given: Any) -> Any:
    """The aggregated weights of the leaves that a sample reaches, for each target, transformed."""
    rows = rows_of(x)
    inner = len(given["nodes_modes"])

    def children(key: str) -> Any:
        """Return positions; leaves come after the inner nodes."""
        kind = key.removesuffix("nodeids")
        return np.asarray(given[key], np.int64) + inner * np.asarray(given[f"{kind}leafs"], np.int64)

    weights = given["leaf_weights"]
    leaf = np.full(len(weights), -1, np.int64)
    modes = given["nodes_modes"].astype(np.int64)
    tracked = given["nodes_missing_value_tracks_true"] or [0] * inner
    trees = Trees(
        np.asarray([*given["nodes_featureids"], *leaf * 0], np.int64),
        np.concatenate([given["nodes_splits"], np.zeros(len(leaf), given["nodes_splits"].dtype)]),
        np.concatenate([modes, leaf]),
        np.concatenate([children("nodes_truenodeids"), leaf]),
        np.concatenate([children("nodes_falsenodeids"), leaf]),
        np.concatenate([np.asarray(tracked, bool), leaf == 0]),
        np.asarray(given["tree_roots"], np.int64),
        _members(given["membership_values"], np.flatnonzero(modes == _MODES.index("BRANCH_MEMBER"))),
    )
    targets = np.array([np.arange(len(weights)) + inner, given["leaf_targetids"]])
    aggregate = _AGGREGATES[given["aggregate_function"]]
    leaves = trees.leaves(rows)
    scores, _ = _scores(leaves, targets, weights, inner + len(leaf), given["n_targets"] or 1, aggregate)
    return one_score(scores, _TRANSFORM_NAMES[given["post_transform"]]).astype(x.dtype)


def _members(values: Any, nodes: Any) -> dict[int, Any]:
    """Return the accepted values of each node; NaN separates the lists."""
    if not len(nodes):
        return {}
    ends = np.flatnonzero(np.isnan(values))
    parts = [part[~np.isnan(part)] for part in np.split(values, ends)]
    return {int(node): part for node, part in zip(nodes, parts, strict=False)}


for _name, _versions, _kernel in (
    ("TreeEnsembleRegressor", (1, 3), tree_ensemble_regressor),
    ("TreeEnsembleClassifier", (1, 3), tree_ensemble_classifier),
    ("TreeEnsemble", (5,), tree_ensemble),
):
    for _since in _versions:
        op(
            f"ai.onnx.ml.{_name}",
            since=_since,
            infer=types_by_onnx(f"ai.onnx.ml.{_name}", _since),
            no_gradient=_NO_GRADIENT,
        )(_kernel)
