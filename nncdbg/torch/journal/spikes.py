"""Spikes of the loss, by a robust z-score."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from nncdbg.engine.errors import UsageError

_SCALE = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation."""

_LEAST = 1e-3
"""The smallest divisor, as a part of the median: losses that hardly change have nearly no deviation."""


@dataclass(frozen=True, slots=True)
class SpikeRule:
    """A loss x is a spike if ``|x - median| / (1.4826 MAD)`` is above `threshold`.

    Median and median absolute deviation (MAD) are those of the last `window` losses; with fewer than `least`
    there is no spike.  The divisor is at least 0.001 of the median.

    Raises UsageError for numbers that are not positive.
    """

    threshold: float = 10.0
    window: int = 50
    least: int = 20

    def __post_init__(self) -> None:
        if not (self.threshold > 0 and 2 <= self.least <= self.window):
            raise UsageError(
                f"a rule for spikes needs threshold > 0 and 2 <= least <= window, not {self}",
                hint="nncdbg.torch.SpikeRule(threshold=10, window=50, least=20)",
            )

    @staticmethod
    def of(given: SpikeRule | float | None) -> SpikeRule | None:
        """Return the rule that a user gave as a rule, as its threshold, or as None for no rule."""
        return given if given is None or isinstance(given, SpikeRule) else SpikeRule(float(given))


class SpikeDetector:
    """Finds spikes in a sequence of losses."""

    def __init__(self, rule: SpikeRule) -> None:
        self._rule = rule
        self._losses: deque[float] = deque(maxlen=rule.window)

    def score(self, loss: float) -> float | None:
        """Return the score of the next loss if it is a spike.  NaN and Inf are none, and are left out."""
        if not math.isfinite(loss):
            return None
        losses, rule = self._losses, self._rule
        score = None
        if len(losses) >= rule.least:
            center = median(losses)
            deviation = median(abs(each - center) for each in losses)
            divisor = max(_SCALE * deviation, _LEAST * abs(center))
            score = abs(loss - center) / divisor if divisor else math.inf if loss != center else 0.0
        losses.append(loss)
        return score if score is not None and score > rule.threshold else None
