"""`nncdbg.bisect`: find the statements that must keep their wide float type when all others run in f16.

If the program fails with all statements narrow, each statement is run alone in the narrow type with its
actual operands.  Those that overflow are the first guess; the least exact ones are added until the outputs
are within tolerance.  Delta debugging then removes the statements that are not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nncdbg.comparison.check_results import NOT_CHECKED, PASSED, CheckResult
from nncdbg.comparison.measure import measure
from nncdbg.comparison.report import NOWHERE, Match
from nncdbg.comparison.tolerance import DEFAULTS, Tolerance
from nncdbg.engine.backends.mixed_backends import Fallback
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.casting import (
    NARROW,
    Place,
    cast_array,
    fixed,
    is_wide,
    mixed_program,
    narrow_node,
)
from nncdbg.engine.divergence.statement_differences import operand_words, overflow_of
from nncdbg.engine.execution.events import Failed
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.linking import Allocation, Linker
from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.ir.records import Node, Program, TensorType, Type, Value, type_of
from nncdbg.nan_watch.configuration import WatchConfiguration
from nncdbg.nan_watch.records import FindingSite
from nncdbg.nan_watch.reduction.case import ReducedCase
from nncdbg.nan_watch.reduction.reduction import minimized
from nncdbg.nan_watch.sites import site_of
from nncdbg.stats.inspection import holds
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import name_text
from nncdbg.text.listing import Listing


@dataclass(frozen=True, slots=True)
class Kept:
    """A statement that has to stay wide, and why.

    `reason` is overflow, not a number, unsupported or error; `detail` gives the numbers, `hint` another fix.
    `factor` is the error of an output without it, in tolerances; infinite for a non-finite output.
    """

    place: Place
    site: FindingSite
    reason: str
    detail: str
    hint: str
    factor: float

    def as_dict(self) -> dict[str, Any]:
        """Return the record as a JSON object."""
        site = self.site
        return {
            **{name: getattr(site, name) for name in ("line", "graph", "node", "op", "value")},
            "location": site.location(),
            **{name: getattr(self, name) for name in ("reason", "detail", "hint")},
            "factor": self.factor if np.isfinite(self.factor) else None,
        }


@dataclass(slots=True)
class Alone:
    """A statement run alone: its worst error in tolerances, and the reason if it is too large."""

    factor: float = 0.0
    reason: str = ""
    detail: str = ""
    hint: str = ""
    times: int = 0


def _alone(node: Node, operands: Sequence[Any], opsets: Mapping[str, int], dtype: str) -> ReducedCase:
    """Return a statement as its own program, with its operands cast."""
    inputs = {
        operand: content if fixed(node, index, opsets) else cast_array(content, dtype)
        for index, (operand, content) in enumerate(zip(node.inputs, operands, strict=True))
        if isinstance(operand, str)
    }
    narrow = narrow_node(node, dtype, opsets)
    nodes = (replace(narrow, outputs=tuple(Value(each.name) for each in node.outputs)),)
    return ReducedCase(nodes, tuple(each.name for each in node.outputs if each.name), inputs, {}, opsets)


_FULL = 4
"""Executions of a statement that are all tried; later only the 8th, 16th and so on."""


@dataclass(slots=True)
class Bisection:
    """The search.  `best` is the smallest sufficient set so far, None before the first."""

    program: Program
    inputs: Mapping[str, Any]
    configuration: WatchConfiguration
    dtype: str = "f16"
    tolerance: Tolerance = field(default_factory=Tolerance)
    on_progress: Callable[[str, int, int], None] = lambda phase, runs, kept: None
    best: list[Place] | None = None
    runs: int = 0
    notes: list[str] = field(default_factory=list)
    alone: dict[Place, Alone] = field(default_factory=dict)
    """The statements that can be made narrow, in execution order."""
    listing: Listing = field(default_factory=lambda: Listing((), {}, {}))
    """The text of the program, for the lines of sites."""
    _types: dict[Any, dict[str, Type | None]] = field(default_factory=dict)
    _wanted: dict[str, Any] = field(default_factory=dict)
    _sites: dict[Place, FindingSite] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.dtype not in NARROW:
            raise UsageError(
                f"cannot narrow a program to {self.dtype!r}", hint=f"use one of: {', '.join(NARROW)}"
            )
        rtol, atol = DEFAULTS[self.dtype]
        asked = self.tolerance
        self.tolerance = Tolerance(
            rtol if asked.rtol is None else asked.rtol, atol if asked.atol is None else asked.atol
        )

    # -- the search ----------------------------------------------------------------------------

    def run(self) -> list[Place]:
        """Return a minimal set of statements that stay wide, in program order.

        Raises the error of a failing wide run, and UsageError if its outputs already have NaN.
        """
        self._report("running the program in its declared types")
        self._reference(self._note)
        if not self.alone:
            raise UsageError("nothing to narrow: no statement reads or computes f32 or f64")
        bad = [name for name, content in self._wanted.items() if holds(content, "nan")]
        if bad:
            raise UsageError(
                f"the output %{name_text(bad[0])} already has NaN in the declared types",
                hint="find the origin with `nncdbg watch`; bisect needs outputs without NaN",
            )
        if self._will_do([]):
            return []
        self._report("trying each statement alone")
        self._reference(self._try_alone)
        guess = [place for place, alone in self.alone.items() if alone.reason]
        if not (guess and self._will_do(guess)):
            guess = self._grown(guess)
        self._report("removing statements that are not needed")
        return self.ordered(minimized(self.ordered(guess), self._will_do))

    def _grown(self, guess: list[Place]) -> list[Place]:
        """Add the least exact statements to the guess: 1, 2, 4 ... of them, until it is sufficient."""
        self._report("adding the least exact statements")
        others = sorted(
            (place for place in self.alone if place not in guess), key=lambda place: -self.alone[place].factor
        )
        many = 1
        while many < len(others):
            if self._will_do([*guess, *others[:many]]):
                return [*guess, *others[:many]]
            many *= 2
        self.best = [*guess, *others]
        return self.best

    def ordered(self, places: Sequence[Place]) -> list[Place]:
        """Return places in execution order."""
        order = {place: number for number, place in enumerate(self.alone)}
        return sorted(places, key=order.__getitem__)

    def _will_do(self, kept: Sequence[Place]) -> bool:
        """Return whether the outputs are within tolerance if only these statements stay wide."""
        fine = self.outcome(kept)[0] <= 1
        if fine and (self.best is None or len(kept) < len(self.best)):
            self.best = list(kept)
        self._report("")
        return fine

    def _report(self, phase: str) -> None:
        self.on_progress(phase, self.runs, len(self.best) if self.best is not None else len(self.alone))

    # -- runs ------------------------------------------------------------------------------------

    def mixed(self, kept: Sequence[Place]) -> Program:
        """Return the program with all statements narrow except these."""
        narrow = self.alone.keys() - set(kept)
        return mixed_program(self.program, narrow, self.dtype, self._types)

    def outcome(self, kept: Sequence[Place]) -> tuple[float, str]:
        """Return the error of the outputs, in tolerances and in words, if only these statements stay wide."""
        self.runs += 1
        try:
            debugger = self.configuration.debugger(self.mixed(kept), self.inputs)
            debugger.uncatch()
            stop = debugger.run()
        except NncdbgError as error:
            return np.inf, error.message
        if stop.reason == "pause":
            raise KeyboardInterrupt
        if stop.reason != "end":
            return np.inf, stop.detail or str(stop.error)
        worst, words = 0.0, "every output is the same"
        outputs: Mapping[str, Any] = debugger.outputs or {}
        for name, wanted in self._wanted.items():
            match = measure(NOWHERE, NOWHERE, "name", (wanted, outputs.get(name)), self.tolerance)
            if match.excess.factor > worst:
                worst, words = match.excess.factor, _difference(name, match)
        return worst, words

    # -- the wide run -------------------------------------------------------------------------------

    def _reference(self, executed: Callable[[Debugger, Frame, int, Sequence[Any]], None]) -> None:
        """Run the program unchanged; call `executed` after each statement that runs a kernel."""
        debugger = self.configuration.debugger(self.program, self.inputs)
        debugger.uncatch()
        self.listing = debugger.loaded.listing
        self._note_types(debugger.control.stack[0])
        while not debugger.ended:
            frame = debugger.control.stack[-1]
            code, pc = frame.code, frame.pc
            operands = list(code.operands_of(pc, frame.slots)) if code.runs_kernel(pc) else None
            outcome = debugger.timeline.step()
            if isinstance(outcome, Failed):
                raise debugger.control.judge.explain(outcome.error, frame, pc) from outcome.error
            debugger.control.keep_house()
            if operands is None:
                self._note_types(debugger.control.stack[-1])
            else:
                executed(debugger, frame, pc, operands)
        self._wanted = dict(debugger.outputs or {})

    def _note_types(self, frame: Frame) -> None:
        types = self._types.setdefault(frame.code.path, {})
        for name, slot in frame.code.slot_of.items():
            known = type_of(frame.slots[slot])
            if known is not None:
                types[name] = TensorType(known.dtype)

    def _note(self, debugger: Debugger, frame: Frame, pc: int, operands: Sequence[Any]) -> None:
        """Record a statement with floats as a candidate, and the types of its results."""
        code, node = frame.code, frame.code.nodes[pc]
        results = code.results_of(pc, frame.slots)
        for value, result in zip(node.outputs, results, strict=True):
            known = type_of(result)
            self._types[code.path][value.name] = TensorType(known.dtype) if known is not None else None
        if not any(is_wide(type_of(each)) for each in (*operands, *results)):
            return
        place = (code.path, pc)
        if place in self.alone:
            return
        name = next((each.name for each in node.outputs if each.name), "")
        op = lookup(node.op, version_of(node.op, code.opsets))
        if op is not None and op.random:
            self.notes.append(
                f"{node.op} (line {debugger.loaded.line(code, pc)}) draws different numbers if statements are"
                " added before it: pass its result as an input"
            )
        self._sites[place] = site_of(code, pc, name, debugger)
        self.alone[place] = Alone()

    def _try_alone(self, debugger: Debugger, frame: Frame, pc: int, operands: Sequence[Any]) -> None:
        code, place = frame.code, (frame.code.path, pc)
        alone = self.alone.get(place)
        if alone is None:
            return
        alone.times += 1
        if alone.times > _FULL and alone.times & (alone.times - 1):
            return
        self._report("")
        host = debugger.backend.to_host
        operands = [*map(host, operands)]
        tried = self._narrowed(debugger, code, pc, operands, [*map(host, code.results_of(pc, frame.slots))])
        if not tried.reason and not np.isfinite(tried.factor):
            tried = self._beyond(code, pc, operands)
        if tried.factor > alone.factor:
            tried.times = alone.times
            self.alone[place] = tried

    def _narrowed(
        self, debugger: Debugger, code: Code, pc: int, operands: Sequence[Any], results: Sequence[Any]
    ) -> Alone:
        """Run once with the operands cast, and compare with the results of the wide run."""
        backend, node = debugger.backend, code.nodes[pc]
        cast = [
            content if fixed(node, index, code.opsets) else cast_array(content, self.dtype)
            for index, content in enumerate(operands)
        ]
        try:
            covers = [Fallback(backend).cover] if self.configuration.fallback else []
            linker = Linker(backend, Allocation(), debugger.loaded.linker.generator, covers)
            binding = linker.bind(code, pc, narrow_node(node, self.dtype, code.opsets))
            with np.errstate(all="ignore"):
                found = binding.kernel(*(each if each is None else backend.to_device(each) for each in cast))
        except Exception as error:  # noqa: BLE001  a kernel may raise anything; the statement stays wide
            said = error.message if isinstance(error, NncdbgError) else str(error)
            return Alone(np.inf, "unsupported", f"{node.op} does not run in {self.dtype}: {said}")
        narrow = [*map(backend.to_host, found if binding.several else [found])]
        pairs = [pair for pair in zip(results, narrow, strict=False) if pair[0] is not None]
        matches = [measure(NOWHERE, NOWHERE, "name", pair, self.tolerance) for pair in pairs]
        return Alone(max((match.excess.factor for match in matches), default=0.0))

    def _beyond(self, code: Code, pc: int, operands: Sequence[Any]) -> Alone:
        """Return why a result is not finite in the narrow type."""
        node, dtype = code.nodes[pc], self.dtype
        for index, content in enumerate(operands):
            words = overflow_of(operand_words(node.inputs, index), content, dtype)
            if words:
                return Alone(np.inf, "overflow", words)
        case = _alone(node, operands, code.opsets, dtype)
        configuration = replace(self.configuration, fail_on=["nan", "inf"], strict=True)
        report = configuration.watch(case.program(), case.inputs)
        found = next(iter(report.tripping), None)
        if found is None:
            return Alone(np.inf, "not a number", f"{node.op} gives different infinities or NaN in {dtype}")
        reason = "overflow" if found.kind == "inf" else "not a number"
        said = ": ".join(part for part in (found.cause, found.evidence) if part)
        return Alone(np.inf, reason, said or f"{node.op} gives {found.kind} in {dtype}", found.hint)

    # -- reasons -------------------------------------------------------------------------------------

    def reasons(self, places: Sequence[Place]) -> list[Kept]:
        """Return the statements that stay wide, each with what fails without it."""
        self._report("testing each statement alone")
        return [self._reason(place, [each for each in places if each != place]) for place in places]

    def unexplained(self, places: Sequence[Place]) -> list[Kept]:
        """Return the statements that stay wide, without running the program without each."""
        pairs = [(place, self.alone[place]) for place in places]
        return [
            Kept(place, self._sites[place], alone.reason or "error", alone.detail, alone.hint, alone.factor)
            for place, alone in pairs
        ]

    def _reason(self, place: Place, others: Sequence[Place]) -> Kept:
        alone, (factor, words) = self.alone[place], self.outcome(others)
        self._report("testing each statement alone")
        if alone.reason:
            detail = alone.detail
        else:
            detail = f"alone, its error is {_times(alone.factor)}; if it is narrowed too, {words}"
        return Kept(place, self._sites[place], alone.reason or "error", detail, alone.hint, factor)


def _difference(name: str, match: Match) -> str:
    if match.excess.where is None and match.detail:
        return f"the output %{name_text(name)} is {match.detail}"
    if not np.isfinite(match.excess.factor) and match.elements is not None:
        wide, narrow = match.elements
        return f"the output %{name_text(name)} has {narrow} where it should have {wide:.4g}"
    return f"the output %{name_text(name)} differs by {_times(match.excess.factor)}"


def _times(factor: float) -> str:
    return f"{factor:.3g} times the tolerance"


@dataclass(frozen=True, slots=True)
class BisectReport:
    """The statements that must keep their types when all others run in `dtype`.

    `kept` is in execution order, `program` is the mixed program, `statements` the number of statements
    that compute with floats, `runs` the number of programs run, `notes` sentences about the search.  A report
    prints as `nncdbg bisect` does.
    """

    kept: tuple[Kept, ...]
    program: Program
    dtype: str
    statements: int
    runs: int
    notes: tuple[str, ...] = ()

    @property
    def checks(self) -> list[CheckResult]:
        """Return what was checked of the mixed program."""
        return search_checks()

    def __str__(self) -> str:
        return "\n".join(kept_lines(self.kept, self.statements, self.dtype))


def search_checks(*, interrupted: bool = False) -> list[CheckResult]:
    """Return what a search has checked of the mixed program: its outputs, and its minimal set."""
    least = CheckResult("minimal set", PASSED)
    if interrupted:
        least = CheckResult("minimal set", NOT_CHECKED, "the search was interrupted")
    return [CheckResult("outputs", PASSED), least]


def kept_lines(kept: tuple[Kept, ...], total: int, dtype: str) -> Iterator[str]:
    """Return the lines about the statements that keep their types."""
    if not kept:
        yield f"all {counted(total, 'statement')} can run in {dtype}"
        return
    yield f"{len(kept)} of {counted(total, 'statement')} must keep their types; all others run in {dtype}:"
    for each in kept:
        yield f"{each.site.line or '':>5} | {each.site.text or each.site.op}"
        said = "; ".join(part for part in (each.detail, each.hint) if part)
        if said:
            yield f"        {each.reason}: {said}"


def bisect(
    program: ProgramSource,
    inputs: Mapping[str, Any] | None = None,
    *,
    dtype: str = "f16",
    rtol: float | None = None,
    atol: float | None = None,
    backend: str | None = None,
    fallback: bool | None = None,
    allocator: str = "plain",
    dims: Mapping[str, int] | None = None,
    seed: int | None = None,
    max_ops: int | None = None,
) -> BisectReport:
    """Find the statements that must stay f32 when all others run in f16 or bf16 (`dtype`).

    `rtol` and `atol` are the tolerances of the outputs against the run in the declared types (by default
    f16 2e-2 and 5e-3, bf16 1e-1 and 3e-2).  The other arguments are as for Debugger.

    Raises UsageError for an unknown `dtype`, a program without floats, or a run whose outputs already have
    NaN; and the errors of Debugger.
    """
    program = load(program)
    arguments = program.saved.completed(backend=backend, fallback=fallback, seed=seed, max_ops=max_ops)
    configuration = WatchConfiguration(allocator=allocator, **arguments)
    drawn = configuration.debugger(program, inputs, dims=dims).inputs
    search = Bisection(program, drawn, configuration, dtype, Tolerance(rtol, atol))
    places = search.run()
    return BisectReport(
        tuple(search.reasons(places)),
        search.mixed(places),
        dtype,
        len(search.alone),
        search.runs,
        tuple(search.notes),
    )
