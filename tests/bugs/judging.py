"""Compare reports of the watch with the labels, and compute the figures over a corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import nncdbg
from nncdbg.nan_watch.measuring.gates import USUAL
from nncdbg.nan_watch.records import TRIPPED, Report, WatchFinding
from tests.bugs.labels import NOTHING, ROOT, Bug, Label

CONTROL_GATES = (*USUAL, "guard")
"""Gates that a control must not trip: the default gates and `guard`."""

ASPECTS = ("origin", "cause", "details", "alarm")
"""The checked aspects of a report: place, cause, the rest of the label, and false alarms."""


@cache
def complaints(bug: Bug, allocator: str | None = None) -> Mapping[str, str]:
    """Return the wrong aspects of the watch's report with a reason; empty if all are right."""
    with bug.kernels():
        return _compared(bug.label, partial(nncdbg.watch, bug.program, bug.inputs(), allocator=allocator))


def _compared(label: Label, watch: Callable[..., Report]) -> dict[str, str]:
    if label.innocent:
        return _false_alarm(watch(fail_on=CONTROL_GATES))
    masked = label.reaches == NOTHING and "overflow" not in label.gates
    report = watch(fail_on=label.gates, strict=masked)
    found = _misses(label, report)
    if masked:
        found |= _false_alarm(watch(fail_on=label.gates))
    return found


def _false_alarm(report: Report) -> dict[str, str]:
    if report.error is not None:
        return {"alarm": f"the run failed: {report.error}"}
    reported = [f"{each.kind} at line {each.site.line}, {each.cause}" for each in report.tripping]
    return {"alarm": "; ".join(reported)} if reported else {}


def _misses(label: Label, report: Report) -> dict[str, str]:
    first = next((finding for finding in report.findings if finding.first), None)
    if report.status != TRIPPED or first is None:
        return {"origin": f"nothing is found ({report.error or report.status})"}
    wrong = {}
    if (where := _where(label, first)) is not None:
        wrong["origin"] = where
    if label.cause is not None and first.cause != label.cause:
        wrong["cause"] = f"{first.cause!r} instead of {label.cause!r}: {first.evidence}"
    if details := "; ".join(_details(label, first, report.findings)):
        wrong["details"] = details
    return wrong


def _where(label: Label, first: WatchFinding) -> str | None:
    """Return a description of the wrong place; None if kind, statement and iteration are right."""
    kind = "inf" if first.kind == "overflow" else first.kind
    # The iteration that reads an input or a parameter is not part of its place.
    iteration = label.iteration if label.origin else first.iteration
    place = first.site.value if label.origin else first.site.line
    right = label.origin or label.lines["origin"][0]
    if (kind, iteration, place) == (label.expect, label.iteration, right):
        return None
    reported = f"{first.kind} at {place} {list(first.iteration)}"
    return f"{reported}, not {label.expect} at {right} {list(label.iteration)}"


def _details(label: Label, first: WatchFinding, findings: Sequence[WatchFinding]) -> Iterator[str]:
    role = "propagated" if label.origin else "masked" if label.reaches == NOTHING else "birth"
    if first.role != role:
        yield f"its role is {first.role}, not {role}"
    if label.reaches != "unknown" and first.reaches_output != (label.reaches == "output"):
        yield f"it is reported to reach {'an output' if first.reaches_output else 'none'}"
    if label.within and (first.within is None or first.within.op not in label.within):
        yield f"within is {first.within and first.within.op}, not {' or '.join(label.within)}"
    if label.evidence not in first.evidence:
        yield f"{label.evidence!r} is not in the evidence: {first.evidence}"
    if label.absent and label.absent in first.evidence + first.hint:
        yield f"{label.absent!r} is reported, but is wrong: {first.evidence}; {first.hint}"
    for mark, roles in (("birth", ("birth", "masked")), ("healed", ("healed",))):
        seen = {finding.site.line for finding in findings if finding.role in roles}
        if left := [line for line in label.lines[mark] if line not in seen]:
            yield f"no {mark} is reported at {left}"
    culprits = [first.other.line] if first.other is not None else []
    if label.lines["culprit"] and culprits != [*label.lines["culprit"]]:
        yield f"the culprit is at {culprits}, not at {[*label.lines['culprit']]}"


def known(root: Path = ROOT) -> dict[str, dict[str, str]]:
    """Return the reason of each known miss per program and aspect (`known.txt`)."""
    found: dict[str, dict[str, str]] = {}
    for line in (root / "known.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            place, reason = line.split(": ", 1)
            name, aspect = place.rsplit(" ", 1)
            found.setdefault(name, {})[aspect] = reason
    return found


@dataclass(frozen=True)
class Figures:
    """Counts of bugs and of right reports, and of controls and false alarms."""

    bugs: int
    origins: int
    explained: int
    causes: int
    controls: int
    alarms: int

    @property
    def origin(self) -> float:
        """Share of the bugs with exactly the right origin."""
        return self.origins / self.bugs

    @property
    def cause(self) -> float:
        """Share of the right causes among the bugs with a cause."""
        return self.causes / self.explained

    def __str__(self) -> str:
        return (
            f"{self.bugs} bugs: origin right in {self.origins} ({self.origin:.1%}), "
            f"cause right in {self.causes} of {self.explained} ({self.cause:.1%}); "
            f"{self.controls} controls: {self.alarms} false alarms"
        )


def figures(programs: Sequence[Bug]) -> Figures:
    """Watch these programs, and return the figures."""
    bugs = [bug for bug in programs if not bug.label.innocent]
    explained = [bug for bug in bugs if bug.label.cause is not None]
    controls = [bug for bug in programs if bug.label.innocent]
    return Figures(
        len(bugs),
        sum("origin" not in complaints(bug) for bug in bugs),
        len(explained),
        sum(not {"origin", "cause"} & {*complaints(bug)} for bug in explained),
        len(controls),
        # A masked bug that trips without --strict counts as a false alarm too.
        sum("alarm" in complaints(bug) for bug in programs),
    )
