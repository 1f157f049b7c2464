"""Values that a training tracks, losses and their spikes, and which recorder or re-creation is active."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import torch

from nncdbg.engine.ops.aten.internals import is_wrapped
from nncdbg.errors import UsageError
from nncdbg.torch.hooks import leave_forks

if TYPE_CHECKING:
    from nncdbg.torch.journal.flight_recorder import FlightRecorder


RECREATIONS: list[Any] = []
"""The active `Recreation`, if any: flight recorders write nothing then, and `resume` continues there."""


ACTIVE: list[FlightRecorder] = []
"""The flight recorder that records now, if any."""

leave_forks(ACTIVE)

PARTS = ("train", "test")


def track(name: str, value: Any | Callable[[], Any], *, part: str = "train", weight: float = 1) -> None:
    """Track a value of the current step under a name, in the journal of the active flight recorder.

    `value` is a number, a tensor with one element, or a function that returns one of them, called at once.
    A tensor stays on its device, and is read there after some steps.  Values of the same name in one step are
    averaged, with `weight` as the number of samples of each.  `part` is "train" or "test".  The current step
    is the last one that began: after its update, until the next forward pass, it is still the current one.

    Raises UsageError without an active flight recorder, before its first step, and for values of other kinds.
    """
    if part not in PARTS:
        raise UsageError(f"there is no part {part!r}: use train or test")
    if not weight > 0:
        raise UsageError(f"the weight of {name} must be positive, not {weight}")
    if RECREATIONS:
        # A function may draw random numbers, so it runs as in the run that is re-created.
        if callable(value) and not hasattr(value, "__array__"):
            value()
        return
    if not ACTIVE:
        raise UsageError(
            f"{name} cannot be tracked: no flight recorder is active in this process",
            hint='use it within `with nncdbg.torch.flight_recorder(model, optimizer, "run.db"):`',
        )
    ACTIVE[-1].track(name, value, part, weight)


# -- tracked values ------------------------------------------------------------------------


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


# -- losses --------------------------------------------------------------------------------


def total_loss(losses: list[Any], scaler: Any) -> Any:
    """Return the sum of the losses of the backward passes of a step, without the factor of its scaler.

    A number, or a tensor if a loss is one.
    """
    total = sum(
        each
        if not isinstance(each, torch.Tensor)
        else each.float()
        if each.device.type == "mps"
        else each.double()
        for each in losses
    )
    return total if scaler is None or not scaler.is_enabled() else total / scaler.get_scale()


def scalar_losses(tensors: Iterable[Any]) -> list[Any]:
    """Return those of the tensors that are losses: real, with one element.

    A plain tensor on the CPU becomes a number.  Others remain tensors: reading one would wait for its device,
    or for other ranks.
    """
    return [
        each.item()
        if each.__class__ is torch.Tensor and each.is_cpu and not is_wrapped(each)
        else each.detach()
        for each in tensors
        if each.numel() == 1 and not each.is_complex()
    ]


# -- spikes of the loss, by a robust z-score -----------------------------------------------

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
