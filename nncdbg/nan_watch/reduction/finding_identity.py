"""Decide whether two programs have the same finding: by kind, op and cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nncdbg.engine.diagnosis.finding_records import ENTRANCE, FindingRecord
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.ir.records import Program
from nncdbg.nan_watch.configuration import WatchConfiguration
from nncdbg.nan_watch.measuring.gates import KINDS, Gates
from nncdbg.nan_watch.records import WatchFinding
from nncdbg.nan_watch.reduction.case import ReducedCase
from nncdbg.nan_watch.reduction.straight_line import StatementTrace
from nncdbg.text.lexemes import name_text


@dataclass(frozen=True, slots=True)
class FindingSignature:
    """The identity of a finding across programs: `within` is the op of the micro program, "" for none.

    A non-finite input or parameter has no op; its name is compared instead.
    """

    kind: str
    op: str
    cause: str
    within: str = ""
    name: str = ""

    @classmethod
    def of(cls, finding: WatchFinding) -> FindingSignature:
        site, within = finding.site, finding.within
        return cls(
            finding.kind, site.op, finding.cause, within.op if within else "", "" if site.op else site.value
        )

    def is_seen(self, sighting: FindingRecord, gates: Gates) -> bool:
        """Return whether a run's finding is this one, or the first read of this non-finite input."""
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
        where = f"in {self.op}" if self.op else f"in %{name_text(self.name)}"
        return f"{self.kind} {where}: {self.cause}" if self.cause else f"{self.kind} {where}"


def found_first(program: Program, inputs: Any, configuration: WatchConfiguration) -> WatchFinding:
    """Return the finding that trips a watch of this program.

    Raises UsageError if there is none, or the error of a run that did not finish.
    """
    report = configuration.watch(program, inputs)
    found = next(report.tripping, None)
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
    """Checks whether a case shows the finding; `runs` counts the checks."""

    signature: FindingSignature
    configuration: WatchConfiguration
    asked: Callable[[int], None] = lambda runs: None
    runs: int = 0

    def __call__(self, case: ReducedCase) -> bool:
        self.runs += 1
        self.asked(self.runs)
        return self.finding(case) is not None

    def finding(self, case: ReducedCase) -> WatchFinding | None:
        """Return the first tripping finding in a case if it is the same one."""
        return self.finding_in(case.program(), case.inputs)

    def finding_in(self, program: Program, inputs: Any) -> WatchFinding | None:
        """Return the first tripping finding in a program if it is the same one."""
        try:
            found = next(self.configuration.watch(program, inputs, max_findings=1).tripping, None)
        except NncdbgError:
            # A program that cannot run does not show the finding.
            return None
        return found if found is not None and FindingSignature.of(found) == self.signature else None

    def trace(self, program: Program, inputs: Any, finding: WatchFinding) -> StatementTrace:
        """Return the run of a program up to the finding.

        Raises RunError if the finding does not recur.
        """
        gates, site = self.configuration.gates, finding.site
        debugger = self.configuration.debugger(program, inputs)
        if finding.kind in KINDS:
            return StatementTrace(debugger, lambda sighting: self.signature.is_seen(sighting, gates)).run()
        return StatementTrace(debugger, place=(site.op, site.value, finding.iteration)).run()
