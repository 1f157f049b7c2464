"""The numbers of a track over the steps, on each branch of the history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nncdbg.engine.time.timeline import Branch

LATEST = 100_000
"""Maximum number of steps per branch whose numbers are kept."""


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


@dataclass(slots=True)
class RecordedTrack:
    """The numbers of one track by branch and step.

    `first_step` is the number of steps of the ``run`` lines before that of the track.
    """

    name: str
    part: str
    first_step: int
    branches: dict[int, dict[int, Point]] = field(default_factory=dict)

    def add(self, branch: int, point: Point) -> bool:
        """Add the number of a step; return False if the step already has this number on the branch."""
        points = self.branches.setdefault(branch, {})
        before = points.get(point.step)
        points[point.step] = point
        if before is None and len(points) > LATEST:
            del points[next(iter(points))]
        return before is None or not same(before.number, point.number)

    def series(
        self,
        branches: Mapping[int, Branch],
        branch: int,
        tick: float,
        ended: int,
        earlier: Sequence[Point] = (),
    ) -> TrackedSeries:
        """Return the numbers of a branch, and those of its parents before it began, up to a tick.

        `earlier` are the numbers of the steps before this session.  Those of the first `ended` steps of all
        ``run`` lines are included, but not those of steps that a branch has executed in another way.
        """
        found: dict[int, Point] = {}
        number: int | None = branch
        while number is not None:
            for step, point in self.branches.get(number, {}).items():
                if point.tick <= tick and step not in found:
                    found[step] = point
            tick, parent = min(tick, branches[number].tick), branches[number].parent
            if parent is not None:
                ended = min(ended, branches[number].steps)
            number = parent
        for point in earlier:
            if self.first_step + point.step < ended:
                found.setdefault(point.step, point)
        return TrackedSeries(self.name, self.part, [found[step] for step in sorted(found)[-LATEST:]])


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
