"""PyTorch's operators by the rules of the other ops: each is described as the op with the same formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from nncdbg.engine.ops.aten.operators import BATCH_NORM_WITHOUT_STATES, EQUAL, SLOGDET, facts_of
from nncdbg.engine.ops.causes import Birth, Cause, layers, pointwise, rule_of, sums
from nncdbg.engine.ops.causes.evidence import (
    EXACT,
    ArgumentName,
    at,
    cause_of_number,
    counted,
    decimal,
    element,
    is_float,
    part,
    shown,
    spelled,
    spot,
)
from nncdbg.engine.ops.declaration import CauseRule
from nncdbg.engine.ops.precision import is_narrow
from nncdbg.ir.records import Array
from nncdbg.text.counting import counted as number_of
from nncdbg.text.torch_names import OPERAND, base_name

_OPSET = 21


def as_op(birth: Birth, op: str, inputs: list[Any] | None = None, **attributes: Any) -> Birth:
    """Return the statement as one of an ONNX op with these operands and attributes."""
    return replace(
        birth,
        op=op,
        opset=_OPSET,
        attributes=attributes,
        inputs=birth.inputs if inputs is None else inputs,
        makers=(),
    )


def with_numbers(birth: Birth) -> Birth:
    """Return the statement with the numbers of other statements, its last operands, in its attributes.

    Their places are marked by ``"?"`` in the text: ``aten.div.Tensor(%x, _, %n, other="?")``.
    """
    count = sum(_marks(value) for value in birth.attributes.values())
    if not count:
        return birth
    first = len(birth.inputs) - count
    numbers = iter(each.item() for each in birth.inputs[first:])
    attributes = {name: _filled(value, numbers) for name, value in birth.attributes.items()}
    return replace(birth, attributes=attributes, inputs=birth.inputs[:first], names=birth.names[:first])


def _marks(value: Any) -> int:
    return value.count(OPERAND) if isinstance(value, tuple) else int(value == OPERAND)


def _filled(value: Any, numbers: Iterator[Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(next(numbers) if each == OPERAND else each for each in value)
    return next(numbers) if value == OPERAND else value


def operand(birth: Birth, number: int, name: str = "") -> Any:
    """Return a tensor, or the number given for it in the attribute `name`, as an array; None if omitted."""
    given = birth.attributes.get(name)
    if given is not None:
        return np.asarray(given, computed_in(birth))
    return birth.inputs[number] if number < len(birth.inputs) else None


def paired(birth: Birth, second: str = "other") -> Birth | None:
    """Return the statement with its two operands; either may be a number in `self` or `second`.

    In an operator on a list of tensors, they are those of one element.  None without a second operand.
    """
    given = birth.attributes
    if given.get("self") is not None:
        return _two(birth, _number(birth, "self"), _tensor(birth, len(birth.inputs) - 1))
    if given.get(second) is not None:
        return _two(birth, _tensor(birth, 0), _number(birth, second))
    in_list = next((value for key, value in given.items() if key.startswith("n_") and value), 0)
    first = birth.index if in_list else 0
    for key in _OF_LISTS:
        if in_list and given.get(key) is not None:
            return _two(birth, _tensor(birth, first), _number(birth, key))
    other = first + (in_list or 1)
    return _two(birth, _tensor(birth, first), _tensor(birth, other)) if other < len(birth.inputs) else None


_OF_LISTS = ("scalar", "scalars", "exponent", "value")
"""Names of the number in operators on a list of tensors."""

_Operand: TypeAlias = "tuple[Any, str]"
"""An operand, and its name."""


def _two(birth: Birth, first: _Operand, second: _Operand) -> Birth:
    return replace(birth, inputs=[first[0], second[0]], names=[first[1], second[1]])


def _tensor(birth: Birth, number: int) -> _Operand:
    return birth.inputs[number], birth.names[number] if number < len(birth.names) else ""


def _number(birth: Birth, name: str) -> _Operand:
    value = birth.attributes[name]
    value = value[birth.index] if isinstance(value, tuple) else value
    return np.asarray(value, computed_in(birth)), ArgumentName(name, value)


def computed_in(birth: Birth) -> np.dtype[Any]:
    """Return the type that an operator has for numbers among its arguments: f32 for half precision."""
    dtype = birth.output.dtype
    return np.dtype(np.float32) if is_narrow(dtype) else dtype


def product_with_logarithm(birth: Birth) -> Cause | None:
    """`xlogy`: x * log(y), and 0 where x is 0."""
    pair = paired(birth)
    if pair is None:
        return None
    y = pair.inputs[1]
    number = element(y, spot(birth))
    if number == 0:
        return Cause("log of zero", counted(pair, 1, y == 0, "0"), "")
    if number < 0:
        return Cause("log of a negative number", counted(pair, 1, y < 0, "negative"), "")
    return None


def power_of_two(birth: Birth) -> Cause | None:
    two = np.asarray(2, birth.output.dtype)
    return pointwise.power(as_op(birth, "Pow", [two, birth.inputs[0]]))


def gamma(birth: Birth) -> Cause | None:
    """`lgamma`, `digamma` and `polygamma` have poles at 0 and at the negative integers."""
    x = birth.inputs[-1]
    poles = (x <= 0) & (x == np.floor(x))
    if not poles[spot(birth)]:
        return None
    found = counted(birth, len(birth.inputs) - 1, poles, "0 or a negative integer")
    return Cause("outside of the domain", f"{base_name(birth.op)} is infinite there: {found}", "")


def inverse_error(birth: Birth) -> Cause | None:
    x = birth.inputs[0]
    outside = np.abs(x) >= 1
    if not outside[spot(birth)]:
        return None
    return Cause("outside of the domain", counted(birth, 0, outside, "outside of (-1, 1)"), "")


def logit_backward(birth: Birth) -> Cause | None:
    x = birth.inputs[1]
    outside, eps = (x <= 0) | (x >= 1), birth.attributes.get("eps")
    if eps not in (None, 0) or not outside[spot(birth)]:
        return None
    found = counted(birth, 1, outside, "outside of (0, 1)")
    given = "" if eps is None else f" with eps={eps}"
    return Cause("outside of the domain", f"the derivative of logit is infinite there{given}: {found}", "")


def of_matrix(birth: Birth) -> Cause | None:
    """The inverse, solution or determinant of a singular matrix."""
    return _singular(birth, birth.inputs[0], "")


def of_factors(birth: Birth) -> Cause | None:
    """`linalg_lu_solve`, whose first operand has both triangular factors."""
    return _singular(birth, np.triu(birth.inputs[0]), "the factor U of ")


def _singular(birth: Birth, matrices: Array, what: str) -> Cause | None:
    if not np.isfinite(matrices).all():
        return None
    index = () if birth.output.ndim < matrices.ndim - 2 else spot(birth)[: matrices.ndim - 2]
    matrix = matrices[index].astype(np.float64)
    # Rounding in the type of the matrix makes pivots 0.
    size, step = matrix.shape[-1], float(ml_dtypes.finfo(matrices.dtype).eps)
    rank = int(np.linalg.matrix_rank(matrix, tol=step * size * np.linalg.norm(matrix, 2)))
    if rank == size:
        return None
    name = part(birth, 0, [*index, slice(None), slice(None)])
    evidence = f"{what}{name} is singular: its rank is {rank} of {size}"
    if base_name(birth.op) == base_name(SLOGDET):
        return Cause("log of zero", f"{evidence}, so its determinant is 0", "")
    return Cause("division by zero", evidence, "")


def of_negative_determinant(birth: Birth) -> Cause | None:
    """`where` in `torch.logdet`, which selects NaN where the sign of a determinant is -1."""
    test = birth.makers[0] if birth.makers else None
    if test is None or test.op != EQUAL or not test.of:
        return None
    sign = test.of[0]
    if birth.kind != "nan" or sign is None or sign.op != SLOGDET:
        return None
    negative = np.broadcast_to(birth.inputs[0], birth.output.shape)
    if not negative[spot(birth)]:
        return None
    evidence = f"the determinant of {sign.spelled(0)}{at(spot(birth))} is negative"
    if negative.size > 1:
        evidence += f"; {int(negative.sum())} of {negative.size} determinants are"
    return Cause("log of a negative number", evidence, "")


def triangular(birth: Birth) -> Cause | None:
    matrix = birth.inputs[0]
    diagonal = np.diagonal(matrix, axis1=-2, axis2=-1)
    if birth.attributes.get("unitriangular") or not (diagonal == 0).any():
        return None
    place = [int(i) for i in np.argwhere(diagonal == 0)[0]]
    name = part(birth, 0, [*place, place[-1]])
    return Cause("division by zero", f"{name}, on the diagonal, is 0: the matrix is singular", "")


def addmm(birth: Birth) -> Cause | None:
    alpha, beta = (birth.attributes.get(key) for key in ("alpha", "beta"))
    names = [*birth.names[1:3], *birth.names[:1]]
    swapped = replace(birth, names=names)
    return sums.gemm(
        as_op(
            swapped,
            "Gemm",
            [birth.inputs[1], birth.inputs[2], birth.inputs[0]],
            transA=0,
            transB=0,
            alpha=1.0 if alpha is None else float(alpha),
            beta=1.0 if beta is None else float(beta),
        )
    )


def convolution(birth: Birth) -> Cause | None:
    given = birth.attributes
    weight = birth.inputs[1]
    rank = weight.ndim - 2
    if given.get("transposed"):
        return None
    strides, padding, dilations = (
        list(given[key]) if len(given[key]) == rank else list(given[key]) * rank
        for key in ("stride", "padding", "dilation")
    )
    return sums.conv(
        as_op(
            birth,
            "Conv",
            strides=strides,
            pads=padding * 2,
            dilations=dilations,
            group=given["groups"],
            auto_pad="NOTSET",
            kernel_shape=list(weight.shape[2:]),
        )
    )


def attention(birth: Birth) -> Cause | None:
    """Fused attention with a mask that excludes every key."""
    mask = next((each for each in birth.inputs[3:5] if each is not None), None)
    if birth.kind != "nan" or mask is None or mask.ndim < 2:
        return None
    closed = np.asarray((~mask if mask.dtype == np.bool_ else mask == -math.inf).all(axis=-1))
    if not closed.any():
        return None
    rows = f"{int(closed.sum())} of {closed.size} rows of the mask exclude every key"
    return Cause("fully masked row", rows, layers.MASKED)


def _epsilon(birth: Birth) -> dict[str, Any]:
    """Return the argument `eps` under the names of both libraries: evidence has the one of PyTorch."""
    return {"epsilon": birth.attributes["eps"], "eps": birth.attributes["eps"]}


def layer_norm(birth: Birth) -> Cause | None:
    axis = birth.inputs[0].ndim - len(birth.attributes["normalized_shape"])
    named = as_op(birth, "LayerNormalization", axis=axis, **_epsilon(birth))
    return layers.normalization(named)


def group_norm(birth: Birth) -> Cause | None:
    x = birth.inputs[0]
    groups = birth.attributes["group"]
    named = as_op(birth, "GroupNormalization", num_groups=groups, **_epsilon(birth))
    if x.ndim < 3:
        named = replace(named, inputs=[x[..., None], *birth.inputs[1:]], output=birth.output[..., None])
    return layers.groups(named)


def batch_norm(birth: Birth) -> Cause | None:
    training = birth.attributes.get("training", birth.op.startswith(BATCH_NORM_WITHOUT_STATES))
    named = as_op(birth, "BatchNormalization", training_mode=int(bool(training)), **_epsilon(birth))
    return layers.batch(replace(named, index=0)) if birth.index == 0 else None


_REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


def _of_no_elements(what: str) -> CauseRule:
    """Return the rule of a mean or a median, which is NaN over no elements."""

    def rule(birth: Birth) -> Cause | None:
        x = birth.inputs[0]
        empty = not x.size and birth.kind == "nan"
        return sums.empty_reduction(birth, 0, range(x.ndim), what) if empty else None

    return rule


def likelihood(birth: Birth) -> Cause | None:
    if birth.index:
        return None
    scores, targets = birth.inputs[:2]
    single = scores.ndim == 1
    given = [scores[None], targets[None]] if single else [scores, targets]
    return layers.negative_log_likelihood(
        as_op(
            birth,
            "NegativeLogLikelihoodLoss",
            [*given, *birth.inputs[2:3]],
            reduction=_REDUCTIONS[birth.attributes["reduction"]],
            ignore_index=birth.attributes["ignore_index"],
        )
    )


def likelihood_backward(birth: Birth) -> Cause | None:
    """Return the cause for a gradient that is divided by a total weight of 0."""
    total = birth.inputs[-1]
    if total.size != 1 or total.item() != 0:
        return None
    evidence = (
        f"the gradient is divided by {spelled(birth, len(birth.inputs) - 1)}, the sum of the weights: 0"
    )
    return Cause("zero divided by zero", evidence, "")


def alignment(birth: Birth) -> Cause | None:
    """CTC: a transcript that needs more time steps than its audio has no alignment.

    Equal labels in a row need a blank between them.
    """
    if birth.index or len(birth.inputs) < 2:
        return None
    lengths = [birth.attributes.get(key) for key in ("input_lengths", "target_lengths")]
    steps, labels = (
        np.asarray(birth.inputs[2 + i] if given is None else given).reshape(-1)
        for i, given in enumerate(lengths)
    )
    targets = birth.inputs[1]
    if targets.ndim == 1:
        each = np.split(targets, np.cumsum(labels)[:-1])
    else:
        each = [row[:length] for row, length in zip(targets, labels, strict=True)]
    repeats = np.array([int(np.count_nonzero(row[1:] == row[:-1])) for row in each])
    longer = labels + repeats > steps
    if not longer.any():
        return None
    first = int(longer.argmax())
    evidence = f"element {first} of the batch has {number_of(int(labels[first]), 'label')}"
    if repeats[first]:
        evidence += f" and {number_of(int(repeats[first]), 'blank')} between equal ones"
    evidence += f" for {number_of(int(steps[first]), 'time step')}"
    if longer.size > 1:
        evidence += f", as {int(longer.sum())} of {longer.size} elements do"
    hint = "remove such elements from the batch, or use zero_infinity=True"
    return Cause("bad batch", f"{evidence}: no alignment exists", hint)


def weighted_norm(birth: Birth) -> Cause | None:
    """`_weight_norm_interface`: v * g / norm(v), with one norm per index of `dim`."""
    return _of_norms(birth, birth.inputs[0], 0) if birth.kind == "nan" and birth.index == 0 else None


def weighted_norm_backward(birth: Birth) -> Cause | None:
    """The same for the gradients; the operands are the gradient, v, g and the norms."""
    return _of_norms(birth, birth.inputs[1], 1) if birth.kind == "nan" else None


def _of_norms(birth: Birth, direction: Array, number: int) -> Cause | None:
    axis = (birth.attributes.get("dim") or 0) % direction.ndim
    others = tuple(i for i in range(direction.ndim) if i != axis)
    zero = ~np.any(direction != 0, axis=others)
    if not zero.any():
        return None
    first = int(zero.argmax())
    place = ", ".join(str(first) if i == axis else ":" for i in range(direction.ndim))
    name = spelled(birth, number)
    evidence = (
        f"weight_norm divides {name}[{place}] by its norm, which is 0; {int(zero.sum())} of {zero.size} "
        f"norms {'is' if zero.sum() == 1 else 'are'} 0"
    )
    return Cause("zero divided by zero", evidence, "")


def described(birth: Birth) -> Cause | None:
    """Return the cause by the rule of the operator; None if it has none or the rule finds none."""
    name = facts_of(birth.op).cause
    rule: CauseRule | None = rule_of(f"torch_operators.{name}") if name else None
    return None if rule is None else rule(birth)


def _sum(birth: Birth, op: str) -> Cause | None:
    pair = paired(birth)
    if pair is None:
        return None
    alpha = birth.attributes.get("alpha")
    factor = 1.0 if alpha is None else float(alpha)
    if factor == 1.0:
        return pointwise.addition(as_op(pair, op))
    a, b = pair.inputs
    exact = a.astype(np.float64) if birth.output.dtype.itemsize < 8 else a
    with np.errstate(all="ignore"):
        scaled = as_op(pair, op, [exact, b.astype(np.float64) * factor])
    return pointwise.addition(scaled)


def reverse_subtraction(birth: Birth) -> Cause | None:
    """`rsub`: other - alpha * self."""
    pair = paired(birth)
    if pair is None or birth.attributes.get("alpha") not in (None, 1):
        return None
    turned = replace(pair, inputs=pair.inputs[::-1], names=pair.names[::-1])
    return pointwise.addition(as_op(turned, "Sub"))


def division(birth: Birth) -> Cause | None:
    pair = paired(birth)
    if pair is None:
        return None
    given = pair.inputs[1]
    divisor = element(given, spot(birth))
    if is_float(given) and 0 < abs(divisor) < float(ml_dtypes.finfo(given.dtype).smallest_normal):
        evidence = f"{spelled(pair, 1)}{at(spot(birth))} is {shown(divisor)}, a subnormal number"
        return Cause("division by zero", f"{evidence}: its reciprocal overflows", "")
    return pointwise.division(as_op(pair, "Div"))


def rsqrt(birth: Birth) -> Cause | None:
    x = birth.inputs[0]
    number = element(x, spot(birth))
    if number == 0:
        return Cause("division by zero", f"1 / sqrt(0): {counted(birth, 0, x == 0, '0')}", "")
    return pointwise.root(as_op(birth, "Sqrt")) if number < 0 else None


def _same(op: str, rule: CauseRule) -> CauseRule:
    return lambda birth: rule(as_op(birth, op))


def _of_first(
    op: str, rule: CauseRule, attributes: Callable[[Birth], dict[str, Any]] = lambda birth: {}, count: int = 1
) -> CauseRule:
    """Return the rule of an op over the first `count` operands, with these attributes."""
    return lambda birth: rule(as_op(birth, op, list(birth.inputs[:count]), **attributes(birth)))


def _of_pair(op: str, rule: CauseRule, second: str = "other") -> CauseRule:
    """Return the rule of an op over both operands."""

    def of_pair(birth: Birth) -> Cause | None:
        pair = paired(birth, second)
        return None if pair is None else rule(as_op(pair, op))

    return of_pair


def log1p(birth: Birth) -> Cause | None:
    x = birth.inputs[0]
    number = element(x, spot(birth))
    if number == -1:
        return Cause("log of zero", counted(birth, 0, x == -1, "-1"), "")
    return (
        Cause("log of a negative number", counted(birth, 0, x < -1, "below -1"), "") if number < -1 else None
    )


def logit(birth: Birth) -> Cause | None:
    """`logit` clips x to [eps, 1 - eps], if there is an eps."""
    x, eps = birth.inputs[0], birth.attributes.get("eps")
    number = element(x, spot(birth))
    if eps == 0 and (number <= 0 or number >= 1):
        found = counted(birth, 0, (x <= 0) | (x >= 1), "not between 0 and 1")
        return Cause("log of zero", f"logit is log(p / (1 - p)), eps={eps} clips to [0, 1], and {found}", "")
    if eps is None and number in (0, 1):
        found = counted(birth, 0, (x == 0) | (x == 1), "0 or 1")
        return Cause("log of zero", f"logit is log(p / (1 - p)), and {found}", "")
    if eps is None and (number < 0 or number > 1):
        found = counted(birth, 0, (x < 0) | (x > 1), "outside of [0, 1]")
        return Cause("outside of the domain", found, "pass probabilities to logit")
    return None


def _axes(birth: Birth) -> dict[str, Any]:
    given = birth.attributes.get("dim")
    axes = [given] if isinstance(given, int) else list(given or ())
    return {"axes": axes or None, "keepdims": int(bool(birth.attributes.get("keepdim")))}


def deviation(birth: Birth) -> Cause | None:
    """The variance, or its root, of at most `correction` elements."""
    x = birth.inputs[0]
    axes = sums.reduced_axes(as_op(birth, "ReduceMean", [x], **_axes(birth)))
    number = math.prod(x.shape[axis] for axis in axes)
    correction = birth.attributes.get("correction")
    correction = 1 if correction is None else correction
    if number > correction:
        return None
    evidence = (
        f"{spelled(birth, 0)} has {number} element{'' if number == 1 else 's'} along axes {list(axes)}, "
        f"and the variance divides by {number} - {correction:g}"
    )
    return Cause("variance of one element" if number else "empty reduction", evidence, "")


def _running(birth: Birth, op: str, rule: CauseRule) -> Cause | None:
    """Return the cause in a running sum or product along the attribute `dim`."""
    axis = np.asarray(birth.attributes["dim"])
    found = rule(as_op(birth, op, [birth.inputs[0], axis], exclusive=0, reverse=0))
    if op != "CumProd" or found is None or found.name != "overflow":
        return found
    return replace(found, name="overflow of a product")


def quotient_added(birth: Birth) -> Cause | None:
    """`addcdiv`: self + value * tensor1 / tensor2."""
    # In an operator on lists, the operands of one element are as far apart as a list is long.
    apart = next((value for key, value in birth.attributes.items() if key.startswith("n_") and value), 0)
    first = birth.index if apart else 0
    places = [first + (apart or 1) * step for step in range(3)]
    if places[-1] >= len(birth.inputs):
        return None
    index = spot(birth)
    start, dividend, divisor = (element(birth.inputs[place], index) for place in places)
    if divisor == 0:
        evidence = f"{dividend:g} / 0{at(index)}: the divisor {spelled(birth, places[2])} is 0"
        return Cause("zero divided by zero" if dividend == 0 else "division by zero", evidence, "")
    given = birth.attributes.get("value", birth.attributes.get("scalars"))
    given = given[birth.index] if isinstance(given, tuple) else given
    factor = 1.0 if given is None else float(given)
    if not all(map(math.isfinite, (start, dividend, divisor, factor))):
        return None
    step = EXACT.multiply(decimal(factor), EXACT.divide(decimal(dividend), decimal(divisor)))
    words = f"{shown(start)} + {shown(factor)} * {shown(dividend)} / {shown(divisor)}{at(index)}"
    return cause_of_number(birth, EXACT.add(decimal(start), step), words)


def activation(birth: Birth) -> Cause | None:
    """Return the cause for an activation, or its derivative, of an infinite element."""
    index = spot(birth)
    infinite = [
        f"{spelled(birth, number)}{at(index)} is {shown(element(given, index))}"
        for number, given in enumerate(birth.inputs)
        if is_float(given) and given.shape == birth.output.shape and math.isinf(element(given, index))
    ]
    if birth.kind != "nan" or not infinite:
        return None
    words = f"{' and '.join(infinite)}, and {base_name(birth.op)} multiplies it by a factor of 0"
    return Cause("zero times infinity", words, "")


# The rules of operators with the formula of an op of ONNX.
addition = partial(_sum, op="Add")
subtraction = partial(_sum, op="Sub")
multiplication = _of_pair("Mul", pointwise.multiplication)
power = _of_pair("Pow", pointwise.power, "exponent")
remainder = _of_pair("Mod", pointwise.remainder)
reciprocal = _same("Reciprocal", pointwise.reciprocal)
logarithm = _same("Log", pointwise.logarithm)
root = _same("Sqrt", pointwise.root)
exponential = _same("Exp", pointwise.exponential)
sinh = _same("Sinh", pointwise.exponential)
cosh = _same("Cosh", pointwise.exponential)
sin = _same("Sin", pointwise.of_angle)
cos = _same("Cos", pointwise.of_angle)
tan = _same("Tan", pointwise.tangent)
acos = _same("Acos", pointwise.arcsine)
asin = _same("Asin", pointwise.arcsine)
atanh = _same("Atanh", pointwise.area_tangent)
acosh = _same("Acosh", pointwise.area_cosine)
cast = _of_first("Cast", pointwise.cast)
product_of_matrices = _of_first("MatMul", sums.matmul, count=2)
softmax = _of_first("Softmax", layers.softmax, lambda birth: {"axis": birth.attributes["dim"]})
total = _of_first("ReduceSum", sums.total, _axes)
mean = _of_first("ReduceMean", sums.mean, _axes)
product = _of_first("ReduceProd", sums.reduced_product, _axes)
running_sum = partial(_running, op="CumSum", rule=sums.running_sum)
running_product = partial(_running, op="CumProd", rule=sums.running_product)
mean_loss = _of_no_elements("the mean")
median = _of_no_elements("the median")
