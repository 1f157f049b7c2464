"""Models and encoders of ``ai.onnx.ml`` for which `onnx.reference` has other results than onnxruntime.

Linear models, the regressor of support vectors and Normalizer run their formulas.  The classifier of support
vectors compares each two classes.  With `prob_a`, it finds the probabilities of all classes that fit those of
the pairs best, by the iteration of Wu, Lin and Weng (2004), "Probability Estimates for Multi-class
Classification by Pairwise Coupling".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from types import ModuleType
from typing import Any

import numpy as np

from nncdbg.engine.ops.cast import cast_to as cast_to_type
from nncdbg.engine.ops.declaration import composite, op
from nncdbg.engine.ops.formula import cast, formula_text, sizes_at, type_at
from nncdbg.engine.ops.gradient import nothing
from nncdbg.engine.ops.onnx_schemas import types_by_onnx
from nncdbg.engine.ops.trees import labels_constant, labels_of, rows_of, transform_lines, transformed
from nncdbg.engine.ops.types import Attributes, Types
from nncdbg.errors import GraphError
from nncdbg.ir.records import Map, MapType, SequenceType, TensorType


def model_dtype(types: Types) -> str:
    """Return the element type in which a model computes: f64 for an operand of f64, else f32."""
    return "f64" if type_at(types, 0).dtype == "f64" else "f32"


def row_size(types: Types) -> int:
    """Return the number of features of a row of operand 0, a matrix or one row."""
    return sizes_at(types, 0)[-1]


def scaler_formula(attributes: Attributes, types: Types) -> str:
    """(x - offset) * scale, computed in f64; both are one number, or one per feature."""
    lines = [
        cast("wide", "X", "f64"),
        f"%moved = Sub(%wide, {[*(attributes['offset'] or (0.0,))]})",
        f"%scaled = Mul(%moved, {[*(attributes['scale'] or (1.0,))]})",
        cast("Y", "scaled", "f32"),
    ]
    return formula_text("Scaler", [("X", type_at(types, 0))], lines, ["Y"])


def imputer_formula(attributes: Attributes, types: Types) -> str:
    """X with each value to replace, which may be NaN, replaced by the value of its column."""
    values = attributes["imputed_value_floats"]
    replaced: float = attributes["replaced_value_float"]
    if not values:
        values, replaced = attributes["imputed_value_int64s"], attributes["replaced_value_int64"]
    if not values:
        raise GraphError("Imputer has no values", hint="give imputed_value_floats or imputed_value_int64s")
    missing = "IsNaN(%X)" if replaced != replaced else f"Equal(%X, {replaced})"
    lines = [f"%missing = {missing}", f"%Y = Where(%missing, {[*values]}, %X)"]
    return formula_text("Imputer", [("X", type_at(types, 0))], lines, ["Y"])


def normalizer_formula(attributes: Attributes, types: Types) -> str:
    """Each row divided by its maximum, the sum of absolute values, or the root of the sum of squares."""
    dtype = type_at(types, 0).dtype
    length = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}[attributes["norm"]]
    lines = [
        cast("wide", "X", "f32" if dtype == "f32" else "f64"),
        f"%length = {length}(%wide, [-1])",
        "%none = Equal(%length, 0)",
        "%safe = Where(%none, 1, %length)",
        "%shares = Div(%wide, %safe)",
        cast("Y", "shares", "f32"),
    ]
    return formula_text("Normalizer", [("X", type_at(types, 0))], lines, ["Y"])


def feature_vectorizer_formula(attributes: Attributes, types: Types) -> str:
    """The operands as matrices, cut or extended by zeros to the given numbers of columns, and joined."""
    names = [f"X{index}" for index in range(len(types))]
    lines, parts = [], []
    for index, (name, wanted) in enumerate(zip(names, attributes["inputdimensions"], strict=False)):
        sizes = sizes_at(types, index)
        columns = sizes[1] if len(sizes) == 2 else 1
        lines.append(f"%rows{index} = Reshape(%{name}, {[sizes[0], columns]})")
        # A negative pad crops.
        lines.append(f"%part{index} = Pad(%rows{index}, {[0, 0, 0, wanted - columns]})")
        parts.append(f"%part{index}")
    lines += [f"%joined = Concat({', '.join(parts)}, axis=1)", cast("Y", "joined", "f32")]
    return formula_text("FeatureVectorizer", zip(names, types, strict=True), lines, ["Y"])


def linear_regressor_formula(attributes: Attributes, types: Types) -> str:
    """X times the coefficients of each target, plus the intercepts, then the transform.

    As in onnxruntime, the score of a single target is transformed only by PROBIT.
    """
    rows, transform = attributes["targets"], attributes["post_transform"]
    lines = [
        *_linear_lines(attributes, types, rows, "targets"),
        *transform_lines(transform if rows > 1 or transform == "PROBIT" else "NONE", "scores", "wide"),
        cast("Y", "wide", "f32"),
    ]
    return formula_text("LinearRegressor", [("X", type_at(types, 0))], lines, ["Y"])


def linear_classifier_formula(attributes: Attributes, types: Types) -> str:
    """The class with the largest linear score, and the transformed scores.

    As in onnxruntime, one score s of two classes gives the scores 1 - s and s.
    """
    integers, texts = attributes["classlabels_ints"], attributes["classlabels_strings"]
    features, transform = row_size(types), attributes["post_transform"]
    rows = len(attributes["intercepts"] or ()) or len(attributes["coefficients"]) // max(features, 1)
    lines = _linear_lines(attributes, types, rows, "classes")
    both = rows == 1 and len(texts or integers or ()) == 2
    if both and transform == "PROBIT":
        raise GraphError("PROBIT is not defined for two classes with one score", attribute="post_transform")
    if both:
        other = "Neg(%scores)" if transform == "LOGISTIC" else "Sub(1, %scores)"
        lines += [f"%other = {other}", "%two = Concat(%other, %scores, axis=1)"]
    last = "NONE" if both and transform != "LOGISTIC" else transform
    lines += [
        *transform_lines(last, "two" if both else "scores", "wide"),
        *_label_lines(attributes, rows, both=both),
        cast("Z", "wide", "f32"),
    ]
    return formula_text("LinearClassifier", [("X", type_at(types, 0))], lines, ["Y", "Z"])


def _linear_lines(attributes: Attributes, types: Types, rows: int, kind: str) -> list[str]:
    """Compute `%scores` [N, rows] from X [N, F] and the first `rows * F` coefficients."""
    numbers, size = attributes["coefficients"], row_size(types)
    if not 0 < rows * size <= len(numbers):
        raise GraphError(
            f"{len(numbers)} coefficients for {rows} {kind} and {size} features",
            hint=f"use {max(rows, 1) * size} coefficients, one row of {size} for each of the {kind}",
            attribute="coefficients",
        )
    columns = [[numbers[row * size + column] for row in range(rows)] for column in range(size)]
    lines = [cast("given", "X", model_dtype(types)), f"%features = Reshape(%given, [-1, {size}])"]
    if not attributes["intercepts"]:
        return [*lines, f"%scores = MatMul(%features, {columns})"]
    return [
        *lines,
        f"%products = MatMul(%features, {columns})",
        f"%scores = Add(%products, {[*attributes['intercepts']][:rows]})",
    ]


def _label_lines(attributes: Attributes, rows: int, *, both: bool) -> list[str]:
    """Compute the class `%Y` from the scores before the transform."""
    integers, texts = attributes["classlabels_ints"], attributes["classlabels_strings"]
    if rows > 1:
        best = "%best = ArgMax(%scores, axis=1, keepdims=0)"
        if not integers and not texts:
            return [best, "%Y = Identity(%best)"]
        return [labels_constant(integers, texts), best, "%Y = Gather(%labels, %best)"]
    if both:
        labels: Sequence[object] = texts or integers
    else:
        labels = ["", texts[0]] if texts else [0, integers[0] if integers else 1]
    return [
        labels_constant(labels if not texts else None, labels if texts else None),
        "%above = Greater(%scores, 0)",
        "%column = Cast(%above, to=7)",
        "%index = Reshape(%column, [-1])",
        "%Y = Gather(%labels, %index)",
    ]


Matrix = list[list[float]]


def svm_regressor_formula(attributes: Attributes, types: Types) -> str:
    """The sum of the kernels of the support vectors, each times its coefficient; without vectors, of X."""
    coefficients = [[number] for number in attributes["coefficients"]]
    vectors = attributes["n_supports"]
    lines = [cast("x", "X", model_dtype(types))]
    if vectors:
        lines += _kernel_lines(attributes, types, vectors)
    lines += [
        f"%sums = MatMul(%{'kernels' if vectors else 'x'}, {coefficients})",
        f"%scores = Add(%sums, {attributes['rho'][0]})",
    ]
    if attributes["one_class"]:
        lines += ["%above = Greater(%scores, 0)", "%wide = Where(%above, 1.0, -1.0)"]
    else:
        # As in onnxruntime, a single score is not transformed.
        lines.append("%wide = Identity(%scores)")
    lines.append(cast("Y", "wide", "f32"))
    return formula_text("SVMRegressor", [("X", type_at(types, 0))], lines, ["Y"])


def svm_classifier_formula(attributes: Attributes, types: Types) -> str:
    """The scores of each two classes, or with `prob_a` the probabilities; and the class with most votes."""
    counts = attributes["vectors_per_class"] or ()
    classes = max(len(attributes["classlabels_ints"] or attributes["classlabels_strings"] or ()), 1)
    lines = [cast("x", "X", model_dtype(types))]
    probable = bool(counts and attributes["prob_a"])
    if counts:
        lines += _kernel_lines(attributes, types, sum(counts))
        lines += _pair_lines(attributes, counts)
    else:
        weights = _rows(attributes["coefficients"], classes)
        lines += [
            f"%sums = MatMul(%x, {_transposed(weights)})",
            f"%decisions = Add(%sums, {attributes['rho'][0]})",
            "%votes = Identity(%decisions)",
        ]
    scores = classes * (classes - 1) // 2 if counts else classes
    if probable:
        lines += _probability_lines(attributes, types, classes)
        scores = classes
    lines += _vector_label_lines(attributes, classes, probable)
    lines += _score_lines(attributes, "probabilities" if probable else "decisions", scores, classes)
    lines.append(cast("Z", "wide", "f32"))
    return formula_text("SVMClassifier", [("X", type_at(types, 0))], lines, ["Y", "Z"])


def _rows(numbers: Sequence[float], count: int) -> Matrix:
    size = len(numbers) // count
    return [[*numbers[row * size : (row + 1) * size]] for row in range(count)]


def _transposed(rows: Matrix) -> Matrix:
    return [list(column) for column in zip(*rows, strict=True)]


def _kernel_lines(attributes: Attributes, types: Types, count: int) -> list[str]:
    """Compute `%kernels` [N, vectors] of `%x` [N, F] with each support vector."""
    kind, vectors = attributes["kernel_type"], _rows(attributes["support_vectors"], count)
    known = TensorType(model_dtype(types), (sizes_at(types, 0)[0], count))
    gamma, coef0, degree = attributes["kernel_params"] or (0.0, 0.0, 0.0)
    if kind == "RBF":
        return [
            "%each = Unsqueeze(%x, [1])",
            f"%apart = Sub(%each, {vectors})",
            "%squares = Mul(%apart, %apart)",
            f"%distances: {known} = ReduceSum(%squares, [2], keepdims=0)",
            f"%exponents = Mul(%distances, {-gamma})",
            "%kernels = Exp(%exponents)",
        ]
    dot = f"MatMul(%x, {_transposed(vectors)})"
    if kind == "LINEAR":
        return [f"%kernels = {dot}"]
    last = (
        "%kernels = Tanh(%sloped)" if kind == "SIGMOID" else f"%kernels = Pow(%sloped, {float(int(degree))})"
    )
    return [f"%dots = {dot}", f"%scaled = Mul(%dots, {gamma})", f"%sloped = Add(%scaled, {coef0})", last]


def _pair_lines(attributes: Attributes, counts: Sequence[int]) -> list[str]:
    """Compute `%decisions` [N, pairs] and the `%votes` [N, classes] that each class gets from its pairs."""
    rows = _rows(attributes["coefficients"], len(counts) - 1)
    starts = [sum(counts[:number]) for number in range(len(counts))]
    pairs = [*combinations(range(len(counts)), 2)]
    columns, first, second = [], [], []
    for i, j in pairs:
        column = [0.0] * sum(counts)
        for vector in range(starts[i], starts[i] + counts[i]):
            column[vector] = rows[j - 1][vector]
        for vector in range(starts[j], starts[j] + counts[j]):
            column[vector] = rows[i][vector]
        columns.append(column)
        first.append([float(number == i) for number in range(len(counts))])
        second.append([float(number == j) for number in range(len(counts))])
    return [
        f"%sums = MatMul(%kernels, {_transposed(columns)})",
        f"%decisions = Add(%sums, {[*attributes['rho'][: len(pairs)]]})",
        "%wins = Greater(%decisions, 0)",
        "%won = CastLike(%wins, %decisions)",
        "%lost = Sub(1, %won)",
        f"%first_votes = MatMul(%won, {first})",
        f"%second_votes = MatMul(%lost, {second})",
        "%votes = Add(%first_votes, %second_votes)",
    ]


def _vector_label_lines(attributes: Attributes, classes: int, probable: bool) -> list[str]:
    """Compute the class `%Y` by the rules of ONNX's reference."""
    integers, texts = attributes["classlabels_ints"], attributes["classlabels_strings"]
    lines = [labels_constant(integers or range(classes), texts), "%best = ArgMax(%votes, axis=1, keepdims=0)"]
    positive = min(attributes["coefficients"]) >= 0
    if len(attributes["rho"]) != 1 or (classes == 2 and (probable or not positive)):
        return [*lines, "%Y = Gather(%labels, %best)"]
    lines.append("%most = ReduceMax(%votes, [1], keepdims=0)")
    if classes == 2:
        return [
            *lines,
            "%sure = GreaterOrEqual(%most, 0.5)",
            "%chosen = Where(%sure, 1, %best)",
            "%Y = Gather(%labels, %chosen)",
        ]
    lines += ["%sure = Greater(%most, 0)", "%number = Cast(%sure, to=7)"]
    return [*lines, "%Y = Gather(%labels, %number)" if texts else "%Y = Identity(%number)"]


