"""Formulas of ops of ``ai.onnx.ml`` that scale, fill and join features, and of its linear models."""

from __future__ import annotations

from collections.abc import Sequence

from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops.formula import cast, formula_text, sizes_at, type_at
from nncdbg.engine.ops.scores_formula import labels_constant, transform_lines
from nncdbg.engine.ops.types import Attributes, Types


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
    lengths = {
        "MAX": ["%length = ReduceMax(%wide, [-1])"],
        "L1": ["%length = ReduceL1(%wide, [-1])"],
        "L2": ["%length = ReduceL2(%wide, [-1])"],
    }
    lines = [
        cast("wide", "X", "f32" if dtype == "f32" else "f64"),
        *lengths[attributes["norm"]],
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
