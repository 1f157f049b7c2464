"""Random training steps: views, writes, random numbers, casts, hooks and higher derivatives, by a seed.

Each action takes the tensors of the step so far and may append to them or write to them.  An action, or the
backward pass, may raise as in PyTorch, for example because a saved tensor was written: the step continues.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from nncdbg.engine.ops.aten.internals import key_of

Action = Callable[["RandomStep"], Any]

ACTIONS: list[Action] = []

_REFUSED = (RuntimeError, IndexError, ValueError)
"""What PyTorch raises for writes that autograd does not allow, and for shapes that do not fit."""


class RandomStep:
    """A model, an optimizer and one training step; equal seeds give equal steps.

    `run` executes the step.  Afterwards all tensors of the step are buffers of the model, so that a
    comparison of named tensors includes them.
    """

    def __init__(self, seed: int, count: int = 25) -> None:
        self.draw = random.Random(seed)
        self.seed = seed
        self.count = count
        torch.manual_seed(seed)
        self.model = nn.Module()
        self.model.weight = nn.Parameter(torch.randn(4, 6))
        self.model.mixing = nn.Parameter(torch.randn(6, 6) / 2)
        self.model.bias = nn.Parameter(torch.randn(6))
        self.model.register_buffer("mean", torch.zeros(6))
        self.model.register_buffer("whole", torch.randn(5, 9))
        self.batch = self.model.whole[1:, 2:8]
        self.optimizer = self._optimizer()
        self.values: list[Any] = []

    def _optimizer(self) -> torch.optim.Optimizer:
        kind = self.draw.choice(["single", "foreach", "fused"])
        made: type[Any] = self.draw.choice([torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
        options: dict[str, Any] = {"lr": 0.01, "foreach": kind == "foreach", "fused": kind == "fused"}
        if made is torch.optim.SGD:
            options["momentum"] = self.draw.choice([0, 0.9])
        return made(self.model.parameters(), **options)

    def run(self) -> None:
        self.optimizer.zero_grad(set_to_none=self.draw.random() < 0.5)
        self.values = [self.model.weight, self.model.bias, self.model.mean, self.batch]
        self.values.append(self.batch @ self.model.mixing + self.model.bias)
        for _ in range(self.count):
            try:
                self.draw.choice(ACTIONS)(self)
            except _REFUSED:
                continue
        self._backward()
        self.optimizer.step()
        known = {key_of(each) for each in (*self.model.parameters(), *self.model.buffers())}
        for index, value in enumerate(self.values):
            if key_of(value) not in known:
                known.add(key_of(value))
                self.model.register_buffer(f"value{index}", value)

    def _backward(self) -> None:
        floats = [each for each in self.values if each.requires_grad and each.dtype.is_floating_point]
        chosen = self.draw.sample(floats, min(len(floats), 4))
        loss = sum((each.float().tanh().mean() for each in chosen), start=self.model.weight.square().mean())
        scale = self.draw.choice([1.0, 1024.0])
        try:
            (loss * scale).backward(retain_graph=True)
            if self.draw.random() < 0.3:
                loss.backward()
        except _REFUSED:
            self.model.bias.square().sum().backward()
        if scale != 1.0:
            with torch.no_grad():
                for each in self.model.parameters():
                    if each.grad is not None:
                        each.grad /= scale
        if self.draw.random() < 0.3:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    # -- choices -------------------------------------------------------------------------------

    def one(self) -> Any:
        return self.draw.choice(self.values)

    def floating(self) -> Any:
        return self.draw.choice([each for each in self.values if each.dtype == torch.float32])

    def target(self) -> Any:
        """Return a tensor to write to: no parameter, which PyTorch refuses."""
        return self.draw.choice([each for each in self.values if not each.is_leaf or not each.requires_grad])

    def keep(self, value: Any) -> None:
        if isinstance(value, torch.Tensor) and value.numel() <= 512:
            self.values.append(value)


def action(function: Action) -> Action:
    """Add a function to the actions of random steps; what it returns is kept."""

    def act(step: RandomStep) -> None:
        made = function(step)
        for each in made if isinstance(made, list | tuple) else [made]:
            step.keep(each)

    ACTIONS.append(act)
    return function


# -- arithmetic ----------------------------------------------------------------------------------


@action
def pointwise(step: RandomStep) -> Any:
    a, b = step.floating(), step.floating()
    return step.draw.choice(
        [
            lambda: a * b,
            lambda: a + 2 * b,
            lambda: a.tanh(),
            lambda: a.exp(),
            lambda: torch.where(a > b, a, b),
        ]
    )()


@action
def product(step: RandomStep) -> Any:
    return step.floating() @ step.model.mixing


@action
def reduction(step: RandomStep) -> Any:
    value = step.floating()
    kind = step.draw.choice(["sum", "mean", "amax", "cumsum", "softmax", "logsumexp"])
    return getattr(value, kind)(dim=step.draw.choice([0, -1]))


@action
def sorted_values(step: RandomStep) -> Any:
    return step.floating().sort(dim=-1)


@action
def two_lists(step: RandomStep) -> Any:
    first, second = step.target(), step.target()
    with torch.no_grad():
        torch._foreach_mul_([first, second], 0.5)
        return torch._foreach_add([first, second], [second, first])


# -- views ---------------------------------------------------------------------------------------


@action
def view(step: RandomStep) -> Any:
    value = step.one()
    return step.draw.choice(
        [
            lambda: value.t(),
            lambda: value[..., 1::2],
            lambda: value[1:],
            lambda: value[0],
            lambda: value.unsqueeze(0).expand(2, *value.shape),
            lambda: value.reshape(-1),
            lambda: value.unfold(-1, 2, 1),
            lambda: value.diagonal(),
            lambda: value.chunk(2, -1),
            lambda: value.as_strided((2, 2), (1, 2)),
            lambda: value.view(torch.int32),
            lambda: value.flip(0),
        ]
    )()


@action
def complex_view(step: RandomStep) -> Any:
    pairs = step.floating().reshape(-1)[:4].reshape(2, 2)
    conjugate = torch.view_as_complex(pairs).conj()
    return [conjugate, conjugate.imag, torch.view_as_real(conjugate.resolve_conj())]


@action
def detached(step: RandomStep) -> Any:
    return step.draw.choice([torch.Tensor.detach, torch.Tensor.clone, lambda value: value.data])(step.one())


@action
def cast(step: RandomStep) -> Any:
    dtype = step.draw.choice([torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.float32])
    return step.one().to(dtype)


# -- writes --------------------------------------------------------------------------------------


@action
def write(step: RandomStep) -> None:
    target, value = step.target(), step.floating()
    step.draw.choice(
        [
            lambda: target.mul_(0.5),
            lambda: target.add_(value),
            lambda: target.copy_(value),
            lambda: target.zero_(),
            lambda: target.clamp_(-1, 1),
            lambda: target.masked_fill_(target > 0.5, 0.25),
            lambda: target.t_(),
            lambda: target.squeeze_(0),
        ]
    )()


@action
def partial_write(step: RandomStep) -> None:
    target, value = step.target(), step.floating()

    def scattered() -> None:
        target[target > 0] = 0.5

    def listed() -> None:
        target[torch.tensor([0, 1])] += 1.0

    step.draw.choice(
        [
            lambda: target[1:].add_(1.0),
            lambda: target[..., ::2].mul_(value[..., ::2]),
            lambda: target.t()[0].copy_(value[0]),
            lambda: target.index_add_(0, torch.tensor([0, 0]), value[:2]),
            lambda: target.diagonal().fill_(2.0),
            scattered,
            listed,
        ]
    )()


@action
def write_without_gradient(step: RandomStep) -> None:
    with torch.no_grad():
        target, value = step.one(), step.floating()
        step.draw.choice([lambda: target.mul_(0.9), lambda: target[0].copy_(value[0])])()


@action
def update_of_buffer(step: RandomStep) -> None:
    step.model.mean.lerp_(step.floating().detach().reshape(-1)[:6], 0.1)


@action
def result_into(step: RandomStep) -> Any:
    out = torch.empty(0)
    torch.mul(step.floating().detach(), 3.0, out=out)
    return out


# -- random numbers ------------------------------------------------------------------------------


@action
def random_numbers(step: RandomStep) -> Any:
    value = step.floating()
    return step.draw.choice(
        [
            lambda: nn.functional.dropout(value, 0.3),
            lambda: torch.rand_like(value),
            lambda: value + torch.randn(value.shape[-1]),
            lambda: value[torch.randperm(value.shape[0])],
            lambda: torch.empty_like(value).bernoulli_(0.5),
            lambda: step.target().normal_() and None,
            lambda: torch.randint(3, (2, 2), generator=torch.Generator().manual_seed(step.seed)),
        ]
    )()


# -- autograd ------------------------------------------------------------------------------------


class Halved(torch.autograd.Function):
    """Writes half of its input into it; the backward pass multiplies a saved tensor."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x.sign())
        ctx.mark_dirty(x)
        return x.mul_(0.5)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.saved_tensors[0]


@action
def custom_function(step: RandomStep) -> Any:
    return Halved.apply(step.floating() + 1)


@action
def recomputed(step: RandomStep) -> Any:
    def inner(value: Any) -> Any:
        return nn.functional.dropout((value * 2).sin(), 0.5)

    return checkpoint(inner, step.floating(), use_reentrant=step.draw.random() < 0.5)


@action
def hook(step: RandomStep) -> None:
    step.floating().register_hook(lambda gradient: gradient * 0.5)


@action
def gradient_of_gradient(step: RandomStep) -> Any:
    value = step.floating()
    loss = (value.sin() * step.model.bias.sum()).sum()
    return torch.autograd.grad(loss, step.model.bias, create_graph=step.draw.random() < 0.7)[0]


@action
def path_by_value(step: RandomStep) -> Any:
    value = step.floating()
    return value * 2 if value.sum().item() > 0 else value.neg()


@action
def low_precision(step: RandomStep) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (step.floating() @ step.model.mixing).relu()


@action
def mapped(step: RandomStep) -> Any:
    return torch.vmap(lambda row: row * row.sum())(step.floating())
