"""How an optimizer made NaN or Inf: its formula, its options, and the numbers of one element."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nncdbg.engine.ops.aten.signatures import DTYPES
from nncdbg.torch.safe_updates import is_usual
from nncdbg.torch.sharded_tensors import is_sharded, local_part
from nncdbg.torch.trips import NOT_THIS_UPDATE

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


@dataclass(frozen=True, slots=True)
class _Step:
    """What an optimizer divides, as keys of its numbers, and the mean of squares in the divisor."""

    dividend: str
    squares: str = ""
    eps_in_root: bool = False

    def divisor(self) -> str:
        return "sqrt(v + eps)" if self.eps_in_root else "(sqrt(v) + eps)"


_MOMENTS = _Step("exp_avg", "exp_avg_sq")

_STEPS: Mapping[str, _Step] = {
    "SGD": _Step("momentum_buffer"),
    **dict.fromkeys(("Adam", "AdamW", "NAdam", "RAdam", "SparseAdam"), _MOMENTS),
    "Adagrad": _Step("gradient", "sum"),
    "Adadelta": _Step("gradient", "square_avg", eps_in_root=True),
    "RMSprop": _Step("gradient", "square_avg"),
}
"""How optimizers scale the gradient of one element, by the class in `torch.optim`."""

_OPTIONS = ("lr", "eps", "momentum", "betas", "alpha", "rho", "weight_decay", "lambd")


def formula_of(optimizer: torch.optim.Optimizer) -> str:
    """Return the formula of an optimizer, or of the class of `torch.optim` that it extends; "" if unknown."""
    return FORMULAS.get(_class_of(optimizer), "")


def _class_of(optimizer: torch.optim.Optimizer) -> str:
    """Return the class of `torch.optim` with a known formula that an optimizer extends; "" for none."""
    classes = [each.__name__ for each in type(optimizer).__mro__ if each.__module__.startswith("torch.optim")]
    return next((name for name in classes if name in FORMULAS), "")


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
    return [f"{update}; {', '.join(options)}", *_element(optimizer, name, parameter, bad, group or {})]


def _element(
    optimizer: torch.optim.Optimizer, name: str, parameter: Any, bad: Any, group: Mapping[str, Any]
) -> list[str]:
    """Return the numbers at the first element of a strided parameter that is NaN or Inf, and the cause."""
    values = {"gradient": parameter.grad, **optimizer.state.get(parameter, {})}
    values = {key: local_part(each) for key, each in values.items()}
    shard = " of this shard" if is_sharded(bad) else ""
    parameter, bad = local_part(parameter), local_part(bad)
    if bad.layout is not torch.strided or bad.shape != parameter.shape:
        return []
    at = tuple(torch.nonzero(~torch.isfinite(bad.detach()))[0].tolist())
    numbers = {
        key: value.detach()[at].item()
        for key, value in values.items()
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.shape == bad.shape
    }
    place = f"{name}[{', '.join(map(str, at))}]{shard}" if at else name
    shown = ", ".join(f"{key} {number:.4g}" for key, number in numbers.items())
    number = parameter.detach()[at].item()
    found = f"{place} is {number:.4g} after the update: {shown}"
    cause = _cause(_STEPS.get(_class_of(optimizer)), numbers, group, parameter.dtype)
    if not cause and _is_finite_step(optimizer, numbers, group, parameter.dtype) and math.isnan(number):
        cause = (
            f"{NOT_THIS_UPDATE}: its step is finite at {place}, so the element was NaN or Inf before; "
            "look for code that writes to the parameter after the forward pass, through NumPy or `.data`"
        )
    return [found, cause] if cause else [found]


def _is_finite_step(
    optimizer: torch.optim.Optimizer, numbers: Mapping[str, Any], group: Mapping[str, Any], dtype: Any
) -> bool:
    """Return whether an update with usual options made no NaN of a finite element, by the numbers after it.

    The bias correction of Adam makes a step larger by 1e4 at most.
    """
    if dtype not in (torch.float32, torch.float64) or not is_usual(optimizer):
        return False
    step = _STEPS[_class_of(optimizer)]
    divisor = 1.0
    if step.squares:
        squares = numbers.get(_squares_of(step, group), math.nan)
        divisor = math.sqrt(squares) + group.get("eps", math.nan) if squares >= 0 else math.nan
    dividend = numbers.get(step.dividend, numbers.get("gradient", math.nan))
    return bool(abs(group.get("lr", math.nan) * dividend / divisor) < 2.0**64)


def _squares_of(step: _Step, group: Mapping[str, Any]) -> str:
    """Return the key of the mean of squares that an update divides by."""
    return "max_exp_avg_sq" if group.get("amsgrad") else step.squares


def _cause(step: _Step | None, numbers: Mapping[str, Any], group: Mapping[str, Any], dtype: Any) -> str:
    """Return the operation that made NaN or Inf, by the numbers after it; empty if these do not show it."""
    rate = float(group.get("lr", 0))
    if not math.isfinite(rate):
        return f"cause: the learning rate is {rate:g}; check the schedule: scheduler.get_last_lr()"
    if step is None or any(isinstance(each, complex) for each in numbers.values()):
        return ""
    dividend = numbers.get(step.dividend, numbers.get("gradient"))
    divisor = 1.0
    if step.squares:
        squares = numbers.get(_squares_of(step, group))
        if squares is None or dividend is None or group.get("centered"):
            return ""
        if not squares >= 0 or math.isinf(squares):
            return _bad_squares(squares, numbers.get("gradient"), dtype)
        eps = torch.tensor(float(group.get("eps", 0)), dtype=dtype).item()
        divisor = math.sqrt(squares + eps) if step.eps_in_root else math.sqrt(squares) + eps
        if not divisor:
            return _zero_divisor(step, dividend, float(group.get("eps", 0)), dtype)
    if dividend is None or not abs(rate * dividend / divisor) > torch.finfo(dtype).max:
        return ""
    return f"cause: the step overflows: lr * {dividend:.4g} is larger than {_largest(dtype)}; reduce lr"


def _bad_squares(squares: float, gradient: Any, dtype: Any) -> str:
    """Return the cause of a mean of squares that is negative or Inf."""
    if squares < 0:
        return (
            f"cause: square root of a negative number: v is {squares:.4g}; check betas and the loaded state"
        )
    if gradient is None or not gradient * gradient > torch.finfo(dtype).max:
        return ""
    return (
        f"cause: the square of the gradient overflows: {gradient:.4g} ** 2 is larger than {_largest(dtype)}; "
        "clip the gradients before the update, or reduce the loss"
    )


def _zero_divisor(step: _Step, dividend: float, eps: float, dtype: Any) -> str:
    name = DTYPES[dtype]
    rounded = f", because {eps:g} is 0 in {name}" if eps else ""
    remedy = f"use an eps that {name} can represent, or f32 parameters" if eps else "use an eps above 0"
    what = "division by zero" if dividend else "zero divided by zero"
    return f"cause: {what}: {dividend:.4g} / {step.divisor()}, and the divisor is 0{rounded}; {remedy}"


def _largest(dtype: Any) -> str:
    return f"the largest {DTYPES[dtype]}, {torch.finfo(dtype).max:.4g}"


def _written(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_written(each) for each in value)})"
    return f"{float(value):g}"
