"""How an optimizer made NaN or Inf: its formula, its options, and the numbers of one element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_ADAM = "p - lr * m / (sqrt(v) + eps), with bias-corrected moments m and v of the gradient and its square"

FORMULAS: Mapping[str, str] = {
    "SGD": "p - lr * b, with b = momentum * b + gradient",
    "ASGD": "p * (1 - lambd * eta) - eta * gradient",
    "Adam": _ADAM,
    "AdamW": f"p * (1 - lr * weight_decay), then {_ADAM}",
    "SparseAdam": _ADAM,
    "NAdam": _ADAM.replace("m and", "m with Nesterov's momentum and"),
    "RAdam": "p - lr * r * m / (sqrt(v) + eps), with the rectification r",
    "Adamax": "p - lr * m / u, with u = max(beta2 * u, |gradient| + eps)",
    "Adagrad": "p - lr * gradient / (sqrt(sum) + eps), with the sum of squares of the gradients",
    "Adadelta": "p - lr * gradient * sqrt(d + eps) / sqrt(v + eps), with means d and v of squares",
    "RMSprop": "p - lr * gradient / (sqrt(v) + eps), with the mean v of squares of the gradient",
    "Rprop": "p - sign(gradient) * step_size",
}
"""The new value of a parameter p, by the class of the optimizer in `torch.optim`."""

_OPTIONS = ("lr", "eps", "momentum", "betas", "alpha", "rho", "weight_decay", "lambd")


def formula_of(optimizer: torch.optim.Optimizer) -> str:
    """Return the formula of an optimizer, or of the class of `torch.optim` that it extends; "" if unknown."""
    classes = [each.__name__ for each in type(optimizer).__mro__ if each.__module__.startswith("torch.optim")]
    return next((FORMULAS[name] for name in classes if name in FORMULAS), "")


def described_update(optimizer: torch.optim.Optimizer, name: str, parameter: Any, bad: Any) -> list[str]:
    """Return sentences about an update that made NaN or Inf.

    `bad` is the parameter, or a moment of it, with NaN or Inf; `name` is that of the parameter.
    """
    group = next(
        (each for each in optimizer.param_groups if any(p is parameter for p in each["params"])), None
    )
    options = [f"{key} {_written(group[key])}" for key in _OPTIONS if group and group.get(key) is not None]
    formula = formula_of(optimizer)
    update = f"{type(optimizer).__name__} computes {formula}" if formula else type(optimizer).__name__
    return [f"{update}; {', '.join(options)}", *_element(optimizer, name, parameter, bad)]


def _element(optimizer: torch.optim.Optimizer, name: str, parameter: Any, bad: Any) -> list[str]:
    """Return the numbers at the first element of a strided parameter that is NaN or Inf."""
    if bad.layout is not torch.strided or bad.shape != parameter.shape:
        return []
    at = tuple(torch.nonzero(~torch.isfinite(bad.detach()))[0].tolist())
    values = {"gradient": parameter.grad, **optimizer.state.get(parameter, {})}
    numbers = [
        f"{key} {value.detach()[at].item():.4g}"
        for key, value in values.items()
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.shape == bad.shape
    ]
    place = f"{name}[{', '.join(map(str, at))}]" if at else name
    return [f"{place} is {parameter.detach()[at].item():.4g} after the update: {', '.join(numbers)}"]


def _written(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_written(each) for each in value)})"
    return f"{float(value):g}"
