"""SVMRegressor and SVMClassifier as graph text: the kernel of each support vector, and its weighted sums.

The classifier compares each two classes.  With `prob_a`, it finds the probabilities of all classes that fit
those of the pairs best, by the iteration of Wu, Lin and Weng (2004), "Probability Estimates for Multi-class
Classification by Pairwise Coupling".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops.feature_formula import model_dtype
from nncdbg.engine.ops.formula import cast, formula_text, sizes_at, type_at
from nncdbg.engine.ops.scores_formula import labels_constant, transform_lines
from nncdbg.engine.ops.types import Attributes, Types
from nncdbg.ir.records import TensorType

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
    lines += _label_lines(attributes, classes, probable)
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


def _label_lines(attributes: Attributes, classes: int, probable: bool) -> list[str]:
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
        [[float(cell == pair) for cell in _cells(classes)] for pair in order]
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


def _cells(classes: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(classes) for j in range(classes)]


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
