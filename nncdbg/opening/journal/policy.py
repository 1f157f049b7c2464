"""When a run writes a checkpoint or values, and which older ones stay within a budget of bytes."""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nncdbg.engine.memory import parse_bytes
from nncdbg.errors import UsageError

DEFAULT_EVERY = "60s"
"""A restart computes at most this much again, and the time to write a checkpoint is not noticed."""

DEFAULT_BUDGET = "4GiB"

_EVERY = re.compile(r"([1-9][0-9]{0,11})\s*(steps?|epochs?|s)?|([0-9]*\.[0-9]+)\s*s")


_SPARSE = tuple(2.0**-power for power in range(12, 0, -1))
"""Densities below one checkpoint for each power of two."""


@dataclass(frozen=True, slots=True)
class Every:
    """The distance of two checkpoints, in one of three units."""

    steps: int = 0
    epochs: int = 0
    seconds: float = 0.0


def read_every(text: str, flag: str = "--checkpoint-every") -> Every:
    """Return the distance in a text: `50` (steps), `3epochs` or `30s`.  Raises UsageError for others."""
    found = _EVERY.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{flag} {text}: not a distance", hint="write 50 (steps), 3epochs or 30s")
    count, unit, seconds = found.groups()
    if unit == "s" or seconds is not None:
        return Every(seconds=float(seconds or count))
    if unit is not None and unit.startswith("epoch"):
        return Every(epochs=int(count))
    return Every(steps=int(count))


@dataclass(slots=True)
class Interval:
    """Decides whether the distance from the last time has passed; it has at first."""

    every: Every
    clock: Callable[[], float] = time.monotonic
    _last: tuple[int, int, float] | None = None
    """(step, epoch, time) of the last time."""

    def due(self, step: int, epoch: int) -> bool:
        """Return whether the distance has passed at a step."""
        if self._last is None:
            return True
        last_step, last_epoch, then = self._last
        if self.every.steps:
            return step - last_step >= self.every.steps
        if self.every.epochs:
            return epoch - last_epoch >= self.every.epochs
        return self.clock() - then >= self.every.seconds

    def passed(self, step: int, epoch: int) -> None:
        """Begin the next distance."""
        self._last = step, epoch, self.clock()


@dataclass(slots=True)
class Retention:
    """Decides which of the items that were written at some steps stay within a budget of bytes.

    The first item is never dropped.
    """

    budget: int
    _kept: list[tuple[int, int]] = field(default_factory=list)
    """(number in the order of writing, step) of the items that are kept."""
    _written: int = 0
    _largest: int = 0

    def written(self, step: int, size: int) -> list[int]:
        """Record an item of `size` bytes, and return the steps of the items to drop."""
        self._kept.append((self._written, step))
        self._written += 1
        self._largest = max(self._largest, size)
        most = max(2, self.budget // max(1, self._largest))
        if len(self._kept) <= most:
            return []
        numbers, latest = [number for number, _ in self._kept], self._written - 1
        # Room for the next ones, so that few items sort the older ones.
        goal = max(2, most - most // 4)
        densities = [*_SPARSE, *range(1, most + 1)]
        fitting = bisect_right(densities, goal, key=lambda each: len(kept(numbers, latest, each)))
        density = densities[max(0, fitting - 1)]
        stay = {*_thinned(kept(numbers, latest, density), goal)}
        dropped = [step for number, step in self._kept if number not in stay]
        self._kept = [each for each in self._kept if each[0] in stay]
        return dropped


class CheckpointPolicy:
    """Decides at the start of each step whether to write a checkpoint, and which ones to drop after it."""

    def __init__(self, every: Every, budget: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval, self.retention = Interval(every, clock), Retention(budget)

    @staticmethod
    def of(every: str | None, budget: str | None) -> CheckpointPolicy:
        """Return the policy of two flags.  Raises UsageError for texts that are malformed."""
        return CheckpointPolicy(read_every(every or DEFAULT_EVERY), parse_bytes(budget or DEFAULT_BUDGET))

    def due(self, step: int, epoch: int) -> bool:
        """Return whether to write a checkpoint at the start of a step."""
        return self.interval.due(step, epoch)

    def written(self, step: int, epoch: int, size: int) -> list[int]:
        """Record a checkpoint of `size` bytes, and return the steps of the checkpoints to drop."""
        self.interval.passed(step, epoch)
        return self.retention.written(step, size)


def kept(numbers: Sequence[int], latest: int, density: float) -> list[int]:
    """Return the checkpoints to keep out of `numbers`, given that `latest` is the newest.

    Checkpoints are numbered in the order of writing.  At a distance of `density` 2^k to `density` 2^(k+1)
    from the latest one, every 2^k-th one stays, and the first one always does.  So about
    `density` log2(latest / `density`) + 2 `density` checkpoints stay, and going back by a distance d computes
    at most d / `density` of the distance again.  A checkpoint that is dropped is never needed later: a power
    of two divides the next one.
    """
    return [number for number in numbers if number == 0 or number % spacing(latest - number, density) == 0]


def _thinned(numbers: list[int], most: int) -> list[int]:
    """Return at most `most` of these checkpoints, for a budget of very few.

    Each time the checkpoint goes that leaves the smallest gap on a logarithmic scale of distances from the
    latest one.
    """
    numbers, latest = [*numbers], numbers[-1]
    while len(numbers) > most:
        places = range(1, len(numbers) - 1)
        gaps = [(latest - numbers[at - 1] + 1) / (latest - numbers[at + 1] + 1) for at in places]
        del numbers[1 + gaps.index(min(gaps))]
    return numbers


def spacing(distance: int, density: float) -> int:
    """Return the distance of two checkpoints that stay, at a distance from the latest one."""
    return 1 << max(0, int(distance / density).bit_length() - 1)
