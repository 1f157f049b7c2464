"""What a watch measures beside births: ranges and growing trouble, in one run of one debugger."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.errors import UsageError
from nncdbg.nan_watch.baselines.recording import Recording, check_model, compare
from nncdbg.nan_watch.measuring.gates import Gates
from nncdbg.nan_watch.measuring.judging import judge, not_judged
from nncdbg.nan_watch.measuring.ranges import Ranges
from nncdbg.nan_watch.measuring.tracks import Track
from nncdbg.nan_watch.measuring.trouble import Trouble
from nncdbg.nan_watch.records import WatchFinding

if TYPE_CHECKING:
    from nncdbg.engine.stopping.control import Stop


class Measuring:
    """Attached to a debugger at its start, made with `statistics=True` where gates measure.

    The findings of ranges are told by `found`; `tracks` is what was measured, to be judged by `verdict`, with
    that of other runs if there are more.  With `keep` it is measured even without a gate that wants
    it; `good` is the recorded run to compare with.  Raises UsageError for a gate that names nothing, and
    for a recording of another model.
    """

    def __init__(
        self, debugger: Debugger, gates: Gates, *, keep: bool = False, good: Recording | None = None
    ) -> None:
        if good is not None:
            check_model(good, debugger.program)
        self._ranges = Ranges(debugger, gates.ranges)
        wanted = gates.measured or keep or good is not None
        self._trouble = Trouble(debugger, gates.thresholds) if wanted else None

    def run(self, move: Callable[[], Stop]) -> Stop:
        """Move the program to what stops it for others than the ranges."""
        return self._ranges.run(move)

    @property
    def tracks(self) -> list[Track]:
        """What was measured of each statement, in the order of execution."""
        return self._trouble.tracks if self._trouble is not None else []

    def found(self) -> tuple[list[WatchFinding], list[str]]:
        """The findings of the ranges, and those that could never be asked."""
        return self._ranges.findings, self._ranges.unchecked


def check_good(gates: Gates, good: Recording | None) -> None:
    """Raises UsageError for a gate that compares, where there is nothing to compare with."""
    if good is None and any(gate.kind == "change" for gate in gates.thresholds):
        raise UsageError(
            "the gate `change` needs a recorded good run",
            hint="record a good run with --record FILE, then use --against FILE",
        )


def verdict(
    tracks: list[Track], gates: Gates, good: Recording | None
) -> tuple[list[WatchFinding], list[str]]:
    """The findings in what was measured of a run, or of many, and what could not be said."""
    findings = list(judge(tracks, gates))
    unchecked = list(not_judged(tracks, gates))
    if good is not None:
        changed, left = compare(good, tracks, gates)
        findings += changed
        unchecked += left
    return findings, unchecked
