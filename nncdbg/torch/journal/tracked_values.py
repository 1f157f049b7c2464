"""Values that a training tracks: one number for each name and step, computed where the tensors are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from nncdbg.engine.errors import UsageError


@dataclass(slots=True)
class _Sum:
    """The weighted sum of a value in one step; a tensor stays on its device."""

    step: int
    total: Any
    weight: float


class TrackedValues:
    """Collects values by name, and writes their means after each `every` steps.

    `write` is called with name, step, value and part.
    """

    def __init__(self, write: Callable[[str, int, float, str], None], every: int) -> None:
        self._write = write
        self._every = every
        self._open: dict[tuple[str, str], _Sum] = {}
        """The values of the last step, by name and part."""
        self._complete: list[tuple[str, str, _Sum]] = []
        self._fetched_at = 0

    def add(self, name: str, step: int, value: Any, part: str, weight: float) -> None:
        """Add a number, or a tensor with one element, to the mean of a step."""
        number = _as_number(name, value)
        if weight != 1:
            number = number * weight
        known = self._open.get((name, part))
        if known is not None and known.step == step:
            known.total = known.total + number
            known.weight += weight
            return
        if known is not None:
            self._complete.append((name, part, known))
        self._open[name, part] = _Sum(step, number, weight)

    def begin_step(self, step: int) -> None:
        """Write what is due at the beginning of a step."""
        if step - self._fetched_at >= self._every:
            self._fetched_at = step
            self.fetch()

    def fetch(self) -> None:
        """Write all values, with one transfer for each device."""
        complete = [*self._complete, *((name, part, each) for (name, part), each in self._open.items())]
        self._complete, self._open = [], {}
        by_device: dict[Any, list[tuple[str, str, _Sum]]] = {}
        for item in complete:
            total = item[2].total
            by_device.setdefault(total.device if isinstance(total, torch.Tensor) else None, []).append(item)
        for device, items in by_device.items():
            totals = [each.total for _, _, each in items]
            numbers = totals if device is None else torch.stack(totals).tolist()
            for (name, part, each), number in zip(items, numbers, strict=True):
                self._write(name, each.step, number / each.weight, part)


def _as_number(name: str, value: Any) -> Any:
    """Return a number of Python, or a tensor on its device that the user does not change."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex() or value.is_meta:
            raise UsageError(
                f"{name} must be a real number or a tensor with one element, "
                f"not a tensor of {str(value.dtype).removeprefix('torch.')} with shape {tuple(value.shape)}",
                hint=f"nncdbg.torch.track({name!r}, tensor.mean())",
            )
        # A copy: the user may write to the tensor before it is fetched.
        wide = torch.float32 if value.device.type == "mps" else torch.float64
        return value.detach().reshape(()).to(wide, copy=True)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(
            f"{name} must be a number or a tensor with one element, not {type(value).__name__}",
            hint="pass a number, a tensor, or a function that returns one",
        ) from None