def _score_lines(attributes: Attributes, source: str, scores: int, classes: int) -> list[str]:
    """Compute the transformed scores `%wide`; one decision between two classes gives a score for each."""
    transform = attributes["post_transform"]
    if scores >= 2:
        return transform_lines(transform, source, "wide")
    if classes != 2 or len(attributes["rho"]) != 1:
        return [f"%wide = Identity(%{source})"]
    check_one_decision(transform)
    both = [f"%against = Neg(%{source})", f"%two = Concat(%against, %{source}, axis=1)"]
    return [*both, *transform_lines(transform, "two", "wide")]


def check_one_decision(transform: str) -> None:
    """Raise GraphError for a transform that onnxruntime and ONNX define differently for one decision."""
    if transform not in ("NONE", "LOGISTIC"):
        raise GraphError(
            f"{transform} is not defined for one decision between two classes",
            hint='use post_transform="NONE" or "LOGISTIC"',
            attribute="post_transform",
        )


def _probability_lines(attributes: Attributes, types: Types, classes: int) -> list[str]:
    """Compute `%probabilities` [N, classes] from the `%decisions` of the pairs.

    `%R` has the probability of class i against class j, and `%Q` the quadratic form that the probabilities of
    all classes minimize.  A row that has converged is kept.
    """
    pairs = [*combinations(range(classes), 2)]
    upper, lower = (
        [[float(cell == pair) for cell in product(range(classes), repeat=2)] for pair in order]
        for order in (pairs, [(j, i) for i, j in pairs])
    )
    identity = [[float(i == j) for j in range(classes)] for i in range(classes)]
    known = TensorType(model_dtype(types), (sizes_at(types, 0)[0], classes))
    sweep = [line for number in range(classes) for line in _sweep_lines(number, classes)]
    return [
        f"%sloped = Mul(%decisions, {[*attributes['prob_a'][: len(pairs)]]})",
        f"%shifted = Add(%sloped, {[*attributes['prob_b'][: len(pairs)]]})",
        "%opposite = Neg(%shifted)",
        "%raw = Sigmoid(%opposite)",
        f"%pairs = Clip(%raw, 0.0000001, {1 - 1e-7})",
        "%against = Sub(1, %pairs)",
        f"%upper = MatMul(%pairs, {upper})",
        f"%lower = MatMul(%against, {lower})",
        "%flat = Add(%upper, %lower)",
        f"%R = Reshape(%flat, {[-1, classes, classes]})",
        "%R.turned = Transpose(%R, perm=[0, 2, 1])",
        "%both = Mul(%R, %R.turned)",
        "%R.squares = Mul(%R, %R)",
        "%columns = ReduceSum(%R.squares, [1])",
        f"%diagonal = Mul(%columns, {identity})",
        "%Q = Sub(%diagonal, %both)",
        "%zeros = Sub(%upper, %upper)",
        f"%none = Slice(%zeros, [0], [{classes}], [1])",
        f"%equal = Add(%none, {1 / classes})",
        f"while @coupling (%p: {known} = %equal) times {max(100, classes)} {{",
        "  %p.column = Unsqueeze(%p, [2])",
        "  %Qp.column = MatMul(%Q, %p.column)",
        "  %Qp.0 = Squeeze(%Qp.column, [2])",
        "  %weighted = Mul(%p, %Qp.0)",
        "  %pQp.0 = ReduceSum(%weighted, [1])",
        "  %error = Sub(%Qp.0, %pQp.0)",
        "  %errors = Abs(%error)",
        "  %largest = ReduceMax(%errors, [1])",
        f"  %open = GreaterOrEqual(%largest, {0.005 / classes})",
        "  %open.number = Cast(%open, to=7)",
        "  %any.number = ReduceMax(%open.number, keepdims=0)",
        "  %any = Cast(%any.number, to=9)",
        "  break unless %any",
        "  %p.0 = Identity(%p)",
        *(f"  {line}" for line in sweep),
        f"  %p.kept: {known} = Where(%open, %p.{classes}, %p)",
        "  next %p = %p.kept",
        "} -> (%probabilities = %p)",
    ]


