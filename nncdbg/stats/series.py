"""The numbers of a track over the steps of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """The number of one step: `samples` of its batch, the `epoch` of the step, statements run before it."""

    step: int
    number: float
    samples: int
    epoch: int
    tick: int


@dataclass(frozen=True, slots=True)
class TrackedSeries:
    """The numbers of one track up to the present moment, in the order of the steps.

    `part` is ``train`` (one number per step) or ``test`` (one per epoch, at its last step).
    """

    name: str
    part: str
    points: Sequence[Point]

    @property
    def steps(self) -> list[int]:
        """The steps that have a number, from 0."""
        return [each.step for each in self.points]

    @property
    def numbers(self) -> list[float]:
        """The numbers of these steps."""
        return [each.number for each in self.points]

    @property
    def epochs(self) -> dict[int, float]:
        """The mean over each epoch, weighted by the samples of the batches."""
        grouped: dict[int, list[Point]] = {}
        for each in self.points:
            grouped.setdefault(each.epoch, []).append(each)
        return {
            epoch: weighted_mean([(each.number, each.samples) for each in points])
            for epoch, points in grouped.items()
        }

    def as_dict(self) -> dict[str, object]:
        """Return the series as a JSON object; NaN and infinities are None."""
        return {
            "name": self.name,
            "part": self.part,
            "steps": self.steps,
            "values": [_finite(each) for each in self.numbers],
            "epochs": [{"epoch": epoch, "mean": _finite(mean)} for epoch, mean in self.epochs.items()],
        }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def same(a: float, b: float) -> bool:
    """Return whether two numbers are equal; NaN equals itself."""
    return a == b or (math.isnan(a) and math.isnan(b))


def weighted_mean(parts: Sequence[tuple[float, int]]) -> float:
    """Return the mean of (number, samples), rounded once; the number itself if there is only one."""
    if len(parts) == 1:
        return parts[0][0]
    try:
        return math.fsum(number * samples for number, samples in parts) / sum(each[1] for each in parts)
    except (OverflowError, ValueError):
        # fsum refuses sums over infinities of both signs, whose mean is NaN.
        return sum(number * samples for number, samples in parts) / sum(each[1] for each in parts)
