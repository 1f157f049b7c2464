"""Causes in a training step of PyTorch: in the forward pass, in the backward pass and in the optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from nncdbg.dtypes import name_of
from nncdbg.engine.ops.aten.operators import facts_of
from nncdbg.engine.ops.causes import WHERE_TRAP, Birth, Cause, Made, Maker
from nncdbg.engine.ops.causes.evidence import (
    at,
    count,
    decimal,
    element,
    ends,
    is_float,
    largest,
    overflows,
    shown,
    spelled,
    spot,
)
from nncdbg.engine.ops.causes.torch_operators import computed_in, described, paired, with_numbers
from nncdbg.stats.inspection import bad
from nncdbg.text.counting import elements
from nncdbg.text.torch_names import autograd_nodes, of_other_library

HALF = ("f16", "bf16")


def in_forward(birth: Birth) -> Cause | None:
    found = described(birth)
    if found is None:
        found = overflow(birth)
    if found is None:
        return None
    if found.name in ("zero divided by zero", "division by zero") and _is_deviation(maker_of(birth, 1)):
        return Cause("zero variance", f"the deviation {spelled(birth, 1)} is 0: {found.evidence}", "")
    if found.name == "overflow" and name_of(birth.output.dtype) in HALF:
        return replace(found, name="overflow of half precision")
    return found


def overflow(birth: Birth) -> Cause | None:
    """Return an overflow if all operands are finite and large for the type of the result."""
    numbers = [each for each in birth.inputs if is_float(each)]
    if birth.kind != "inf" or not numbers or not is_float(birth.output):
        return None
    if not all(np.isfinite(each).all() for each in numbers):
        return None
    most = max((float(np.abs(each).max()) for each in numbers if each.size), default=0.0)
    if most * most * 64 < float(largest(birth.output.dtype)):
        return None
    evidence = f"the operands of {birth.op} reach {shown(most)}, and {ends(birth.output.dtype)}"
    return Cause("overflow", evidence, "")


def maker_of(birth: Birth, number: int) -> Made | None:
    return birth.makers[number] if number < len(birth.makers) else None


def _is_deviation(maker: Made | None) -> bool:
    """Return whether a value is a standard deviation or a variance, moved and nothing else."""
    while maker is not None and (facts_of(maker.op).views or facts_of(maker.op).copies):
        maker = maker.of[0] if maker.of else None
    return maker is not None and facts_of(maker.op).cause == "deviation"


def here(birth: Birth) -> str:
    """Describe the elements of the operands at the first bad element of the result."""
    index = spot(birth)
    found = []
    for number, each in enumerate(birth.inputs):
        if is_float(each) and each.ndim <= len(index):
            try:
                value = element(each, index)
            except IndexError:
                continue
            found.append(f"{spelled(birth, number)} is {shown(value)}")
    return f"{', '.join(found)}{at(index)}" if found else f"element{at(index)} of the result is {birth.kind}"


_MASKS = {
    "WhereBackward": "torch.where",
    "MaskedFillBackward": "masked_fill",
    "MaskedScatterBackward": "masked_scatter",
    "MaskedSelectBackward": "masked_select",
    "IndexPutBackward": "index_put",
    "IndexBackward": "x[index]",
}
"""Autograd nodes of operators that select elements by a mask or an index, and how the user writes them.

