"""Watch one run of a program and report its findings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from nncdbg.engine.backends import Backend
from nncdbg.engine.backends import backend as backend_of
from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.diagnosis.register import NONE
from nncdbg.engine.diagnosis.sightings import ENTRANCE, Sighting
from nncdbg.engine.errors import StoppedRun
from nncdbg.engine.execution.check_results import NOT_CHECKED, CheckResult
from nncdbg.engine.execution.findings import NUMERIC, STATE_RESET
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.memory.lean import LeanAllocation
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.aten.names import allocates_only, is_torch, overwrites
from nncdbg.engine.ops.causes import RECEIVED
from nncdbg.engine.ops.influence import Infinities
from nncdbg.engine.schedules.streams import streams_of
from nncdbg.engine.text.lexemes import name_text
from nncdbg.nan_watch.measuring.dead_units import dead_unit_warnings
from nncdbg.nan_watch.measuring.gate_results import gate_results
from nncdbg.nan_watch.measuring.gates import Gates
from nncdbg.nan_watch.measuring.index_faults import index_fault
from nncdbg.nan_watch.measuring.progress import KIND as PROGRESS
from nncdbg.nan_watch.measuring.progress import progress_of
from nncdbg.nan_watch.measuring.state_resets import ResetGate
from nncdbg.nan_watch.measuring.step_norms import StepNorms
from nncdbg.nan_watch.measuring.steps import FirstBadStep, step_at
from nncdbg.nan_watch.measuring.training import TrainingJudge
from nncdbg.nan_watch.measuring.update_warnings import update_warnings
from nncdbg.nan_watch.records import FindingSite, FindingUse, Operand, Report, WatchFinding
from nncdbg.nan_watch.schedules.findings import schedule_findings
from nncdbg.nan_watch.sites import calls_of, first_output, in_text_order, site_of

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.stopping.stops import Stop
    from nncdbg.nan_watch.measuring.measuring import Measuring

MAX_FINDINGS = 20
"""Findings that a report lists by default."""


def usual_allocation(
    allocator: str | Allocation | None,
    backend: str | Backend,
    statistics: bool,
    in_place_states: bool = False,
) -> str | Allocation | None:
    """Return the allocator of a watched run: the requested one, else the cheapest that detects everything.

    Only the buffers of `debug` support statistics; `lean` guards those of kernels that are not nncdbg's own.
    For states in place, return None: Debugger chooses an allocator that overwrites them.
    """
    if allocator is not None or in_place_states or not backend_of(backend).on_host:
        return allocator
    return "debug" if statistics else LeanAllocation()


def watch_run(
    debugger: Debugger,
    gates: Gates,
    *,
    max_findings: int = MAX_FINDINGS,
    run: Callable[[], Stop] | None = None,
    measuring: Measuring | None = None,
) -> Report:
    """Run a program from its start to its end, and report the findings.

    `run` runs it (`debugger.run`, if None); `measuring` observes it, and returns the findings of ranges.
    A run that fails or is paused ends the watch; findings up to there are reported, with `Report.error`.
    A training ends after its first step with a finding that trips a gate and influences later steps.
    """
    debugger.uncatch()
    move = run or debugger.run
    trail = debugger.observers.follow(debugger.control)
    norms = StepNorms(debugger)
    bad = FirstBadStep(debugger, trail, gates)
    resets = None
    if STATE_RESET in gates.kinds - debugger.observers.beyond().keys():
        resets = ResetGate(debugger)
        move = partial(resets.run, move)
    started = time.perf_counter()
    stop = measuring.run(move) if measuring is not None else move()
    seconds = time.perf_counter() - started
    trail.conclude(ended=stop.reason == "end", complete=bad.step is not None)
    report = Report(ops=debugger.timeline.tick, seconds=seconds, notes=[*map(str, debugger.notes)])
    report.notes += [*_remarks(debugger)]
    report.training, report.tracks = norms.finished(), debugger.tracks
    measured, left = measuring.found() if measuring is not None else ([], [])
    measured += resets.findings if resets is not None else []
    fault = index_fault(debugger, stop) if stop.reason == "exception" and "integer" in gates.kinds else None
    measured = [*measured, *([fault] if fault is not None else [])]
    if "race" in gates.kinds and streams_of(debugger.program):
        measured += schedule_findings(debugger.program)[0]
    gated = {gate.kind for gate in gates.thresholds}
    if "update" not in gated:
        measured += update_warnings(norms, report.training, debugger)
    if "dead" not in gated:
        for history in report.training:
            measured += dead_unit_warnings(norms.activities(history), debugger)
    trips = PROGRESS in gates.kinds
    if stop.reason == "end":
        explained = any(each.is_warning for each in measured)
        judged, unjudged = progress_of(norms, report, debugger, explained=explained, trips=trips)
        measured = [*judged, *measured]
        left = [*left, *(unjudged if trips else [])]
    elif trips:
        left = [*left, CheckResult(PROGRESS, NOT_CHECKED, "the training did not run to its end")]
    _tell(report, trail.sightings, measured, gates, debugger, max_findings)
    if bad.step is not None:
        report.notes.append(bad.note())
    elif stop.reason != "end":
        report.error = _failure(stop)
        rest = f"statements after line {stop.line}"
        report.results.append(CheckResult(rest, NOT_CHECKED, "the run did not finish"))
    failed = (CheckResult(failure, NOT_CHECKED) for failure in debugger.observers.failed_rules)
    report.results += [*gate_results(debugger, gates, left), *failed]
    return report


def _remarks(debugger: Debugger) -> Iterator[str]:
    """Yield the remarks of ops about their results, in the order of the text."""
    found = debugger.observers.remarks.found
    placed = [(debugger.loaded.line(code, pc), code.nodes[pc], words) for (code, pc), words in found.items()]
    for line, node, words in sorted(placed, key=lambda each: each[0] or 0):
        yield f"%{name_text(node.outputs[0].name)} at {node.op}, line {line}: {words}"


def _failure(stop: Stop) -> Exception:
    if isinstance(stop.error, Exception):
        return stop.error
    return StoppedRun(f"the run was stopped: {stop.detail or stop.reason}")


def _tell(
    report: Report,
    sightings: list[Sighting],
    measured: list[WatchFinding],
    gates: Gates,
    debugger: Debugger,
    max_findings: int,
) -> None:
    """Fill in the findings: those that trip, then those with effect on an output, then the others."""
    ordered = sorted(
        in_text_order(_with_content(sightings), debugger.loaded.places), key=lambda each: each.dropped
    )
    judge = TrainingJudge(debugger)
    received = _received(sightings)
    found = [(_finding(each, gates, debugger, judge), each.number in received) for each in ordered]
    found += [(each, False) for each in measured]
    if any(each.trips for each, _ in found):
        found = [(each, theirs) for each, theirs in found if not each.is_warning]
    found.sort(key=lambda pair: (not pair[0].trips, pair[1], not pair[0].reaches_output))
    own = [each for each, theirs in found if not theirs]
    origin = next((each for each in own if each.trips), None) or next(filter(_originates, own), None)
    report.findings = [replace(each, first=True) if each is origin else each for each, _ in found]
    for finding in report.findings:
        report.counts[finding.role] += 1
    report.limit(max_findings)


def _received(sightings: Sequence[Sighting]) -> set[int]:
    """Return the numbers of what another rank has sent, and of what follows from nothing else."""
    found: set[int] = set()
    for each in sorted(sightings, key=lambda each: each.number):
        origins = each.roots or each.parents
        if (each.cause is not None and each.cause.name == RECEIVED) or (origins and origins <= found):
            found.add(each.number)
    return found


def _originates(finding: WatchFinding) -> bool:
    return finding.role in ("birth", "masked") and not finding.is_warning


def _with_content(sightings: Sequence[Sighting]) -> list[Sighting]:
    """Return the findings without those of memory that was only allocated, or is not read, without effect."""
    unused = {each.number for each in sightings if each.born and _allocates(each.statement)}
    unused |= _unread(sightings)
    return [each for each in sightings if each.reaches_output or not (each.roots or {each.number}) <= unused]


def _unread(sightings: Sequence[Sighting]) -> set[int]:
    """Return the values that are bad from the start and that operators of PyTorch only move: padding."""
    entered = {each.number for each in sightings if each.statement.pc == ENTRANCE and not each.reaches_output}
    later = [each for each in sightings if each.statement.pc != ENTRANCE]
    moved = NONE.union(*(each.roots for each in later if _moves(each.statement)))
    read = NONE.union(*(each.roots | each.parents for each in later if not _moves(each.statement)))
    return (entered & moved) - read


def _moves(statement: Statement) -> bool:
    """Return whether an operator of PyTorch moves or overwrites elements of its operands."""
    nodes = statement.code.nodes
    if statement.pc >= len(nodes) or not is_torch(nodes[statement.pc].op):
        return False
    op = lookup(nodes[statement.pc].op, 1)
    return op is not None and (op.influence.infinities is Infinities.KEPT or overwrites(op.name))


def _allocates(statement: Statement) -> bool:
    """Return whether it is an allocation, rather than another statement or an end of the block."""
    nodes = statement.code.nodes
    return 0 <= statement.pc < len(nodes) and allocates_only(nodes[statement.pc].op)


def _finding(sighting: Sighting, gates: Gates, debugger: Debugger, judge: TrainingJudge) -> WatchFinding:
    role = sighting.role
    if role == "birth" and not sighting.reaches_output and sighting.kind in NUMERIC:
        role = "masked"
    cause = sighting.cause
    loop = judge.verdict(sighting)
    evidence = [cause.evidence if cause else "", loop.evidence if loop else "", sighting.effect]
    hints = [loop.hint if loop else "", cause.hint if cause else ""]
    return WatchFinding(
        kind=gates.kind_of(sighting),
        role=role,
        site=site_of(sighting.statement.code, sighting.statement.pc, sighting.value, debugger),
        iteration=sighting.iteration,
        inputs=tuple(Operand(each.name, each.type, each.stats) for each in sighting.operands),
        stats=sighting.stats,
        reaches_output=sighting.reaches_output,
        cause=cause.name if cause else "",
        evidence="; ".join(filter(None, evidence)),
        hint=next(filter(None, hints), ""),
        verdict=loop.name if loop else "",
        within=_within(sighting, debugger),
        other=_other(sighting, debugger),
        calls=calls_of(sighting.calls, debugger),
        used=_used(sighting, debugger),
        count=sighting.count,
        trips=gates.trips(sighting),
        at_step=step_at(sighting),
    )


def _within(sighting: Sighting, debugger: Debugger) -> FindingSite | None:
    if sighting.within is None:
        return None
    code, pc = sighting.within.code, sighting.within.pc
    return site_of(code, pc, code.nodes[pc].outputs[0].name, debugger)


def _used(sighting: Sighting, debugger: Debugger) -> FindingUse | None:
    visit = sighting.used
    if visit is None:
        return None
    at = visit.statement
    site = site_of(at.code, at.pc, first_output(at), debugger)
    return FindingUse(site, visit.iteration, calls_of(visit.calls, debugger), step_at(visit))


def _other(sighting: Sighting, debugger: Debugger) -> FindingSite | None:
    if sighting.other is None:
        return None
    at = sighting.other
    return site_of(at.code, at.pc, first_output(at), debugger)
