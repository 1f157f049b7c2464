"""The usual fix of a cause in PyTorch's terms: by operator, by autograd node, or by the cause alone."""

from __future__ import annotations

from nncdbg.engine.dtypes import name_of
from nncdbg.engine.ops.aten.names import base_name, of_other_library
from nncdbg.engine.ops.causes import Birth, Cause
from nncdbg.engine.ops.causes.training_backward import autograd_kind


def hint(birth: Birth, found: Cause) -> str:
    """Return the usual fix; empty if the rule that found the cause gives a better one."""
    dtype = name_of(birth.output.dtype)
    return _general(birth, found, dtype).format_map(_NUMBERS | _OF_HALF.get(dtype, {}))


_NUMBERS = {"tiny": "1e-7", "unit": "1e-6", "top": "80"}
"""A number above 0 with a finite reciprocal, one that changes 1, and one with a finite exponential."""

_OF_HALF = {"f16": {"tiny": "1e-4", "unit": "1e-3", "top": "10"}, "bf16": {"unit": "1e-2"}}
"""Those of half precision that differ."""


def _general(birth: Birth, found: Cause, dtype: str) -> str:
    """Return the fix with places for numbers of the dtype."""
    kind = autograd_kind(birth)
    if kind in _BY_NODE and found.name in _DIVISIONS:
        return _BY_NODE[kind]
    by_operator = _BY_OPERATOR.get((base_name(birth.op), found.name), "")
    if by_operator or found.name not in _BY_CAUSE:
        return by_operator
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
_DIVISIONS = ("division by zero", "zero divided by zero")
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

_BY_OPERATOR = {
    ("nll_loss_forward", "zero divided by zero"): _NO_TARGET,
    ("nll_loss2d_forward", "zero divided by zero"): _NO_TARGET,
    ("nll_loss_backward", "zero divided by zero"): _NO_TARGET,
    ("nll_loss2d_backward", "zero divided by zero"): _NO_TARGET,
    ("_weight_norm_interface", "zero divided by zero"): _DIRECTION,
    ("_weight_norm_interface_backward", "zero divided by zero"): _DIRECTION,
    ("xlogy", "log of a negative number"): "pass probabilities; F.kl_div takes log_target=True for their "
    "logarithms",
    ("log1p", "log of zero"): "use torch.log1p(x.clamp_min(-1 + {unit}))",
    ("log1p", "log of a negative number"): "find why the argument is below -1, or use "
    "x.clamp_min(-1 + {unit})",
    ("logit", "log of zero"): _LOGIT,
    ("logit_backward", "outside of the domain"): _LOGIT,
    ("acos", "outside of the domain"): f"{_INSIDE}; rounding moves a cosine or a correlation past 1",
    ("asin", "outside of the domain"): f"{_INSIDE}; rounding moves a cosine or a correlation past 1",
    ("atanh", "outside of the domain"): _INSIDE,
    ("erfinv", "outside of the domain"): _INSIDE,
    ("acosh", "outside of the domain"): "use x.clamp_min(1 + {unit})",
    ("logit", "outside of the domain"): "pass probabilities to logit",
    **{(name, "outside of the domain"): _POLE for name in ("lgamma", "digamma", "polygamma")},
    **{
        (name, "division by zero"): _SINGULAR
        for name in (*("linalg_inv_ex", "_linalg_solve_ex", "linalg_lu_solve", "linalg_solve_triangular"),)
    },
    ("_linalg_slogdet", "log of zero"): _SINGULAR,
    ("where", "log of a negative number"): "use torch.linalg.slogdet(A).logabsdet for the logarithm of its "
    "magnitude; a covariance A must be positive definite",
}
"""The usual fix by operator and cause, where that of the cause alone is too general."""

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
