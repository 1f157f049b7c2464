"""PyTorch's operators by the rules of the other ops: each is described as the op with the same formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from nncdbg.engine.ops.aten.names import base_name
from nncdbg.engine.ops.causes import (
    Birth,
    Cause,
    arithmetic,
    casts,
    pointwise,
    reductions,
    torch_functions,
    torch_layers,
    torch_losses,
)
from nncdbg.engine.ops.causes.numbers import EXACT, is_float, shown
from nncdbg.engine.ops.causes.places import at, counted, element, spelled, spot
from nncdbg.engine.ops.causes.summing import cause_of_number, decimal
from nncdbg.engine.ops.causes.torch_operands import as_op, paired
from nncdbg.engine.ops.declaration import CauseRule


def described(birth: Birth) -> Cause | None:
    """Return the cause by the rule of the operator; None if it has none or the rule finds none."""
    rule = _RULES.get(base_name(birth.op))
    return None if rule is None else rule(birth)


def _sum(birth: Birth, op: str) -> Cause | None:
    pair = paired(birth)
    if pair is None:
        return None
    alpha = birth.attributes.get("alpha")
    factor = 1.0 if alpha is None else float(alpha)
    if factor == 1.0:
        return arithmetic.addition(as_op(pair, op))
    a, b = pair.inputs
    exact = a.astype(np.float64) if birth.output.dtype.itemsize < 8 else a
    with np.errstate(all="ignore"):
        scaled = as_op(pair, op, [exact, b.astype(np.float64) * factor])
    return arithmetic.addition(scaled)


def _add(birth: Birth) -> Cause | None:
    return _sum(birth, "Add")


def _sub(birth: Birth) -> Cause | None:
    return _sum(birth, "Sub")


def _reverse_sub(birth: Birth) -> Cause | None:
    """`rsub`: other - alpha * self."""
    pair = paired(birth)
    if pair is None or birth.attributes.get("alpha") not in (None, 1):
        return None
    turned = replace(pair, inputs=pair.inputs[::-1], names=pair.names[::-1])
    return arithmetic.addition(as_op(turned, "Sub"))


def _mul(birth: Birth) -> Cause | None:
    pair = paired(birth)
    return None if pair is None else arithmetic.multiplication(as_op(pair, "Mul"))


def _div(birth: Birth) -> Cause | None:
    pair = paired(birth)
    if pair is None:
        return None
    given = pair.inputs[1]
    divisor = element(given, spot(birth))
    if is_float(given) and 0 < abs(divisor) < float(ml_dtypes.finfo(given.dtype).smallest_normal):
        evidence = f"{spelled(pair, 1)}{at(spot(birth))} is {shown(divisor)}, a subnormal number"
        return Cause("division by zero", f"{evidence}: its reciprocal overflows", "")
    return arithmetic.division(as_op(pair, "Div"))


def _pow(birth: Birth) -> Cause | None:
    pair = paired(birth, "exponent")
    return None if pair is None else arithmetic.power(as_op(pair, "Pow"))


def _rsqrt(birth: Birth) -> Cause | None:
    x = birth.inputs[0]
    number = element(x, spot(birth))
    if number == 0:
        return Cause("division by zero", f"1 / sqrt(0): {counted(birth, 0, x == 0, '0')}", "")
    return pointwise.root(as_op(birth, "Sqrt")) if number < 0 else None


def _same(op: str, rule: CauseRule) -> CauseRule:
    def same(birth: Birth) -> Cause | None:
        return rule(as_op(birth, op))

    return same


def _log1p(birth: Birth) -> Cause | None:
    x = birth.inputs[0]
    number = element(x, spot(birth))
    if number == -1:
        return Cause("log of zero", counted(birth, 0, x == -1, "-1"), "")
    return (
        Cause("log of a negative number", counted(birth, 0, x < -1, "below -1"), "") if number < -1 else None
    )


def _logit(birth: Birth) -> Cause | None:
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


def _mean(birth: Birth) -> Cause | None:
    return reductions.mean(as_op(birth, "ReduceMean", list(birth.inputs[:1]), **_axes(birth)))


def _total(birth: Birth) -> Cause | None:
    return reductions.total(as_op(birth, "ReduceSum", list(birth.inputs[:1]), **_axes(birth)))


def _deviation(birth: Birth) -> Cause | None:
    """The variance, or its root, of at most `correction` elements."""
    x = birth.inputs[0]
    axes = reductions.reduced_axes(as_op(birth, "ReduceMean", [x], **_axes(birth)))
    number = math.prod(x.shape[axis] for axis in axes)
    correction = birth.attributes.get("correction")
    correction = 1 if correction is None else correction
    if number > correction:
        return None
    evidence = (
        f"{spelled(birth, 0)} has {number} element{'' if number == 1 else 's'} along axes {list(axes)}, "
        f"and the variance divides by {number} - {shown_correction(correction)}"
    )
    return Cause("variance of one element" if number else "empty reduction", evidence, "")


def shown_correction(correction: Any) -> str:
    return f"{correction:g}"


def _cumulative_product(birth: Birth) -> Cause | None:
    axis = np.asarray(birth.attributes["dim"])
    named = as_op(birth, "CumProd", [birth.inputs[0], axis], exclusive=0, reverse=0)
    found = reductions.running_product(named)
    if found is None or found.name != "overflow":
        return found
    return replace(found, name="overflow of a product")


def _cumulative_sum(birth: Birth) -> Cause | None:
    axis = np.asarray(birth.attributes["dim"])
    return reductions.running_sum(as_op(birth, "CumSum", [birth.inputs[0], axis], exclusive=0, reverse=0))


def _cast(birth: Birth) -> Cause | None:
    return casts.cast(as_op(birth, "Cast", list(birth.inputs[:1])))


def _quotient_added(birth: Birth) -> Cause | None:
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


def _activation(birth: Birth) -> Cause | None:
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


_ACTIVATIONS = ("gelu", "silu", "mish", "hardswish", "sigmoid", "tanh", "elu")

_RULES: Mapping[str, Callable[[Birth], Cause | None]] = {
    **{f"{name}{end}": _activation for name in _ACTIVATIONS for end in ("", "_backward")},
    "add": _add,
    "sub": _sub,
    "rsub": _reverse_sub,
    "mul": _mul,
    "div": _div,
    "true_divide": _div,
    "pow": _pow,
    "rsqrt": _rsqrt,
    "reciprocal": _same("Reciprocal", arithmetic.reciprocal),
    "log": _same("Log", pointwise.logarithm),
    "log2": _same("Log", pointwise.logarithm),
    "log10": _same("Log", pointwise.logarithm),
    "log1p": _log1p,
    "logit": _logit,
    "sqrt": _same("Sqrt", pointwise.root),
    "exp": _same("Exp", pointwise.exponential),
    "expm1": _same("Exp", pointwise.exponential),
    "sinh": _same("Sinh", pointwise.exponential),
    "cosh": _same("Cosh", pointwise.exponential),
    "tan": _same("Tan", pointwise.tangent),
    "sin": _same("Sin", pointwise.of_angle),
    "cos": _same("Cos", pointwise.of_angle),
    "acos": _same("Acos", pointwise.arcsine),
    "asin": _same("Asin", pointwise.arcsine),
    "atanh": _same("Atanh", pointwise.area_tangent),
    "acosh": _same("Acosh", pointwise.area_cosine),
    "mm": torch_layers.mm,
    "bmm": torch_layers.mm,
    "addmm": torch_layers.addmm,
    "convolution": torch_layers.convolution,
    "_softmax": torch_layers.softmax_row,
    "_log_softmax": torch_layers.softmax_row,
    "_safe_softmax": torch_layers.softmax_row,
    "_scaled_dot_product_flash_attention_for_cpu": torch_layers.attention,
    "_scaled_dot_product_efficient_attention": torch_layers.attention,
    "_scaled_dot_product_attention_math": torch_layers.attention,
    "native_layer_norm": torch_layers.layer_norm,
    "native_group_norm": torch_layers.group_norm,
    "native_batch_norm": torch_layers.batch_norm,
    "_native_batch_norm_legit": torch_layers.batch_norm,
    "cudnn_batch_norm": torch_layers.batch_norm,
    "mean": _mean,
    "sum": _total,
    "std": _deviation,
    "var": _deviation,
    "std_mean": _deviation,
    "var_mean": _deviation,
    "cumprod": _cumulative_product,
    "cumsum": _cumulative_sum,
    "nll_loss_forward": torch_losses.likelihood,
    "nll_loss2d_forward": torch_losses.likelihood,
    "_ctc_loss": torch_losses.alignment,
    "nll_loss_backward": torch_losses.likelihood_backward,
    "nll_loss2d_backward": torch_losses.likelihood_backward,
    **dict.fromkeys(
        ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "multi_margin_loss")
        + ("multilabel_margin_loss_forward", "soft_margin_loss"),
        torch_losses.mean_of_losses,
    ),
    "median": torch_losses.median,
    "nanmedian": torch_losses.median,
    "_weight_norm_interface": torch_losses.weighted_norm,
    "_weight_norm_interface_backward": torch_losses.weighted_norm_backward,
    "xlogy": torch_functions.product_with_logarithm,
    "prod": torch_functions.product,
    "exp2": torch_functions.power_of_two,
    "lgamma": torch_functions.gamma,
    "digamma": torch_functions.gamma,
    "polygamma": torch_functions.gamma,
    "erfinv": torch_functions.inverse_error,
    "logit_backward": torch_functions.logit_backward,
    "fmod": torch_functions.remainder,
    "remainder": torch_functions.remainder,
    "linalg_inv_ex": torch_functions.of_matrix,
    "_linalg_solve_ex": torch_functions.of_matrix,
    "_linalg_slogdet": torch_functions.of_matrix,
    "where": torch_functions.of_negative_determinant,
    "linalg_lu_solve": torch_functions.of_factors,
    "linalg_solve_triangular": torch_functions.triangular,
    "_to_copy": _cast,
    "addcdiv": _quotient_added,
}
"""The rule of an operator, by its name without overload."""
