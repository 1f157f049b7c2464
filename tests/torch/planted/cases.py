"""Records of the corpus: a training program with a planted NaN or Inf and its truth, or a clean one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

PHASES = ("forward", "backward", "optimizer", "data")
"""Where the value originates; "data" is a batch, a parameter or a buffer that is bad before the step."""

VALUES = ("nan", "inf")

CAUSES = (
    "input-nan",
    "input-inf",
    "log-of-zero",
    "log-of-negative",
    "division-by-zero",
    "zero-over-zero",
    "exp-overflow",
    "softmax-all-masked",
    "inf-minus-inf",
    "zero-times-inf",
    "sqrt-of-negative",
    "sqrt-at-zero-backward",
    "norm-at-zero-backward",
    "where-trap-backward",
    "pow-at-zero-backward",
    "acos-domain",
    "atanh-domain",
    "fp16-overflow",
    "gradient-overflow-loss-scale",
    "zero-variance-norm",
    "empty-mean",
    "variance-of-one",
    "learning-rate",
    "bad-parameter",
    "bad-batch",
    "uninitialized-memory",
    "optimizer-division",
    "optimizer-overflow",
    "f16-optimizer-underflow",
    "matmul-overflow",
    "cumulative-product",
    "custom-function-backward",
    "hook",
)

MARKER = "# origin"


@dataclass
class Training:
    """A model in training: `step` runs one whole training step on the next batch and returns the loss.

    `train(*batch)` is that step without the choice of the batch, so that a tool can run it again.
    """

    model: nn.Module
    optimizers: Sequence[Optimizer]
    train: Callable[..., Tensor]
    batches: Sequence[tuple[Any, ...]] = ((),)
    calls: int = field(default=0, init=False)

    def step(self) -> Tensor:
        """Run `train` on the next batch, starting again after the last one."""
        batch = self.batches[self.calls % len(self.batches)]
        self.calls += 1
        return self.train(*batch)


@dataclass(frozen=True)
class Clean:
    """A training program in which no loss, gradient or parameter is NaN or Inf after three steps."""

    name: str
    builder: Callable[[], Training]
    why: str

    def build(self, seed: int = 0) -> Training:
        """Return a fresh model in training; the same seed gives the same numbers."""
        torch.manual_seed(seed)
        return self.builder()


@dataclass(frozen=True)
class Planted:
    """A training program in which a NaN or Inf is planted, with the truth about its origin."""

    name: str
    builder: Callable[[], Training]
    group: str
    """forward, backward, optimizer, half or data: the file of the case."""
    op: str
    """The aten overload that makes the value.  In the phase "data", the first one that reads it."""
    phase: str
    value: str
    cause: str
    why: str
    node: str = ""
    """The autograd node that runs the op, in the phase "backward"."""
    module: str = ""
    """The path of the innermost module around the marked line, or "" for the model and for none."""
    parameter: str = ""
    """The first parameter with a bad value or moment, in the phase "optimizer"."""
    also: tuple[str, ...] = ()
    """Other causes that describe the case as well."""
    first_bad_step: int = 0
    naive: bool = True
    """Whether the first op that makes the value from inputs without it is the origin."""
    naive_reason: str = ""

    @property
    def file(self) -> str:
        """The file of the marked line."""
        return inspect.getfile(self.builder)

    @cached_property
    def line(self) -> int:
        """The line of the origin, marked in the source.

        In backward this is the line of the forward op, or of the user's own code that backward runs.
        """
        lines, first = inspect.getsourcelines(self.builder)
        marked = [first + index for index, line in enumerate(lines) if line.rstrip().endswith(MARKER)]
        if len(marked) != 1:
            raise ValueError(f"{self.name} has {len(marked)} lines that end in {MARKER!r}, not one")
        return marked[0]

    def build(self, seed: int = 0) -> Training:
        """Return a fresh model in training; the same seed gives the same numbers."""
        torch.manual_seed(seed)
        return self.builder()


def planted(
    phase: str, op: str, value: str, cause: str, why: str, **facts: Any
) -> Callable[[Callable[[], Training]], Planted]:
    """Return a decorator that makes a case of a function; `facts` are further fields of `Planted`."""

    def case(builder: Callable[[], Training]) -> Planted:
        group = builder.__module__.rpartition(".")[2].partition("_")[0]
        return Planted(builder.__name__, builder, group, op, phase, value, cause, why, **facts)

    return case


def clean(why: str) -> Callable[[Callable[[], Training]], Clean]:
    """Return a decorator that makes a clean case of a function; `why` says what looks like a finding."""

    def case(builder: Callable[[], Training]) -> Clean:
        return Clean(builder.__name__, builder, why)

    return case


def fit(
    model: nn.Module,
    loss: Callable[..., Tensor],
    *batches: tuple[Any, ...],
    optimizer: Optimizer | None = None,
    lr: float = 0.01,
) -> Training:
    """Return a training with the usual step of a loss; the optimizer is SGD by default."""
    used = optimizer or SGD(model.parameters(), lr=lr)

    def train(*batch: Any) -> Tensor:
        used.zero_grad()
        result = loss(*batch)
        result.backward()
        used.step()
        return result

    return Training(model, [used], train, batches or ((),))


def mlp(*sizes: int) -> nn.Sequential:
    """Return linear layers of these sizes with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Weights(nn.Module):
    """A model of one parameter, `weight`."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
