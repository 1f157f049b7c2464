"""Find the statements that must keep their wide float type when all others run in f16 or bf16.

If the program fails with all statements narrow, each statement is run alone in the narrow type with its
actual operands.  Those that overflow are the first guess; the least exact ones are added until the outputs
are within tolerance; delta debugging then removes those that are not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nncdbg.engine.comparison.measure import measure
from nncdbg.engine.comparison.report import NOWHERE, Match
from nncdbg.engine.comparison.tolerance import DEFAULTS, Tolerance
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.mixing import NARROW, Place, is_wide, mixed_program
from nncdbg.engine.errors import NncdbgError, UsageError
from nncdbg.engine.execution.events import Failed
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.engine.text.lexemes import name_text
from nncdbg.engine.text.listing import Listing
from nncdbg.ir.records import Program, TensorType, Type, type_of
from nncdbg.nan_watch.bisection.narrow_trial import Alone, Kept, Outcome, Trial
from nncdbg.nan_watch.configuration import WatchConfiguration
from nncdbg.nan_watch.records import FindingSite
from nncdbg.nan_watch.reduction.minimizing import minimized
from nncdbg.nan_watch.sites import site_of
from nncdbg.stats.finiteness import holds

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
        given = self.tolerance
        self.tolerance = Tolerance(
            rtol if given.rtol is None else given.rtol, atol if given.atol is None else given.atol
        )

    # -- the search ----------------------------------------------------------------------------

    def run(self) -> list[Place]:
        """Return a minimal set of statements that stay wide, in program order.

        Raises the error of a failing wide run, and UsageError if its outputs already have NaN.
        """
        self._report("running the program in its declared types")
        self._reference(self._note)
        self._check_reference()
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
        fine = self.outcome(kept).fine
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

    def outcome(self, kept: Sequence[Place]) -> Outcome:
        """Return the error of the outputs if only these statements stay wide."""
        self.runs += 1
        try:
            debugger = self.configuration.debugger(self.mixed(kept), self.inputs)
            debugger.uncatch()
            stop = debugger.run()
        except NncdbgError as error:
            return Outcome(np.inf, error.message)
        if stop.reason == "pause":
            raise KeyboardInterrupt
        if stop.reason != "end":
            return Outcome(np.inf, stop.detail or str(stop.error))
        return self._distance(debugger.outputs or {})

    def _distance(self, outputs: Mapping[str, Any]) -> Outcome:
        worst = Outcome(0.0, "every output is the same")
        for name, wanted in self._wanted.items():
            match = measure(NOWHERE, NOWHERE, "name", (wanted, outputs.get(name)), self.tolerance)
            if match.excess.factor > worst.factor:
                worst = Outcome(match.excess.factor, _difference(name, match))
        return worst

    # -- the wide run -------------------------------------------------------------------------------

    def _reference(self, executed: Callable[[Debugger, Frame, int, Sequence[Any]], None]) -> None:
        """Run the program unchanged; call `executed` after each statement that runs a kernel."""
        debugger = self.configuration.debugger(self.program, self.inputs)
        debugger.uncatch()
        self.listing = debugger.loaded.listing
        self._note_types(debugger.control.stack[0])
        while not debugger.ended:
            frame = debugger.control.stack[-1]
            pc = frame.pc
            operands = _operands(frame)
            outcome = debugger.timeline.step()
            if isinstance(outcome, Failed):
                raise debugger.control.judge.explain(outcome.error, frame, pc) from outcome.error
            debugger.control.keep_house()
            if operands is None:
                self._note_types(debugger.control.stack[-1])
            else:
                executed(debugger, frame, pc, operands)
        self._wanted = dict(debugger.outputs or {})

    def _check_reference(self) -> None:
        if not self.alone:
            raise UsageError("nothing to narrow: no statement reads or computes f32 or f64")
        bad = [name for name, content in self._wanted.items() if holds(content, "nan")]
        if bad:
            raise UsageError(
                f"the output %{name_text(bad[0])} already has NaN in the declared types",
                hint="find the origin with `nncdbg watch`; bisect needs outputs without NaN",
            )

    def _note_types(self, frame: Frame) -> None:
        """Record the types of the values in a frame."""
        types = self._types.setdefault(frame.code.path, {})
        for name, slot in frame.code.slot_of.items():
            known = type_of(frame.slots[slot])
            if known is not None:
                types[name] = TensorType(known.dtype)

    def _note(self, debugger: Debugger, frame: Frame, pc: int, operands: Sequence[Any]) -> None:
        """Record a statement with floats as a candidate, and the types of its results."""
        code, node = frame.code, frame.code.nodes[pc]
        results = _results(frame, pc)
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
        """Execute a statement again in the narrow type."""
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
        trial = Trial(debugger, self.configuration, self.dtype, self.tolerance)
        tried = trial(code, pc, operands, [*map(host, _results(frame, pc))])
        if tried.factor > alone.factor:
            tried.times = alone.times
            self.alone[place] = tried

    # -- reasons -------------------------------------------------------------------------------------

    def reasons(self, places: Sequence[Place]) -> list[Kept]:
        """Return the statements that stay wide, each with what fails without it."""
        self._report("testing each statement alone")
        return [self._reason(place, [each for each in places if each != place]) for place in places]

    def unexplained(self, places: Sequence[Place]) -> list[Kept]:
        """Return the statements that stay wide, without running the program without each."""
        found = []
        for place in places:
            alone = self.alone[place]
            reason = alone.reason or "error"
            found.append(Kept(place, self._sites[place], reason, alone.detail, alone.hint, alone.factor))
        return found

    def _reason(self, place: Place, others: Sequence[Place]) -> Kept:
        alone, without = self.alone[place], self.outcome(others)
        self._report("testing each statement alone")
        if alone.reason:
            detail = alone.detail
        else:
            detail = f"alone, its error is {_times(alone.factor)}; if it is narrowed too, {without.words}"
        return Kept(place, self._sites[place], alone.reason or "error", detail, alone.hint, without.factor)


def _operands(frame: Frame) -> list[Any] | None:
    """Return the operands of the next statement; None if it runs no kernel."""
    code, pc = frame.code, frame.pc
    if not code.runs_kernel(pc):
        return None
    return list(code.operands_of(pc, frame.slots))


def _results(frame: Frame, pc: int) -> list[Any]:
    return frame.code.results_of(pc, frame.slots)


def _difference(name: str, match: Match) -> str:
    if match.excess.where is None and match.detail:
        return f"the output %{name_text(name)} is {match.detail}"
    if not np.isfinite(match.excess.factor) and match.elements is not None:
        wide, narrow = match.elements
        return f"the output %{name_text(name)} has {narrow} where it should have {wide:.4g}"
    return f"the output %{name_text(name)} differs by {_times(match.excess.factor)}"


def _times(factor: float) -> str:
    return f"{factor:.3g} times the tolerance"
