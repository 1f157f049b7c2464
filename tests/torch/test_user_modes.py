"""A dispatch mode of the user sees the operators of the training under a watch, and none of nncdbg."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from nncdbg.torch import watch  # noqa: E402


class Counting(TorchDispatchMode):
    """Counts operators by name, without the marks of the profiler, which no mode sees under a watch."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "profiler":
            self.operators[str(func)] += 1
        return func(*args, **(kwargs or {}))


def seen(tier: str | None) -> tuple[Counter[str], list[Any]]:
    """Return the operators that a mode sees in three steps, and the parameters after them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    batch, target = torch.randn(16, 4), torch.randn(16, 2)
    with nullcontext() if tier is None else watch(model, optimizer, tier=tier), Counting() as counting:
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(batch), target).backward()
            optimizer.step()
    return counting.operators, [each.detach().numpy().tobytes() for each in model.parameters()]


@pytest.mark.parametrize("tier", ["guard", "hooks", "native", "live"])
def test_a_mode_sees_the_operators_of_the_training_only(tier: str) -> None:
    assert seen(tier) == seen(None)
