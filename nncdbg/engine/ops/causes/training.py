"""Causes in a training step of PyTorch: in the forward pass, in the backward pass and in the optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from nncdbg.engine.ops.aten.names import EMPTY, base_name
from nncdbg.engine.ops.causes import Birth, Cause, Maker
from nncdbg.engine.ops.causes.places import count
from nncdbg.engine.ops.causes.training_backward import in_backward
from nncdbg.engine.ops.causes.training_forward import in_forward
from nncdbg.engine.ops.causes.training_optimizer import in_optimizer
from nncdbg.engine.text.counting import elements
from nncdbg.stats.finiteness import bad

HINTS = {
    "log of zero": "use torch.log(x.clamp_min(1e-7)), F.log_softmax for log(softmax), or F.logsigmoid for "
    "log(sigmoid)",
    "log of a negative number": "find why the argument is negative, or use x.clamp_min(1e-7)",
    "division by zero": "add eps to the divisor, or replace it with torch.where before the division",
    "zero divided by zero": "add eps to the divisor, or replace it with torch.where before the division",
    "square root of a negative number": "use x.clamp_min(0) before the root; rounding makes "
    "E[x^2] - E[x]^2 and expanded distances negative",
    "power of a negative number": "use x.clamp_min(0) or x.abs() before the power",
    "power of zero": "add eps to the base",
    "overflow of the exponential": "subtract the maximum first, as torch.logsumexp and F.softmax do, or use "
    "x.clamp_max(80)",
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
    "overflow": "normalize or clip the values, lower the learning rate, or use a smaller initialization",
    "overflow of a product": "work with sums of logarithms, or normalize the factors; clip gradients with "
    "torch.nn.utils.clip_grad_norm_",
    "uninitialized read": "use torch.zeros instead of torch.empty, or write each element before it is read",
    "gradient overflow": "use torch.amp.GradScaler and scaler.step(optimizer), which skips such steps, or a "
    "smaller loss scale",
}
"""The usual fix in PyTorch's terms, by the name of the cause."""


def cause(birth: Birth) -> Cause | None:
    """Return why an operator of PyTorch gave NaN or Inf; None if no rule explains it."""
    if base_name(birth.op) in EMPTY:
        return _hinted(_uninitialized(birth))
    given = _given_number(birth)
    if given is not None:
        return given
    found = in_optimizer(birth) or in_backward(birth) or in_forward(birth)
    return None if found is None else _hinted(found)


def _hinted(found: Cause) -> Cause:
    return replace(found, hint=HINTS[found.name]) if found.name in HINTS else found


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


def _uninitialized(birth: Birth) -> Cause:
    many = count(bad(birth.output, birth.kind))
    size = birth.output.size
    evidence = f"{elements(many, size)} read before {'it is' if size == 1 else 'they are'} written"
    return Cause("uninitialized read", evidence, "")


def is_legal(birth: Birth, made_by: Sequence[Maker]) -> bool:
    """Return whether infinities are intended: given as a number (``value=-inf``), or by definition."""
    base = base_name(birth.op)
    numbers = [value for value in birth.attributes.values() if isinstance(value, float)]
    if any(math.isinf(value) for value in numbers):
        return True
    # Log probabilities of unreachable states; sums of exponentials of masked rows.
    return (base == "_ctc_loss" or base.startswith("_scaled_dot_product")) and birth.index > 0
