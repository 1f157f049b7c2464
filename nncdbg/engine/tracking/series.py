"""The numbers of a track over the steps, on each branch of the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nncdbg.engine.time.timeline import Branch
from nncdbg.stats.series import Point, TrackedSeries, same

LATEST = 100_000
"""Maximum number of steps per branch whose numbers are kept."""


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
