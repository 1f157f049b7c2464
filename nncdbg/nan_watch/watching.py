"""Watch one run of a program, or several with different seeds, and report the findings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from nncdbg.comparison.check_results import NOT_APPLICABLE, NOT_CHECKED, PASSED, CheckResult
from nncdbg.dtypes import COMPLEX, FLOATS
from nncdbg.engine.backends import Backend
from nncdbg.engine.backends import backend as backend_of
from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.diagnosis.finding_records import ENTRANCE, NONE, FindingRecord
from nncdbg.engine.execution.findings import NUMERIC, RACE, STATE_RESET
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.memory.debug import LeanAllocation
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.aten.operators import allocates_only, overwrites
from nncdbg.engine.ops.causes import RECEIVED
from nncdbg.engine.ops.influence import Infinities
from nncdbg.engine.ops.schema import version_of
from nncdbg.errors import StoppedRun, UnsupportedOp, UsageError
from nncdbg.ir.records import TensorType
from nncdbg.ir.streams import streams_of
from nncdbg.ir.walk import blocks
from nncdbg.nan_watch.measuring.gates import KINDS, RANGE, Gates
from nncdbg.nan_watch.measuring.progress import KIND as PROGRESS
from nncdbg.nan_watch.measuring.progress import progress_of
from nncdbg.nan_watch.measuring.step_norms import StepNorms, dead_unit_warnings, update_warnings
from nncdbg.nan_watch.measuring.training import FirstBadStep, ResetGate, TrainingJudge, index_fault, step_at
from nncdbg.nan_watch.records import OK, TRIPPED, FindingUse, Operand, Report, WatchFinding
from nncdbg.nan_watch.schedules.findings import schedule_findings
from nncdbg.nan_watch.sites import calls_of, in_text_order, site_at, site_of, with_sources
from nncdbg.opening.corpus.cases import FAILED, UNSUPPORTED, Case
from nncdbg.text.lexemes import name_text
from nncdbg.text.torch_names import is_torch, of_other_library

if TYPE_CHECKING:
    from nncdbg.engine.stopping.stops import Stop
    from nncdbg.nan_watch.measuring.measuring import Measuring
    from nncdbg.nan_watch.recording import Recording

_MEMORY = ("uninitialized", "guard")


def gate_results(debugger: Debugger, gates: Gates, left: Sequence[CheckResult] = ()) -> list[CheckResult]:
    """Return the result of each gate after a run; `left` are those of gates that measure."""
    known = {each.check for each in left}
    ranges = [CheckResult(f"{RANGE}:{each}", PASSED) for each in gates.ranges]
    measured = [CheckResult(str(each), PASSED) for each in gates.thresholds]
    program = debugger.program
    names = dict.fromkeys(node.op for _, graph in blocks(program) for node in graph.nodes)
    ops = [op for name in names if (op := lookup(name, version_of(name, program.opsets))) is not None]
    kinds = [_of_kind(kind, debugger, ops) for kind in KINDS if kind in gates.kinds]
    return [*(each for each in (*kinds, *measured, *ranges) if each.check not in known), *left]


def _of_kind(kind: str, debugger: Debugger, ops: Iterable[Op]) -> CheckResult:
    beyond = debugger.observers.beyond()
    if kind in _MEMORY and not debugger.backend.runs_op_kernels:
        return _of_memory_of_runtime(kind, debugger, ops)
    if kind in beyond:
        return CheckResult(kind, NOT_CHECKED, beyond[kind][0])
    if kind in _MEMORY:
        return _of_memory(kind, debugger, ops)
    without = {
        "integer": "no statement divides integers, casts, quantizes or indexes"
        if not any(op.integer_fault or op.integers for op in ops)
        else "",
        "contract": "" if any(op.contract for op in ops) else "no op has a contract that is checked",
        STATE_RESET: "" if debugger.program.states else "the program has no states",
        RACE: "" if streams_of(debugger.program) else "the program has no schedule",
    }.get(kind, "")
    return CheckResult(kind, NOT_APPLICABLE, without) if without else CheckResult(kind, PASSED)


def _of_memory(kind: str, debugger: Debugger, ops: Iterable[Op]) -> CheckResult:
    """Return the result of a check of memory, which needs kernels that write to buffers of nncdbg."""
    allocation = debugger.loaded.linker.allocation
    if allocation.own_memory:
        return CheckResult(kind, NOT_CHECKED, own_memory_words(allocation.own_memory))
    if allocation.trusts_kernels and not any(
        (op.foreign and not op.reference) or op.name == "nncdbg.Empty" for op in ops
    ):
        return CheckResult(kind, NOT_APPLICABLE, "the kernels are those of nncdbg, which its tests check")
    return CheckResult(kind, PASSED)


def _of_memory_of_runtime(kind: str, debugger: Debugger, ops: Iterable[Op]) -> CheckResult:
    """Return the result of a check of memory where another runtime allocates the results of its kernels."""
    backend, nodes = debugger.backend, [node for _, graph in blocks(debugger.program) for node in graph.nodes]
    other = sorted(
        op.name
        for op in ops
        if of_other_library(op.name) or (op.foreign and not (op.reference or is_torch(op.name)))
    )
    if other:
        return CheckResult(kind, NOT_CHECKED, f"the kernels of {', '.join(other)} allocate their results")
    if kind == "uninitialized":
        allocated = [value for node in nodes if allocates_only(node.op) for value in node.outputs]
        # PyTorch fills such memory with NaN, so reads of it are found; only floats have a NaN.
        unfilled = [
            value
            for value in allocated
            if not (isinstance(value.type, TensorType) and value.type.dtype in FLOATS | COMPLEX)
        ]
        unfilled += [value for node in nodes if node.op == "nncdbg.Empty" for value in node.outputs]
        if unfilled:
            names = f"%{name_text(unfilled[0].name)}" + ", ..." * (len(unfilled) > 1)
            why = f"a NaN marks such memory, and {names} has no floats"
            return CheckResult(kind, NOT_CHECKED, why)
        if allocated:
            return CheckResult(kind, PASSED)
    return CheckResult(kind, NOT_APPLICABLE, f"{backend.name} allocates the memory of its kernels")


def own_memory_words(ops: Iterable[str]) -> str:
    """Return why the memory of ops was not checked that did not allocate it through `xp`."""
    return f"{', '.join(sorted(ops))} returned memory that is not from xp.empty, xp.zeros or `out`"


MAX_FINDINGS = 20
"""Findings that a report lists by default."""


@dataclass(frozen=True, slots=True)
class WatchCriteria:
    """What runs are judged by, and what is kept of them."""

    gates: Gates
    max_findings: int = MAX_FINDINGS
    good: Recording | None = None
    """The recording of a good run to compare with."""
    record_to: str | os.PathLike[str] | None = None
    """The file of a recording to write."""

    @property
    def keeps_statistics(self) -> bool:
        """Whether the statistics of all statements are kept until the end of the runs."""
        return self.good is not None or self.record_to is not None

    @property
    def measures(self) -> bool:
        """Whether the runs must log statistics."""
        return self.gates.measured or self.keeps_statistics


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
        report.notes.append(f"the watch ended after {bad.step}: later steps use its values")
    elif stop.reason != "end":
        report.error = (
            stop.error
            if isinstance(stop.error, Exception)
            else StoppedRun(f"the run was stopped: {stop.detail or stop.reason}")
        )
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


def _tell(
    report: Report,
    sightings: list[FindingRecord],
    measured: list[WatchFinding],
    gates: Gates,
    debugger: Debugger,
    max_findings: int,
) -> None:
    """Fill in the findings: those that trip, then those with effect on an output, then the others."""
    # Memory that was only allocated, or is not read, is no finding if it has no effect.
    unused = _unread(sightings)
    for born in (each for each in sightings if each.born):
        nodes, pc = born.statement.code.nodes, born.statement.pc
        if 0 <= pc < len(nodes) and allocates_only(nodes[pc].op):
            unused.add(born.number)
    relevant = [
        each for each in sightings if each.reaches_output or not (each.roots or {each.number}) <= unused
    ]
    ordered = sorted(in_text_order(relevant, debugger.loaded.places), key=lambda each: each.dropped)
    judge = TrainingJudge(debugger)
    received = _received(sightings)
    found = [(_finding(each, gates, debugger, judge), each.number in received) for each in ordered]
    found += [(each, False) for each in measured]
    if any(each.trips for each, _ in found):
        found = [(each, theirs) for each, theirs in found if not each.is_warning]
    found.sort(key=lambda pair: (not pair[0].trips, pair[1], not pair[0].reaches_output))
    own = [each for each, theirs in found if not theirs]
    originating = (each for each in own if each.role in ("birth", "masked") and not each.is_warning)
    origin = next((each for each in own if each.trips), None) or next(originating, None)
    report.findings = [replace(each, first=True) if each is origin else each for each, _ in found]
    for finding in report.findings:
        report.counts[finding.role] += 1
    report.limit(max_findings)
    report.findings = with_sources(report.findings, debugger)


def _received(sightings: Sequence[FindingRecord]) -> set[int]:
    """Return the numbers of what another rank has sent, and of what follows from nothing else."""
    found: set[int] = set()
    for each in sorted(sightings, key=lambda each: each.number):
        origins = each.roots or each.parents
        if (each.cause is not None and each.cause.name == RECEIVED) or (origins and origins <= found):
            found.add(each.number)
    return found


def _unread(sightings: Sequence[FindingRecord]) -> set[int]:
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


def _finding(sighting: FindingRecord, gates: Gates, debugger: Debugger, judge: TrainingJudge) -> WatchFinding:
    role = sighting.role
    if role == "birth" and not sighting.reaches_output and sighting.kind in NUMERIC:
        role = "masked"
    cause, inside = sighting.cause, sighting.within
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
        within=None if inside is None else site_at(Statement(inside.code, inside.pc), debugger),
        other=None if sighting.other is None else site_at(sighting.other, debugger),
        calls=calls_of(sighting.calls, debugger),
        used=_used(sighting, debugger),
        count=sighting.count,
        trips=gates.trips(sighting),
        at_step=step_at(sighting),
    )


def _used(sighting: FindingRecord, debugger: Debugger) -> FindingUse | None:
    visit = sighting.used
    if visit is None:
        return None
    site = site_at(visit.statement, debugger)
    return FindingUse(site, visit.iteration, calls_of(visit.calls, debugger), step_at(visit))


MakeDebugger = Callable[[int, bool], Debugger]
"""Return a debugger at its start, for a seed and whether to log statistics."""

Move = Callable[[Debugger], "Stop"]


def watch_runs(
    make: MakeDebugger,
    criteria: WatchCriteria,
    *,
    model: str = "",
    seed: int = 0,
    runs: int = 1,
    move: Move = Debugger.run,
) -> Report:
    """Run a program `runs` times, with the seeds from `seed` on, and return one report.

    With several runs, `Report.cases` holds each verdict, and a finding names the run of its first occurrence.
    Raises UsageError for a gate that matches nothing, LoadError for a recording that cannot be written.
    """
    if runs < 1:
        raise UsageError(f"invalid number of runs: {runs}", hint="use 1 or more, such as --runs 1")
    gates, max_findings, good, measures = (
        criteria.gates,
        criteria.max_findings,
        criteria.good,
        criteria.measures,
    )
    if runs == 1 and not measures and not gates.ranges:
        debugger = make(seed, False)
        report = watch_run(debugger, gates, max_findings=max_findings, run=lambda: move(debugger))
        report.model = model
        return report
    from nncdbg.nan_watch.corpus import CorpusReport
    from nncdbg.nan_watch.measuring.measuring import Measuring, check_good
    from nncdbg.nan_watch.recording import fingerprint, record, write

    check_good(gates, good)
    whole = CorpusReport(model, gates, max_findings, named=runs > 1)
    for each in range(seed, seed + runs):
        debugger = make(each, measures)
        measuring = Measuring(debugger, gates, keep=measures, good=good)
        report = watch_run(
            debugger,
            gates,
            max_findings=max_findings,
            run=lambda debugger=debugger: move(debugger),  # type: ignore[misc]
            measuring=measuring,
        )
        whole.add(case_of(f"seed {each}", report), report, measuring.tracks)
    if criteria.record_to is not None:
        write(record(fingerprint(debugger.program), model, whole.tracks.ordered()), criteria.record_to)
    return whole.finished(good)


def case_of(name: str, report: Report) -> Case:
    """Return the result of a run as a case of a corpus."""
    words = str(report.error) if report.error is not None else ""
    status = FAILED if words else OK if report.ok else TRIPPED
    if isinstance(report.error, UnsupportedOp):
        status = UNSUPPORTED
    return Case(name, status, report.ops, report.seconds, words)