def _sweep_lines(t: int, classes: int) -> list[str]:
    """Move the probability of class `t` to the minimum of the form, and scale all to the sum 1."""
    unit = [float(number == t) for number in range(classes)]
    following = t + 1
    return [
        f"%row.{t} = Gather(%Q, {t}, axis=1)",
        f"%own.{t} = Gather(%row.{t}, [{t}], axis=1)",
        f"%slope.{t} = Gather(%Qp.{t}, [{t}], axis=1)",
        f"%short.{t} = Sub(%pQp.{t}, %slope.{t})",
        f"%move.{t} = Div(%short.{t}, %own.{t})",
        f"%sum.{t} = Add(%move.{t}, 1)",
        f"%step.{t} = Mul(%move.{t}, {unit})",
        f"%moved.{t} = Add(%p.{t}, %step.{t})",
        f"%p.{following} = Div(%moved.{t}, %sum.{t})",
        f"%bend.{t} = Mul(%move.{t}, %own.{t})",
        f"%twice.{t} = Mul(%slope.{t}, 2)",
        f"%gain.{t} = Add(%bend.{t}, %twice.{t})",
        f"%gained.{t} = Mul(%move.{t}, %gain.{t})",
        f"%form.{t} = Add(%pQp.{t}, %gained.{t})",
        f"%sum2.{t} = Mul(%sum.{t}, %sum.{t})",
        f"%pQp.{following} = Div(%form.{t}, %sum2.{t})",
        f"%turn.{t} = Mul(%move.{t}, %row.{t})",
        f"%turned.{t} = Add(%Qp.{t}, %turn.{t})",
        f"%Qp.{following} = Div(%turned.{t}, %sum.{t})",
    ]


_OF_MAPS = "its operand is a map"

for _name, _formula in (
    ("LinearClassifier", linear_classifier_formula),
    ("LinearRegressor", linear_regressor_formula),
    ("Normalizer", normalizer_formula),
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
    op("ai.onnx.ml.LabelEncoder", since=_since, infer=_label_types(_since), vjp=nothing)(
        _label_encoder(_since)
    )


@op("ai.onnx.ml.OneHotEncoder", infer=types_by_onnx("ai.onnx.ml.OneHotEncoder", 1), vjp=nothing)
def one_hot_encoder(
    xp: ModuleType, x: Any, *, cats_int64s: Any = None, cats_strings: Any = None, zeros: int = 1
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