The formulas of other nodes use the same operators: a norm masks its own gradient at 0.
"""


def autograd_node(birth: Birth) -> str:
    """Return the autograd node that runs a statement; empty outside of a backward pass."""
    last = birth.node.rpartition(" ")[2]
    return last if "backward" in birth.graph and ("Backward" in last or last == "AccumulateGrad") else ""


def autograd_kind(birth: Birth) -> str:
    """Return the autograd node without its number: `LogBackward`; empty outside of a backward pass."""
    return autograd_node(birth).rstrip(_DIGITS)


_DIGITS = "0123456789"


def _mask_of(made: Made) -> str:
    """Return the user's mask that a statement of a backward pass derives; empty for another statement.

    In a double backward pass, the name of the node begins with the one whose formula it derives.
    """
    nodes = autograd_nodes(made.node)
    return _MASKS.get(nodes[0].rstrip(_DIGITS), "") if len(nodes) == 1 else ""


def in_backward(birth: Birth) -> Cause | None:
    node = autograd_node(birth)
    if not node:
        return None
    trap = _where_trap(birth, node)
    if trap is not None:
        return trap
    kind = autograd_kind(birth)
    if kind in _AT_ZERO and birth.kind in ("nan", "inf"):
        found = _at_zero(birth, kind)
        if found is not None:
            return found
    if kind in ("AcosBackward", "AsinBackward", "AcoshBackward", "AtanhBackward"):
        function = kind.removesuffix("Backward").lower()
        evidence = f"the derivative of {function} is infinite at the end of its domain: {here(birth)}"
        inside = "clamp_min(1 + eps)" if function == "acosh" else "clamp(-1 + eps, 1 - eps)"
        hint = f"keep the argument of torch.{function} inside its domain with {inside}"
        return Cause("outside of the domain", evidence, hint)
    found = in_forward(birth)
    if found is not None and (found.is_overflow and found.name != "overflow of the exponential"):
        return _gradient_overflow(birth, found)
    return found


def _where_trap(birth: Birth, node: str) -> Cause | None:
    """Return the cause for a NaN from a gradient of 0 of the branch that a mask did not take."""
    divides = facts_of(birth.op).cause == "division"
    if birth.kind != "nan" or not (divides or _multiplies(birth)):
        return None
    index = spot(birth)
    pair = paired(birth)
    if pair is None:
        return None
    numbers = [element(each, index) for each in pair.inputs]
    if 0 not in numbers:
        return None
    gradient = numbers.index(0)
    masked = next(filter(None, map(_mask_of, _ancestors(maker_of(birth, gradient)))), "")
    if not masked:
        return None
    words = f"{shown(numbers[0])} {'/' if divides else '*'} {shown(numbers[1])}"
    evidence = (
        f"the gradient {spelled(birth, gradient)}{at(index)} is 0, because {masked} does not "
        f"take this branch in forward; {node} computes {words}"
    )
    hint = (
        "mask the argument as well: y = f(torch.where(mask, x, safe)), then torch.where(mask, y, other), so "
        "that the branch not taken has a finite derivative"
    )
    return Cause(WHERE_TRAP, evidence, hint)


_AT_ZERO = {
    "SqrtBackward": ("square root at zero in backward", "sqrt", "add eps inside the root: (x + eps).sqrt()"),
    "RsqrtBackward": ("square root at zero in backward", "rsqrt", "add eps inside: (x + eps).rsqrt()"),
    "NormBackward": ("norm at zero in backward", "norm", "use (x.pow(2).sum() + eps).sqrt()"),
    "LinalgVectorNormBackward": ("norm at zero in backward", "norm", "use (x.pow(2).sum() + eps).sqrt()"),
    "PowBackward": ("power at zero in backward", "pow", "add eps to the base, or use x.clamp_min(eps)"),
}
"""Autograd nodes with an infinite derivative at 0: the cause, the function, and the fix."""


def _at_zero(birth: Birth, kind: str) -> Cause | None:
    name, function, hint = _AT_ZERO[kind]
    index = spot(birth)
    rule = facts_of(birth.op).cause
    if rule == "division":
        pair = paired(birth)
        if pair is None or element(pair.inputs[1], index) != 0:
            return None
        zero, name_of_zero = pair.inputs[1], spelled(pair, 1)
    elif rule in ("power", "reciprocal", "rsqrt") and element(birth.inputs[0], index) == 0:
        zero, name_of_zero = birth.inputs[0], spelled(birth, 0)
    else:
        return None
    evidence = f"the derivative of {function} at 0 is infinite: {here(birth)}"
    if zero.size > 1:
        evidence += f"; {elements(count(zero == 0), zero.size, name_of_zero)} 0"
    return Cause(name, evidence, hint)


def _gradient_overflow(birth: Birth, found: Cause) -> Cause:
    if name_of(birth.output.dtype) == "f16" or found.name in (
        "cast out of range",
        "overflow of half precision",
    ):
        return replace(found, name="gradient overflow")
    products = sum(map(_multiplies, _ancestors(maker_of(birth, 0) or maker_of(birth, 1))))
    if _multiplies(birth) and products >= _LONG_PRODUCT:
        return replace(found, name="overflow of a product")
    return found


def _multiplies(statement: Birth | Made) -> bool:
    return facts_of(statement.op).cause == "multiplication"


_LONG_PRODUCT = 3
"""Products one after another from which an overflow is that of a long product."""


def _ancestors(maker: Made | None) -> Iterator[Made]:
    if maker is not None:
        yield maker
        for each in maker.of:
            yield from _ancestors(each)


_CLIP = "clip gradients with torch.nn.utils.clip_grad_norm_, and check weight_decay and the learning rate"
_LOWER_RATE = "lower the learning rate, or clip gradients with torch.nn.utils.clip_grad_norm_"
_RATE = frozenset({"lr", "alpha", "value", "scalars"})
"""Arguments that are a learning rate if the operator changes its first operand."""


def in_optimizer(birth: Birth) -> Cause | None:
    if not birth.graph.startswith("optimizer"):
        return None
    rule = facts_of(birth.op).cause
    option = next(_bad_options(birth), None)
    if option is not None:
        return _bad_option(birth, *option)
    added = rule in ("addition", "subtraction") and birth.attributes.get("alpha") is not None
    if added and birth.kind == "inf":
        return _too_large(birth)
    found = described(birth)
    if _divides_by_zero(birth, found):
        return _division(birth, found)
    found = found or overflow(birth)
    if found is not None and _is_multiplied_by_rate(birth):
        return Cause("learning rate too large", f"from the learning rate, {found.evidence}", _LOWER_RATE)
    if found is not None and found.name in ("overflow", "division by zero", "zero divided by zero"):
        return replace(found, name="overflow in the optimizer", hint=_CLIP)
    return found


def _bad_options(birth: Birth) -> Iterator[tuple[str, float]]:
    """Yield the numbers among the arguments that are no finite numbers of the type of the result.

    In an operator on lists, the number of the element comes first.
    """
    if not is_float(birth.output):
        return
    most = float(ml_dtypes.finfo(birth.output.dtype).max)
    for key, value in birth.attributes.items():
        given = value if isinstance(value, tuple) else (value,)
        for each in (*given[birth.index : birth.index + 1], *given):
            if isinstance(each, float) and not abs(each) <= most:
                yield key, each


def _bad_option(birth: Birth, key: str, value: float) -> Cause:
    evidence = f"{key} of {birth.op} is {shown(value)}"
    if math.isfinite(value):
        evidence += f", and {ends(birth.output.dtype)}"
    if key in _RATE and _is_in_place(birth):
        evidence = f"from the learning rate, {evidence}"
        return Cause("learning rate too large", evidence, "check the schedule: scheduler.get_last_lr()")
    hint = "check the options of the optimizer: its learning rate, weight_decay and eps"
    return Cause("overflow in the optimizer", evidence, hint)


def _is_in_place(birth: Birth) -> bool:
    return birth.op.split(".")[1].endswith("_")


def _is_multiplied_by_rate(birth: Birth) -> bool:
    """Return whether a product with a number, the larger factor, is Inf: a step is made of a moment so.

    In place, the number is a decay of a weight or moment.
    """
    number = birth.attributes.get("other")
    if birth.kind != "inf" or not _multiplies(birth) or number is None or _is_in_place(birth):
        return False
    return bool(abs(number) > abs(element(birth.inputs[0], spot(birth))))


def _too_large(birth: Birth) -> Cause | None:
    pair = paired(birth)
    if pair is None:
        return None
    rate = float(birth.attributes["alpha"])
    norms = [float(np.linalg.norm(each.astype(np.float64))) for each in pair.inputs]
    index = spot(birth)
    terms = [element(each, index) for each in pair.inputs]
    evidence = (
        f"{shown(terms[0])} + {shown(rate)} * {shown(terms[1])}{at(index)}; the norm of "
        f"{spelled(pair, 0)} is {shown(norms[0])}, that of {spelled(pair, 1)} {shown(norms[1])}"
    )
    if _is_in_place(birth):
        # The gradient comes with a weight of its own, which is no learning rate, in a momentum.
        if rate < 0:
            return Cause("learning rate too large", evidence, _LOWER_RATE)
        return Cause("overflow in the optimizer", evidence, _CLIP)
    hint = "lower weight_decay, or clip gradients with torch.nn.utils.clip_grad_norm_"
    return Cause("overflow in the optimizer", evidence, hint)


_DIVISIONS = frozenset({"division", "quotient_added", "reciprocal", "rsqrt"})
"""Rules of operators that divide."""


def _divides_by_zero(birth: Birth, found: Cause | None) -> bool:
    """Return whether an update divides by 0, as the rule of its operator says, or as a fused one with eps."""
    if facts_of(birth.op).updates:
        eps = birth.attributes.get("eps")
        return eps is not None and not birth.output.dtype.type(eps)
    return facts_of(birth.op).cause in _DIVISIONS and found is not None and "by zero" in found.name


def _division(birth: Birth, found: Cause | None) -> Cause:
    dtype = name_of(birth.output.dtype)
    evidence = found.evidence if found is not None else f"eps of {birth.op} is 0 in {dtype}; {here(birth)}"
    if birth.kind == "inf" and dtype in HALF:
        hint = "keep parameters and moments in f32, or use eps of 1e-4 or more"
        evidence += f"; squares of small gradients and a small eps are 0 in {dtype}"
        return Cause("underflow in the optimizer", evidence, hint)
    hint = "use eps above 0 in the optimizer (1e-8 is usual): a gradient of 0 gives 0 / 0"
    return Cause("division in the optimizer", evidence, hint)


def cause(birth: Birth) -> Cause | None:
    """Return why an operator of PyTorch gave NaN or Inf; None if no rule explains it."""
    birth = with_numbers(birth)
    if facts_of(birth.op).allocates:
        many = count(bad(birth.output, birth.kind))
        size = birth.output.size
        evidence = f"{elements(many, size)} read before {'it is' if many == 1 else 'they are'} written"
        return Cause("uninitialized read", evidence, "")
    given = _given_number(birth) or _too_large_number(birth, computed_in(birth))
    if given is not None:
        return given
    found = in_optimizer(birth) or in_backward(birth) or in_forward(birth)
    # Some operators round a number to the type of their tensors first, others do not.
    return found or _too_large_number(birth, birth.output.dtype)


def _given_number(birth: Birth) -> Cause | None:
    """Return the cause for a NaN or Inf that is written in the program, as in ``fill_value=nan``."""
    if birth.graph.startswith("optimizer"):
        return None
    test = math.isnan if birth.kind == "nan" else math.isinf
    for key, value in birth.attributes.items():
        if isinstance(value, float) and test(value):
            hint = (
                "use a finite number: an infinity works as a mask only in torch.where and scores of softmax"
            )
            return Cause("bad parameter", f"{key} of {birth.op} is {value}", hint)
    return None


_NUMBERS = frozenset({"other", "self", "alpha", "beta", "value", "scalar", "exponent", "fill_value"})
"""Arguments that are a number in a formula."""


def _too_large_number(birth: Birth, dtype: np.dtype[Any]) -> Cause | None:
    """Return the cause for a number in the program that is infinite in a type; None if there is none."""
    if birth.graph.startswith("optimizer") or not is_float(birth.output):
        return None
    for key, value in birth.attributes.items():
        number = type(value) in (int, float) and key in _NUMBERS and math.isfinite(value)
        if number and overflows(decimal(value), dtype):
            name = "overflow of half precision" if name_of(dtype) in HALF else "bad parameter"
            evidence = f"{key} of {birth.op} is {shown(value)}, and {ends(dtype)}"
            return Cause(name, evidence, "use a smaller number, or f64")
    return None


def is_legal(birth: Birth, made_by: Sequence[Maker]) -> bool:
    """Return whether infinities are intended: given as a number (``value=-inf``), or by definition.

    The numbers of an optimizer are its options, in which an infinity is a mistake.
    """
    if birth.graph.startswith("optimizer"):
        return False
    numbers = [value for value in birth.attributes.values() if isinstance(value, float)]
    if any(math.isinf(value) for value in numbers):
        return True
    return facts_of(birth.op).legal_infinities and birth.index > 0


def hint(birth: Birth, found: Cause) -> str:
    """Return the usual fix; empty if the rule that found the cause gives a better one."""
    dtype = name_of(birth.output.dtype)
    return _general(birth, found, dtype).format_map(_SMALLEST | _OF_HALF.get(dtype, {}))


_SMALLEST = {"tiny": "1e-7", "unit": "1e-6", "top": "80"}
"""A number above 0 with a finite reciprocal, one that changes 1, and one with a finite exponential."""

_OF_HALF = {"f16": {"tiny": "1e-4", "unit": "1e-3", "top": "10"}, "bf16": {"unit": "1e-2"}}
"""Those of half precision that differ."""


def _general(birth: Birth, found: Cause, dtype: str) -> str:
    """Return the fix with places for numbers of the dtype."""
    kind = autograd_kind(birth)
    if kind in _BY_NODE and found.name in _DIVISION_CAUSES:
        return _BY_NODE[kind]
    by_rule = _BY_RULE.get((facts_of(birth.op).cause, found.name), "")
    if by_rule or found.name not in _BY_CAUSE:
        return by_rule
    if found.name in ("overflow of half precision", "gradient overflow") and dtype != "f16":
        return _BY_CAUSE["overflow"]
    if found.name == "cast out of range" and dtype != "f16":
        return "keep this value in f64, or scale it before the cast"
    if found.name == "outside of the domain" and "torch" in found.hint:
        return ""
    if found.name == "unknown" and of_other_library(birth.op):
        return _NO_OPERATORS
    return _BY_CAUSE[found.name]


_NO_OPERATORS = (
    "print the operands, and check the implementation of this operator: it computes without operators of "
    "PyTorch, so `step` cannot enter it"
)
_DIVISION_CAUSES = ("division by zero", "zero divided by zero")
_LOG = "keep the argument above 0 in forward: torch.log(x.clamp_min({tiny}))"
_DISTINCT = (
    "the gradient of singular vectors and eigenvectors needs distinct values: use only the values, as of "
    "torch.linalg.svdvals and eigvalsh, or make the matrix less symmetric"
)
_SINGULAR = "add a multiple of the identity: A + 1e-6 * torch.eye(n)"
_DIRECTION = "a row of zeros has no direction: initialize the weight with other numbers than 0"
_POLE = "keep the argument above 0, such as F.softplus(x) + {unit}"
_INSIDE = "keep the argument inside its domain: x.clamp(-1 + {unit}, 1 - {unit})"
_LOGIT = "use torch.logit(p, eps={unit}), or the logits from which p is computed"
_NO_TARGET = (
    'skip a batch without targets, or use reduction="sum" and divide by (target != ignore_index).sum()'
    ".clamp_min(1)"
)

_BY_NODE = {
    **dict.fromkeys(("LogBackward", "Log2Backward", "Log10Backward", "XlogyBackward"), _LOG),
    "Log1PBackward": "keep the argument above -1 in forward: torch.log1p(x.clamp_min(-1 + {unit}))",
    **dict.fromkeys(("LinalgSvdBackward", "LinalgEighBackward", "LinalgEigBackward"), _DISTINCT),
    **dict.fromkeys(("StdBackward", "StdMeanBackward"), "use eps inside the root: (x.var() + eps).sqrt()"),
    **dict.fromkeys(("HypotBackward", "Atan2Backward"), "add eps to one argument where both are 0"),
}
"""The usual fix of a division by zero in the formula of a gradient: the division is not in the script."""

_BY_RULE = {
    ("likelihood", "zero divided by zero"): _NO_TARGET,
    ("likelihood_backward", "zero divided by zero"): _NO_TARGET,
    ("weighted_norm", "zero divided by zero"): _DIRECTION,
    ("weighted_norm_backward", "zero divided by zero"): _DIRECTION,
    ("product_with_logarithm", "log of a negative number"): "pass probabilities; F.kl_div takes "
    "log_target=True for their logarithms",
    ("log1p", "log of zero"): "use torch.log1p(x.clamp_min(-1 + {unit}))",
    ("log1p", "log of a negative number"): "find why the argument is below -1, or use "
    "x.clamp_min(-1 + {unit})",
    ("logit", "log of zero"): _LOGIT,
    ("logit_backward", "outside of the domain"): _LOGIT,
    ("acos", "outside of the domain"): f"{_INSIDE}; rounding moves a cosine or a correlation past 1",
    ("asin", "outside of the domain"): f"{_INSIDE}; rounding moves a cosine or a correlation past 1",
    ("atanh", "outside of the domain"): _INSIDE,
    ("inverse_error", "outside of the domain"): _INSIDE,
    ("acosh", "outside of the domain"): "use x.clamp_min(1 + {unit})",
    ("logit", "outside of the domain"): "pass probabilities to logit",
    ("gamma", "outside of the domain"): _POLE,
    **{(rule, "division by zero"): _SINGULAR for rule in ("of_matrix", "of_factors", "triangular")},
    ("of_matrix", "log of zero"): _SINGULAR,
    ("of_negative_determinant", "log of a negative number"): "use torch.linalg.slogdet(A).logabsdet for the "
    "logarithm of its magnitude; a covariance A must be positive definite",
}
"""The usual fix by rule (`OperatorFacts.cause`) and cause, where that of the cause alone is too general."""

_BY_CAUSE = {
    "log of zero": "use torch.log(x.clamp_min({tiny})), F.log_softmax for log(softmax), or F.logsigmoid for "
    "log(sigmoid)",
    "log of a negative number": "find why the argument is negative, or use x.clamp_min({tiny})",
    "division by zero": "add eps to the divisor, or replace it with torch.where before the division",
    "zero divided by zero": "add eps to the divisor, or replace it with torch.where before the division",
    "square root of a negative number": "use x.clamp_min({tiny}) before the root; rounding makes "
    "E[x^2] - E[x]^2 and expanded distances negative",
    "power of a negative number": "use x.clamp_min({tiny}) before the power",
    "power of zero": "add eps to the base",
    "overflow of the exponential": "subtract the maximum first, as torch.logsumexp and F.softmax do, or use "
    "x.clamp_max({top})",
    "empty reduction": "skip the term if no element is selected: `if selected.numel()`, or divide the sum by "
    "count.clamp_min(1)",
    "variance of one element": "use correction=0, skip batches of one element, or set drop_last=True in the "
    "DataLoader",
    "fully masked row": "leave one key of each row unmasked, or use masked_fill(mask, -1e4) instead of -inf",
    "zero times infinity": "find the statement where the infinity originates; for a mask, use torch.where or "
    "masked_fill instead of a product",
    "zero variance": "use eps above 0, inside the root: (var + eps).sqrt()",
    "infinity minus infinity": "find the statement where the first infinity originates",
    "cast out of range": "keep this value in f32 or bf16, or scale it before the cast",
    "overflow of half precision": "use bf16, or compute this layer in f32 with torch.autocast(..., "
    "enabled=False)",
    "outside of the domain": "find the statement where the value originates, or clamp the argument",
    "infinity divided by infinity": "find the statement where the first infinity originates",
    "unknown": "print the operands at this statement, or enter it with `step`",
    "overflow": "normalize or clip the values",
    "overflow of a product": "work with sums of logarithms, or normalize the factors; clip gradients with "
    "torch.nn.utils.clip_grad_norm_",
    "uninitialized read": "use torch.zeros instead of torch.empty, or write each element before it is read",
    "gradient overflow": "use torch.amp.GradScaler and scaler.step(optimizer), which skips such steps, or a "
    "smaller loss scale",
}
"""The usual fix by the name of the cause."""
