"""When a finding in another program is the same: kind, op and cause; and how a program is asked for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nncdbg.engine.diagnosis.sightings import ENTRANCE, Sighting
from nncdbg.engine.errors import NncdbgError, UsageError
from nncdbg.engine.graph import Program
from nncdbg.nan_watch.configuration import WatchConfiguration
from nncdbg.nan_watch.measuring.gates import KINDS, Gates
from nncdbg.nan_watch.records import Report, WatchFinding
from nncdbg.nan_watch.reduction.case import Case
from nncdbg.nan_watch.reduction.tracing import Target, Trace, trace


@dataclass(frozen=True, slots=True)
class Signature:
    """What makes a finding the same one: `within` is the op of the micro program, "" for none.

    What came in bad has no op; there the name of the input or parameter counts.
    """

    kind: str
    op: str
    cause: str
    within: str = ""
    name: str = ""

    @classmethod
    def of(cls, finding: WatchFinding) -> Signature:
        site, within = finding.site, finding.within
        return cls(
            finding.kind, site.op, finding.cause, within.op if within else "", "" if site.op else site.value
        )

    def is_seen(self, sighting: Sighting, gates: Gates) -> bool:
        """Whether this is where the finding, or for what came in bad its first reader, is in a run."""
        code, pc = sighting.statement.code, sighting.statement.pc
        if gates.kind_of(sighting) != self.kind or pc == ENTRANCE:
            return False
        if not self.op:
            read = any(operand.name == self.name for operand in sighting.operands)
            return sighting.role == "propagated" and read
        op = code.nodes[pc].op if pc < len(code.nodes) else "return"
        cause = sighting.cause.name if sighting.cause else ""
        inside = sighting.within
        within = inside.code.nodes[inside.pc].op if inside is not None else ""
        return sighting.born and (op, cause, within) == (self.op, self.cause, self.within)

    def __str__(self) -> str:
        where = f"in {self.op}" if self.op else f"in %{self.name}"
        return f"{self.kind} {where}: {self.cause}" if self.cause else f"{self.kind} {where}"


def tripping(report: Report) -> WatchFinding | None:
    """The finding that a watch fails on first."""
    return next(report.tripping, None)


def found_first(program: Program, inputs: Any, configuration: WatchConfiguration) -> WatchFinding:
    """The finding that trips a watch of this program.

    Raises UsageError if there is none, and what ended the run if that did not come to its end before.
    """
    report = configuration.watch(program, inputs)
    found = tripping(report)
    if found is not None:
        return found
    if report.error is not None:
        raise report.error
    raise UsageError(
        "nothing to reduce: the watch reports no finding",
        hint=f"pass inputs that cause a finding; the gates are {', '.join(configuration.fail_on)}",
    )


@dataclass(slots=True)
class Probe:
    """Asks whether a case shows the finding; `runs` counts how often."""

    signature: Signature
    configuration: WatchConfiguration
    asked: Callable[[int], None] = lambda runs: None
    runs: int = 0

    def __call__(self, case: Case) -> bool:
        self.runs += 1
        self.asked(self.runs)
        return self.finding(case) is not None

    def finding(self, case: Case) -> WatchFinding | None:
        """The finding in a case, if the first that trips is the same one."""
        return self.finding_in(case.program(), case.inputs)

    def finding_in(self, program: Program, inputs: Any) -> WatchFinding | None:
        """The finding in a program, if the first that trips is the same one."""
        try:
            found = tripping(self.configuration.watch(program, inputs, max_findings=1))
        except NncdbgError:
            # What cannot be run does not show it.
            return None
        return found if found is not None and Signature.of(found) == self.signature else None

    def trace(self, program: Program, inputs: Any, finding: WatchFinding) -> Trace:
        """The run of a program that shows the finding, up to that.

        Raises RunError if it does not come again.
        """
        gates, site = self.configuration.gates, finding.site
        target = Target(place=(site.op, site.value, finding.iteration))
        if finding.kind in KINDS:
            target = Target(lambda sighting: self.signature.is_seen(sighting, gates))
        return trace(self.configuration.debugger(program, inputs), target)
