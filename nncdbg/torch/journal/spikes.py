"""Spikes of the loss, by a robust z-score."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import fmean, median

from nncdbg.engine.errors import UsageError

_SCALE = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation."""

_MEAN_SCALE = 1.2533
"""The standard deviation of a normal distribution over its mean absolute deviation."""

_LEAST = 1e-3
"""The smallest divisor, as a part of the median: losses that hardly change have nearly no deviation.

For logarithms, this is the divisor itself.
"""


@dataclass(frozen=True, slots=True)
class SpikeRule:
    """A loss x is a spike if ``(x - median) / (1.4826 MAD)`` is above `threshold`.

    Median and median absolute deviation (MAD) are those of the last `window` losses; with fewer than `least`
    there is no spike.  If x and these losses are positive, all are replaced by their logarithms, since small
    losses of a trained model differ by factors.  If more than half of the losses are equal, MAD is 0; the
    divisor is then 1.2533 times the mean absolute deviation (Iglewicz and Hoaglin, 1993).  The divisor is at
    least 0.001 of the median, or 0.001 for logarithms.

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
        score = None
        if len(self._losses) >= self._rule.least:
            score = _robust_score(loss, [*self._losses])
        self._losses.append(loss)
        return score if score is not None and score > self._rule.threshold else None


def _robust_score(loss: float, earlier: list[float]) -> float:
    least = 0.0
    if loss > 0 and min(earlier) > 0:
        loss, earlier, least = math.log(loss), [*map(math.log, earlier)], _LEAST
    center = median(earlier)
    distances = [abs(each - center) for each in earlier]
    deviation = _SCALE * median(distances) or _MEAN_SCALE * fmean(distances)
    divisor = max(deviation, least or _LEAST * abs(center))
    if not divisor:
        return math.inf if loss > center else 0.0
    return (loss - center) / divisor
