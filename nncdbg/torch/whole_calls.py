"""Functions of torch that a tape keeps as one call each: losses, and the clipping of gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import not_compiled, stand_in
from nncdbg.torch.warning_places import warning_at_caller

_LOSSES = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
)
"""Functions of `torch.nn.functional` that write to no tensor and draw no numbers.

The tape keeps the call itself: in a step of 5 ms, each operator that it keeps instead takes up to 40 us.
"""

WHOLE_CALLS: tuple[tuple[Any, str], ...] = (
    *((torch.nn.functional, name) for name in _LOSSES),
    (torch.nn.utils, "clip_grad_norm_"),
)
"""Owner and name of each function."""


def whole_call(call: Callable[..., Any], original: Callable[..., Any]) -> Any:
    """Return a function in place of one of `WHOLE_CALLS`: it calls `call(original, args, kwargs)`."""

    @not_compiled
    @warning_at_caller
    @wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        # A second run could not read an iterator again.
        again = [
            each if each.__class__ is torch.Tensor or not hasattr(each, "__next__") else [*each]
            for each in args
        ]
        if kwargs:
            kwargs = {name: [*each] if hasattr(each, "__next__") else each for name, each in kwargs.items()}
        return call(original, again, kwargs)

    return stand_in(function, original)
