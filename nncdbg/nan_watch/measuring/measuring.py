"""Measurements of a watch besides origins: ranges and growing trouble, in one run of one debugger."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.errors import UsageError
from nncdbg.engine.execution.check_results import CheckResult
from nncdbg.nan_watch.baselines.recording import Recording, check_model, compare
from nncdbg.nan_watch.measuring.carried import Carried
from nncdbg.nan_watch.measuring.gates import Gates
from nncdbg.nan_watch.measuring.judging import judge, not_judged
from nncdbg.nan_watch.measuring.ranges import Ranges
from nncdbg.nan_watch.measuring.tracks import Track
from nncdbg.nan_watch.measuring.trouble import Trouble
from nncdbg.nan_watch.records import WatchFinding

if TYPE_CHECKING:
    from nncdbg.engine.stopping.stops import Stop


class Measuring:
    """Measurements of one run, attached to a debugger at its start.

    Gates that measure need a debugger made with `statistics=True`.
    `found` returns the findings of ranges; `tracks` holds the measurements, for `verdict`, possibly together
    with those of other runs.  `keep` measures even without a gate that needs it; `good` is the recorded
    run to compare with.  Raises UsageError for a gate that matches nothing, and for a recording of another
    model.
    """

    def __init__(
        self, debugger: Debugger, gates: Gates, *, keep: bool = False, good: Recording | None = None
    ) -> None:
        if good is not None:
            check_model(good, debugger.program)
        self._ranges = Ranges(debugger, gates.ranges)
        wanted = gates.measured or keep or good is not None
        self._trouble = Trouble(debugger, gates.thresholds) if wanted else None
        if self._trouble is not None:
            Carried(self._trouble, gates.thresholds, debugger)

    def run(self, move: Callable[[], Stop]) -> Stop:
        """Run the program until something other than a range stops it."""
        return self._ranges.run(move)

    @property
    def tracks(self) -> list[Track]:
        """The measurements of each statement, in execution order."""
        return self._trouble.tracks if self._trouble is not None else []

    def found(self) -> tuple[list[WatchFinding], list[CheckResult]]:
        """Return the findings of the ranges, and the ranges that were never evaluated."""
        return self._ranges.findings, self._ranges.unchecked


def check_good(gates: Gates, good: Recording | None) -> None:
    """Raise UsageError for a gate that compares, without a recording to compare with."""
    if good is None and any(gate.kind == "change" for gate in gates.thresholds):
        raise UsageError(
            "the gate `change` needs a recorded good run",
            hint="record a good run with --record FILE, then use --against FILE",
        )


def verdict(
    tracks: list[Track], gates: Gates, good: Recording | None
) -> tuple[list[WatchFinding], list[CheckResult]]:
    """Return the findings in the measurements of one run or more, and the gates that could not judge."""
    findings = list(judge(tracks, gates))
    unchecked = list(not_judged(tracks, gates))
    if good is not None:
        changed, left = compare(good, tracks, gates)
        findings += changed
        unchecked += left
    return findings, unchecked
