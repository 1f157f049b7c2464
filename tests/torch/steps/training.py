"""Records of whole training steps, and the names of the tensors that a step changes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass
class Training:
    """A model with its optimizers and one step of its training.

    `run()` executes one whole step (clear gradients, forward, backward, update) and returns the loss.  Each
    call of `run` is the next step.  `kept` holds the other tensors that a step replaces or changes: a hidden
    state, the scale of a gradient scaler, weights of an average that are not a module.
    """

    models: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]
    run: Callable[[], torch.Tensor]
    kept: dict[str, torch.Tensor] = field(default_factory=dict)

    def changed(self) -> dict[str, torch.Tensor]:
        """Return everything that a step may change by a stable name: the tensors themselves, not copies.

        The names are `model.layer.weight`, `model.layer.weight.grad`, `model.norm.running_mean`,
        `optimizer.layer.weight.exp_avg`, `optimizer.group0.lr` and `kept.hidden`.  The second model is
        `model2`, the second optimizer `optimizer2`; an optimizer shows a parameter of the second model as
        `model2.layer.weight`.  The states of random generators are not included.
        """
        named = dict(self.named_tensors())
        named |= {f"kept.{name}": tensor for name, tensor in self.kept.items()}
        return named

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Return (name, tensor) of each parameter, gradient, buffer and tensor of an optimizer's state."""
        names: dict[torch.Tensor, str] = {}
        for number, model in enumerate(self.models, 1):
            prefix = "model" if number == 1 else f"model{number}"
            for name, parameter in model.named_parameters():
                names.setdefault(parameter, name if number == 1 else f"{prefix}.{name}")
                yield f"{prefix}.{name}", parameter
                if parameter.grad is not None:
                    yield f"{prefix}.{name}.grad", parameter.grad
            for name, buffer in model.named_buffers():
                yield f"{prefix}.{name}", buffer
        for number, optimizer in enumerate(self.optimizers, 1):
            prefix = "optimizer" if number == 1 else f"optimizer{number}"
            yield from optimizer_tensors(prefix, optimizer, names)


def optimizer_tensors(
    prefix: str, optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Return (name, tensor) of an optimizer's options and state, for parameters with these names."""
    count = 0
    for number, group in enumerate(optimizer.param_groups):
        for option, value in group.items():
            if option != "params":
                yield from tensors_in(f"{prefix}.group{number}.{option}", value)
        for parameter in group["params"]:
            name = names.get(parameter, f"parameter{count}")
            count += 1
            for slot, value in optimizer.state.get(parameter, {}).items():
                yield from tensors_in(f"{prefix}.{name}.{slot}", value)


def tensors_in(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Return (name, tensor) of a tensor, or of each one in nested lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from tensors_in(f"{name}.{index}", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_in(f"{name}.{key}", item)


def copies(named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies of named tensors, which later steps do not change."""
    return {name: tensor.detach().clone() for name, tensor in named.items()}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have equal types, shapes and bits; NaN equals itself, and -0 is not 0."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    left, right = (tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in (one, other))
    return torch.equal(left, right)


def differing_names(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    """Return the names that only one of two dictionaries has, or whose tensors differ in a bit, sorted."""
    common = one.keys() & other.keys()
    return sorted(
        (one.keys() ^ other.keys()) | {name for name in common if not same_bits(one[name], other[name])}
    )


@dataclass(frozen=True)
class Step:
    """A named training step.  `heavy`: one step takes at least 5 ms on one thread."""

    name: str
    builder: Callable[[], Training]
    heavy: bool = False
    needs: str = ""

    @property
    def skip_reason(self) -> str | None:
        """Return why the step cannot be built here, or None."""
        if self.needs and importlib.util.find_spec(self.needs) is None:
            return f"{self.needs} is not installed"
        return None

    def build(self) -> Training:
        """Return a new model with its optimizers and batch; equal for each call."""
        torch.manual_seed(0)
        return self.builder()


def step(*, heavy: bool = False, needs: str = "") -> Callable[[Callable[[], Training]], Step]:
    """Return a decorator: a function that builds a `Training` becomes the `Step` of its name."""

    def decorate(builder: Callable[[], Training]) -> Step:
        return Step(builder.__name__, builder, heavy, needs)

    return decorate


def steps_of(namespace: dict[str, Any]) -> tuple[Step, ...]:
    """Return the steps that a module defines, in order of definition."""
    return tuple(value for value in namespace.values() if isinstance(value, Step))


def trained(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[], torch.Tensor],
    kept: dict[str, torch.Tensor] | None = None,
) -> Training:
    """Return a step with one loss, one backward pass and one update."""

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss

    return Training([model], [optimizer], run, kept or {})
