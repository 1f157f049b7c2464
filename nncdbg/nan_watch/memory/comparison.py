"""Memory misuse: run a program without reuse, in an arena and in a poisoned arena; compare the runs.

A read of bytes that another value has taken is reported with both statements: the victim reads, the culprit
took the bytes.  Plans of other frameworks (offsets) are followed to the byte.  Differences that no plan
explains are caused by a kernel; further runs find it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from nncdbg.comparison.check_results import NOT_CHECKED, PASSED, CheckResult
from nncdbg.comparison.launches import PlacedPlan
from nncdbg.comparison.launches import ValueSite as Site
from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.compilation.states import states_with_buffers
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.digest_run import (
    Changed,
    Differs,
    DigestedStatement,
    Played,
    Player,
    Start,
    StillRead,
    digest,
    who_changed,
    who_is_still_read,
)
from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.memory.blocks import MemoryBlock, Owner
from nncdbg.engine.memory.packing import PlannedValue, PlanProblem, lines_of, pack, problems
from nncdbg.engine.memory.placed import PlacedAllocation
from nncdbg.engine.memory.plan_file import key_of, plan_text, read_plan
from nncdbg.engine.memory.reusing import Misread, ReusingAllocation, overwrites_state, verb
from nncdbg.engine.memory.states_in_place import arena_of
from nncdbg.errors import StoppedRun, UsageError
from nncdbg.ir.records import Program
from nncdbg.nan_watch.records import FindingSite as Line
from nncdbg.nan_watch.records import Operand, Report, WatchFinding
from nncdbg.nan_watch.sites import site_at, site_of
from nncdbg.nan_watch.watching import own_memory_words
from nncdbg.text.counting import listed
from nncdbg.text.lexemes import name_text

_NAMED = 5
"""Most names of unchecked values in a list."""


def _problem(debugger: Debugger, problem: PlanProblem) -> WatchFinding:
    value, other = problem.value, problem.other
    name, place = value.name, value.place
    first, last = problem.first, problem.last
    if problem.kind == "small":
        evidence = f"%{name_text(name)} needs {first} bytes, but its place has {last}"
        hint = "compute sizes from the type and shape at run time, and round them up"
    elif problem.kind == "misaligned":
        evidence = f"%{name_text(name)} is at byte {first}, which is not a multiple of {last}"
        hint = f"use a multiple of {last} as its offset"
    elif problem.kind == "outlived":
        begin, _ = lines(debugger, value.code, name)
        evidence = (
            f"%{name_text(name)} is live from line {begin} to line {last}; the plan frees "
            f"it after line {first}"
        )
        hint = f"keep %{name_text(name)} live until its last reader"
    else:
        assert other is not None
        evidence = _sharing(debugger, problem, other)
        hint = f"place %{name_text(other.name)} and %{name_text(name)} at different bytes"
    return WatchFinding(
        "plan",
        "birth",
        _defined(debugger, other if other is not None else value),
        cause="wrong plan",
        evidence=evidence,
        hint=hint
        if place.root == (value.code.path, name)
        else f"{hint}; %{name_text(name)} is an alias of %{name_text(place.root[1])}",
        other=None if other is None else _defined(debugger, value),
        reaches_output=False,
    )


def _sharing(debugger: Debugger, problem: PlanProblem, other: PlannedValue) -> str:
    lives = [
        "%{} (live from line {} to line {})".format(each.name, *lines(debugger, each.code, each.name))
        for each in (problem.value, other)
    ]
    shared = f"share bytes {problem.first}..{problem.last}"
    if problem.kind == "overlap":
        return f"{lives[0]} and {lives[1]} {shared}"
    op = other.code.nodes[other.live.definition].op
    return (
        f"{op} writes %{name_text(other.name)} over its operand {lives[0]} while it reads the "
        f"operand: they {shared}"
    )


def _defined(debugger: Debugger, value: PlannedValue) -> Line:
    """Return the statement that writes a value or passes it to a loop; for an input, the first statement."""
    code, pc = value.code, value.live.definition
    if pc >= 0:
        return site_of(code, pc, value.name, debugger)
    if code.parent is not None:
        return site_of(code.parent, int(code.path[-2]), value.name, debugger)
    return site_of(code, 0, value.name, debugger)


def _left_out(arena: PlacedAllocation) -> list[CheckResult]:
    """Return which values were in memory outside the plan, so that it was not checked for them."""
    without = {"without a place in the plan": arena.apart, "that do not fit in the arena": arena.beyond}
    return [
        _left(f"values {what}, which used separate memory: {_listed(sites)}")
        for what, sites in without.items()
        if sites
    ]


def _unrun(debugger: Debugger, plan: PlacedPlan, played: Played) -> list[CheckResult]:
    """Return the places whose statements did not run, as not checked."""
    graphs = debugger.program.graphs.items()
    inputs = {((name,), value.name) for name, graph in graphs for value in graph.inputs}
    missing = {site: None for site in plan.places if site not in played.sizes and site not in inputs}
    what = "places of values that were not computed in this run, so their readers are unknown"
    return [_left(f"{what}: {_listed(missing)}")] if missing else []


def _left(words: str) -> CheckResult:
    return CheckResult("plan", NOT_CHECKED, words)


def _listed(sites: dict[Site, None]) -> str:
    return listed([f"%{name_text(name)} of {key_of(path)}" for path, name in sites], _NAMED)


MAX_FINDINGS = 20


def watch_memory(
    program: Program,
    inputs: Mapping[str, Any] | None = None,
    *,
    plan: PlacedPlan | str | os.PathLike[str] | None = None,
    max_findings: int = MAX_FINDINGS,
    in_place_states: bool = False,
    **fields: Any,
) -> Report:
    """Run a program with several allocators and report the statements that misuse memory.

    `plan` is a file of offsets (see `engine.memory.plan_file`) or a plan; by default the arena is planned by
    liveness.  `inputs` and `fields` (dims, seed, max_ops, history, folder) are as for Debugger.  With
    `in_place_states`, updates overwrite states in the arenas.  Every finding trips.  The error of a failing
    run is in `Report.error`.

    Raises UsageError for a plan that cannot be read or does not fit the program, and the errors of Debugger.
    """
    if fields.get("allocator") is not None:
        raise UsageError("--memory cannot be used with --allocator", hint="omit --allocator")
    fields.pop("allocator", None)
    if plan is not None and not isinstance(plan, PlacedPlan):
        plan = read_plan(plan, program)

    def start(allocator: str | Allocation) -> Debugger:
        # Copy the inputs, so that a kernel that writes into one affects only one run.
        given = {
            name: np.array(value) if isinstance(value, np.ndarray) else value
            for name, value in (inputs or {}).items()
        }
        return Debugger(program, given, allocator=allocator, statistics=False, **fields)

    in_place = states_with_buffers(program) if in_place_states else frozenset()
    if in_place and plan is not None:
        raise UsageError("--plan cannot be used with --in-place-states", hint="omit one of them")
    return _Watch(start, plan, in_place).run(max_findings)


def memory_plan(
    program: Program, inputs: Mapping[str, Any] | None = None, *, reuse: bool = True, **fields: Any
) -> PlacedPlan:
    """Return the built-in plan of offsets for a program, with the sizes of a run with these inputs.

    Without `reuse` every value has its own bytes.  Raises the error of a failing run, and Debugger's errors.
    """
    debugger = Debugger(program, inputs, allocator="debug", statistics=False, **fields)
    played = Player(debugger, integrity=False).run()
    if played.failed is not None:
        moment, error = played.failed
        frame = debugger.control.stack[-1]
        raise debugger.control.judge.explain(error, frame, moment.statement.pc) from error
    return pack(debugger.loaded.codes, played.sizes, debugger.loaded.line, reuse=reuse)


def write_plan(plan: PlacedPlan, file: str | os.PathLike[str]) -> None:
    """Write a plan in the format of `read_plan`.  Raises UsageError if the file cannot be written."""
    try:
        FilePath(file).write_text(plan_text(plan), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the plan {os.fspath(file)}: {error.strerror}") from None


@dataclass(slots=True, eq=False)
class _Run:
    """One run: its allocator, its results, and the records of its arena."""

    debugger: Debugger
    played: Played
    arena: ReusingAllocation | None = None


@dataclass(slots=True, eq=False)
class _Watch:
    start: Start
    plan: PlacedPlan | None
    in_place: frozenset[str]
    """The states that updates overwrite in the arenas."""
    found: dict[tuple[Any, ...], tuple[int, WatchFinding]] = field(default_factory=dict)
    """By place and kind: the tick of the first occurrence, and the finding."""

    def run(self, max_findings: int) -> Report:
        started = time.perf_counter()
        debugger = self.start("debug")
        report = Report(notes=[*map(str, debugger.notes)])
        base = _Run(debugger, Player(debugger).run())
        report.ops = base.played.ticks
        self._misuse(base)
        self._changed(base, "debug")
        if base.played.failed is not None or base.played.paused:
            self._ended_early(base, report)
        else:
            self._again(base)
            for poison in (False, True):
                self._compare(base, poison, report)
            if self.plan is not None:
                report.results += _unrun(debugger, self.plan, base.played)
            own = base.debugger.loaded.linker.allocation.own_memory
            if own:
                report.results.append(CheckResult("guard", NOT_CHECKED, own_memory_words(own)))
            known = {each.check for each in report.results}
            report.results += [CheckResult(kind, PASSED) for kind in self._kinds() if kind not in known]
        # In execution order, those of the plan alone last.
        findings = [finding for _, finding in sorted(self.found.values(), key=lambda pair: pair[0])]
        if findings:
            findings[0] = replace(findings[0], first=True)
        report.findings = findings[:max_findings]
        report.counts["birth"] = len(self.found)
        report.seconds = time.perf_counter() - started
        return report

    def _ended_early(self, base: _Run, report: Report) -> None:
        debugger = base.debugger
        frame = debugger.control.stack[-1]
        if base.played.failed is not None:
            report.error = debugger.control.judge.explain(base.played.failed[1], frame, frame.pc)
        else:
            report.error = StoppedRun("the run was stopped")
        line = debugger.loaded.line(frame.code, frame.pc)
        checks = (f"statements after line {line}", *self._kinds())
        report.results += [CheckResult(each, NOT_CHECKED, "the run did not finish") for each in checks]

    def _kinds(self) -> Sequence[str]:
        """Return the kinds of findings that the runs look for."""
        return ("reuse", "uninitialized", "guard", "state", *(("plan",) if self.plan is not None else ()))

    def _add(self, tick: int, finding: WatchFinding) -> None:
        site = finding.site
        key = (finding.kind, site.line, site.value, finding.other and finding.other.line)
        if key not in self.found:
            self.found[key] = (tick, replace(finding, trips=True))

    # -- each run -----------------------------------------------------------------------------

    def _arena(self, poison: bool) -> ReusingAllocation:
        if self.plan is not None:
            return PlacedAllocation(self.plan, poison=poison)
        return arena_of(self.in_place, poison=poison)

    def _again(self, base: _Run) -> None:
        """Run again with the same memory: a kernel that keeps state gives another result."""
        base.debugger.restart()
        played = Player(base.debugger, base.played, integrity=False).run()
        if played.differs is not None and base.played.changed is None:
            self._add(played.differs.moment.tick, state_finding(base.debugger, played.differs))

    def _compare(self, base: _Run, poison: bool, report: Report) -> None:
        arena = self._arena(poison)
        debugger = self.start(arena)
        run = _Run(debugger, Player(debugger, base.played).run(), arena)
        self._misuse(run)
        for misread in arena.misreads.values():
            self._add(misread.tick, reuse_finding(debugger, misread, self.plan, self._reaches(base, run)))
        self._unexplained(base, run, poison)
        if isinstance(arena, PlacedAllocation) and not poison:
            self._planned(base, arena, report)

    def _reaches(self, base: _Run, run: _Run) -> bool:
        """Return whether the outputs differ from the run without reuse."""
        if not run.debugger.ended:
            return True
        base_outputs: dict[str, Any] = base.debugger.outputs or {}
        outputs: dict[str, Any] = run.debugger.outputs or {}
        return any(digest(base_outputs.get(name)) != digest(value) for name, value in outputs.items())

    def _misuse(self, run: _Run) -> None:
        """Add the findings of the allocator itself: out-of-bounds writes, uninitialized elements."""
        for moment, finding in run.played.findings:
            # A read of reused memory is a `Misread` of the arena too, which has more detail.
            if finding.kind != "guard" or finding.output is not None:
                self._add(moment.tick, misuse_finding(run.debugger, moment, finding))

    def _changed(self, run: _Run, allocator: str | Allocation) -> None:
        """Add a value that changed after it was written, although it still owns its bytes."""
        changed = run.played.changed
        if changed is not None:
            culprit = who_changed(self.start, allocator, changed)
            self._add(changed.reader.tick, change_finding(run.debugger, changed, culprit))

    def _unexplained(self, base: _Run, run: _Run, poison: bool) -> None:
        """Add a difference before any known misread: a kernel that uses memory of other values."""
        differs, arena = run.played.differs, run.arena
        assert arena is not None
        if base.played.changed is None and not arena.misreads:
            self._changed(run, self._arena(poison))
        known = [misread.tick for misread in arena.misreads.values()]
        known += [tick for tick, finding in self.found.values() if finding.kind != "plan"]
        if differs is None or any(tick <= differs.moment.tick for tick in known):
            return
        read = None
        if self.plan is None:
            read = who_is_still_read(
                self.start, lambda plan: arena_of(self.in_place, plan, poison=poison), base.played, differs
            )
        self._add(differs.moment.tick, unexplained_finding(run.debugger, differs, read))

    def _planned(self, base: _Run, arena: PlacedAllocation, report: Report) -> None:
        """Add errors of the plan that no run shows, and note what the plan leaves out."""
        assert self.plan is not None
        pairs = [(each.block.owner, each.block.successor) for each in arena.misreads.values()]
        shown = {frozenset((owner.site, taker.site)) for owner, taker in pairs if taker is not None}
        loaded = base.debugger.loaded
        found = problems(self.plan, loaded.codes, base.played.sizes, loaded.line)
        for tick, problem in enumerate(found, base.played.ticks + 1):
            pair = [each for each in (problem.value, problem.other) if each is not None]
            if frozenset((each.code.path, each.name) for each in pair) not in shown:
                self._add(tick, _problem(base.debugger, problem))
        report.results += _left_out(arena)


# -- messages: victim, culprit, both live ranges, and the usual fix -----------------------------------

CAUSES = (
    "wrong reuse",
    "overwritten state",
    "uninitialized read",
    "partial write",
    "write out of bounds",
    "write into foreign memory",
    "kept reference",
    "read before write",
    "state between runs",
    "wrong plan",
    "unknown",
)
"""Every cause of misused memory; scripts and baselines rely on these names."""


def reuse_finding(
    debugger: Debugger, misread: Misread, plan: PlacedPlan | None, reaches: bool
) -> WatchFinding:
    """Return the finding of a statement that reads bytes that another value has overwritten."""
    block = misread.block
    taker, overwritten = block.successor, overwrites_state(misread.block)
    evidence = _life(debugger, misread)
    if taker is not None and overwritten:
        line = _line(debugger, taker.statement)
        evidence = (
            f"%{name_text(misread.name)} is the value of %{name_text(taker.value)} from before "
            f"its update at line {line}, "
            "which overwrites it"
        )
    elif taker is not None:
        first, last = block.taken or (block.start, block.start + block.size)
        begin, end = lines(debugger, taker.code, taker.value)
        iteration = f" (iteration {taker.iteration})" if taker.iteration else ""
        evidence += (
            f"; %{name_text(taker.value)} reused its bytes {first}..{last} at line "
            f"{_line(debugger, taker.statement)}"
            f"{iteration} and is live from line {begin} to line {end}"
        )
    elif block.freed is not None:
        evidence += f"; its memory was freed at line {_line(debugger, block.freed)}"
    place = None if plan is None else plan.places.get(block.owner.site)
    if place is not None and block.size > place.size:
        evidence += f"; the plan reserves {place.size} bytes for it, but it needs {block.size}"
    if place is not None and place.lives is not None:
        evidence += f"; the plan considers it live from line {place.lives[0]} to line {place.lives[1]}"
    other = taker.statement if taker is not None else block.freed
    site = None if other is None else site_at(other, debugger, taker.value if taker else "")
    cause, hint = "overwritten state" if overwritten else "wrong reuse", _reuse_hint(block, taker)
    found = _finding(debugger, "reuse", misread, misread.name, cause, evidence, hint, site)
    return replace(found, reaches_output=reaches, count=misread.count)


def _reuse_hint(block: MemoryBlock, taker: Owner | None) -> str:
    if overwrites_state(block):
        return (
            f"read %{name_text(block.owner.value)} before its update, or make a copy that the "
            f"update does not change"
        )
    if taker is None:
        return f"free %{name_text(block.owner.value)} after its last reader"
    return (
        f"place %{name_text(taker.value)} at other bytes, or free "
        f"%{name_text(block.owner.value)} only after its last reader"
    )


def _life(debugger: Debugger, misread: Misread) -> str:
    owner, reader = misread.block.owner, misread.statement.code
    begin, end = lines(debugger, owner.code, owner.value)
    known = ""
    if misread.name != owner.value:
        known = f" (read as %{name_text(misread.name)})"
        _, later = lines(debugger, reader, misread.name)
        end = max((line for line in (end, later) if line is not None), default=None)
    return f"%{name_text(owner.value)}{known} is live from line {begin} to line {end}"


def misuse_finding(debugger: Debugger, moment: DigestedStatement, finding: Finding) -> WatchFinding:
    """Return the finding of an allocator: an out-of-bounds write, or uninitialized elements."""
    statement, index = finding.binding, finding.output
    code, pc = statement.code, statement.pc
    outputs = code.nodes[pc].outputs if pc < len(code.nodes) else ()
    name = outputs[index].name if index is not None and index < len(outputs) else ""
    if finding.kind == "guard":
        cause, hint = "write out of bounds", "write to the elements of `out` only"
    elif index is None:
        cause, hint = "uninitialized read", "write the tensor in full before it is read"
    elif " read " in finding.detail:
        cause, hint = "read before write", "write every element of `out` before reading it"
    else:
        cause, hint = "partial write", "write every element of `out`"
    other = None if finding.other is None else site_at(finding.other, debugger)
    at = replace(moment, statement=statement)
    return _finding(debugger, finding.kind, at, name, cause, finding.detail, hint, other)


def change_finding(debugger: Debugger, found: Changed, culprit: DigestedStatement | None) -> WatchFinding:
    """Return the finding of a value that changed although its bytes were not reused."""
    evidence = f"%{name_text(found.name)} changed after it was written"
    if culprit is not None:
        statement = culprit.statement
        evidence += f": it changed while {verb(statement)} ran at line {_line(debugger, statement)}"
        if any(statement.code.names[slot] == found.name for slot in statement.code.operands[statement.pc]):
            evidence += ", which reads it as an operand"
    else:
        evidence += "; the statement that changed it is unknown"
    cause = "write into foreign memory" if culprit is not None else "unknown"
    hint = "write only to the op's own result; copy operands, and do not keep buffers between calls"
    other = None if culprit is None else site_at(culprit.statement, debugger)
    return _finding(debugger, "reuse", found.reader, found.name, cause, evidence, hint, other)


def state_finding(debugger: Debugger, differs: Differs) -> WatchFinding:
    """Return the finding of a kernel whose second run gives another result."""
    detail = differs.detail or f"computes a different %{name_text(differs.name)} from the same operands"
    evidence = f"in the second run, {verb(differs.moment.statement)} {detail}"
    hint = "do not keep state between calls; draw random numbers from `rng`"
    return _finding(debugger, "state", differs.moment, differs.name, "state between runs", evidence, hint)


def unexplained_finding(debugger: Debugger, differs: Differs, read: StillRead | None) -> WatchFinding:
    """Return the finding of a statement with another result in an arena although its operands are right."""
    statement = differs.moment.statement
    what = f"%{name_text(differs.name)} differs" if differs.name else differs.detail
    evidence = f"{what} although its operands are equal"
    cause, hint, other = "unknown", "read only the operands and `out` in the kernel", None
    if read is not None:
        owner, taker = read.block.owner, read.block.successor
        begin, end = lines(debugger, owner.code, owner.value)
        own = taker is not None and taker.statement.code.path == statement.code.path
        if own and taker is not None and taker.statement.pc == statement.pc:
            cause, hint = "read before write", "write every element of `out` before reading it"
            evidence += (
                f": its buffer reuses the memory of %{name_text(owner.value)}, and it reads the old bytes"
            )
        else:
            cause, hint = "kept reference", "do not keep operands or buffers between calls"
            evidence += (
                f": it still reads %{name_text(owner.value)}, which is live from line {begin} to line {end}"
            )
        other, reuse = _taker(debugger, read.block)
        evidence += reuse
    return _finding(debugger, "reuse", differs.moment, differs.name, cause, evidence, hint, other)


def _taker(debugger: Debugger, block: MemoryBlock) -> tuple[Line | None, str]:
    taker = block.successor
    if taker is not None:
        line = _line(debugger, taker.statement)
        words = f"; %{name_text(taker.value)} reused its bytes at line {line}"
        return site_at(taker.statement, debugger, taker.value), words
    if block.freed is not None:
        words = f"; its memory was freed at line {_line(debugger, block.freed)}"
        return site_at(block.freed, debugger), words
    return None, ""


def _finding(
    debugger: Debugger,
    kind: str,
    at: DigestedStatement | Misread,
    name: str,
    cause: str,
    evidence: str,
    hint: str,
    other: Line | None = None,
) -> WatchFinding:
    """Return a finding at an executed statement; `other` is the statement to blame."""
    code, pc = at.statement.code, at.statement.pc
    operands = [code.names[slot] for slot in code.operands[pc] if slot and code.names[slot]]
    types = [code.types.get(operand) for operand in operands]
    return WatchFinding(
        kind,
        "birth",
        site_of(code, pc, name, debugger),
        iteration=at.iteration,
        inputs=tuple(
            Operand(operand, None if type_ is None else str(type_), None)
            for operand, type_ in zip(operands, types, strict=True)
        ),
        cause=cause,
        evidence=evidence,
        hint=hint,
        other=other,
    )


# -- places ----------------------------------------------------------------------------------------


def _line(debugger: Debugger, statement: Statement) -> int | None:
    return debugger.loaded.line(statement.code, statement.pc)


def lines(debugger: Debugger, code: Code, name: str) -> Sequence[Any]:
    """Return the first and the last line at which a value of a block is live."""
    slot = code.slot_of.get(name)
    return (None, None) if slot is None else lines_of(code, slot, debugger.loaded.line)
