"""Micro programs of operators that torch does not decompose: products, attention, fused optimizers.

Each function has the arguments of its operator and computes the same in simpler operators.  Sources:
torch's documentation of the operators, and `torch.optim` for the update formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch


def _mm(a: Any, b: Any) -> Any:
    """Rows of `a` times columns of `b`: each product, then the sum."""
    return (a.unsqueeze(2) * b.unsqueeze(0)).sum(1)


def _bmm(a: Any, b: Any) -> Any:
    return (a.unsqueeze(3) * b.unsqueeze(1)).sum(2)


def _addmm(bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return _scaled(bias, beta) + _scaled(_mm(a, b), alpha)


def _addmv(bias: Any, a: Any, vector: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return _scaled(bias, beta) + _scaled((a * vector).sum(1), alpha)


def _baddbmm(bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return _scaled(bias, beta) + _scaled(_bmm(a, b), alpha)


def _scaled(value: Any, factor: float) -> Any:
    return value if factor == 1 else value * factor


def _convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """The windows of `x` as columns, times the weights of each group."""
    if transposed or x.dim() != 4:
        raise ValueError("only two-dimensional convolutions that are not transposed have one")
    columns = torch.nn.functional.unfold(x, weight.shape[2:], dilation, padding, stride)
    batch, channels = x.shape[0], weight.shape[0]
    columns = columns.reshape(batch, groups, -1, columns.shape[-1])
    kernels = weight.reshape(groups, channels // groups, -1)
    y = (kernels.unsqueeze(0).unsqueeze(-1) * columns.unsqueeze(2)).sum(3)
    spatial = [
        (size + 2 * pad - gap * (length - 1) - 1) // step + 1
        for size, pad, gap, length, step in zip(
            x.shape[2:], padding, dilation, weight.shape[2:], stride, strict=True
        )
    ]
    y = y.reshape(batch, channels, *spatial)
    return y if bias is None else y + bias.reshape(1, -1, 1, 1)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    """Softmax of the scaled scores, times the values; and the logarithm of the sum of exponentials."""
    if dropout_p:
        raise ValueError("attention with dropout has none")
    scores = torch.matmul(query, key.transpose(-2, -1)) * (scale or 1 / math.sqrt(query.shape[-1]))
    if is_causal:
        rows, columns = scores.shape[-2:]
        allowed = torch.ones(rows, columns, dtype=torch.bool, device=query.device).tril()
        scores = torch.where(allowed, scores, -math.inf)
    if attn_mask is not None:
        scores = scores + attn_mask
    return torch.matmul(torch.softmax(scores, -1), value), torch.logsumexp(scores, -1)


def _fused_adam(decoupled: bool) -> Callable[..., Any]:
    """Return the update of Adam; with `decoupled`, the weight decay of AdamW."""

    def update(
        parameters: Sequence[Any],
        gradients: Sequence[Any],
        averages: Sequence[Any],
        squares: Sequence[Any],
        greatest: Sequence[Any],
        steps: Sequence[Any],
        *,
        lr: Any,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Any = None,
        found_inf: Any = None,
    ) -> Any:
        if found_inf is not None:
            raise ValueError("an update that found_inf can skip has none")
        new: list[list[Any]] = [[], [], [], [], []]
        for index, (w, g, m, v, step) in enumerate(
            zip(parameters, gradients, averages, squares, steps, strict=True)
        ):
            g = g if grad_scale is None else g / grad_scale
            new[1].append(g)
            g = -g if maximize else g
            if weight_decay and decoupled:
                w = w * (1 - lr * weight_decay)
            elif weight_decay:
                g = g + w * weight_decay
            m = m + (g - m) * (1 - beta1)
            v = v * beta2 + g * g * (1 - beta2)
            largest = torch.maximum(greatest[index], v) if amsgrad else v
            root = largest.sqrt() / (1 - beta2**step).sqrt() + eps
            new[0].append(w - lr / (1 - beta1**step) * m / root)
            new[2].append(m)
            new[3].append(v)
            if amsgrad:
                new[4].append(largest)
        return [tensor for tensors in new for tensor in tensors]

    return update


def _fused_sgd(
    parameters: Sequence[Any],
    gradients: Sequence[Any],
    buffers: Sequence[Any],
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Any = None,
    found_inf: Any = None,
) -> Any:
    """The update of SGD with momentum and Nesterov."""
    if found_inf is not None:
        raise ValueError("an update that found_inf can skip has none")
    new: list[list[Any]] = [[], [], []]
    for index, (w, g) in enumerate(zip(parameters, gradients, strict=True)):
        g = g if grad_scale is None else g / grad_scale
        new[1].append(g)
        g = -g if maximize else g
        g = g + w * weight_decay if weight_decay else g
        if momentum:
            b = g if is_first_step else buffers[index] * momentum + g * (1 - dampening)
            new[2].append(b)
            g = g + b * momentum if nesterov else b
        new[0].append(w - g * lr)
    return [tensor for tensors in new for tensor in tensors]


RULES: dict[str, Callable[..., Any]] = {
    "aten.mm.default": _mm,
    "aten.bmm.default": _bmm,
    "aten.addmm.default": _addmm,
    "aten.addmv.default": _addmv,
    "aten.baddbmm.default": _baddbmm,
    "aten.convolution.default": _convolution,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten._fused_adam_.default": _fused_adam(decoupled=False),
    "aten._fused_adamw_.default": _fused_adam(decoupled=True),
    "aten._fused_sgd_.default": _fused_sgd,
}
"""Operator to the function that computes it."""
