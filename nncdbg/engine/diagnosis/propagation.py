"""Propagation of marks through statements and control flow.

A condition influences all results of its branch or loop.  Infinities in constants, inputs and empty
reductions are intentional as long as they are only moved, selected by `Where`, `Max` or `Min`, compared, or
added to scores that a softmax turns into shares.  A softmax may be written out: `Exp` of scores minus their
maximum, or `Exp` divided by its sum.  Any other use makes the infinity data, and its origin is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.diagnosis.finding_records import NONE, FindingRecords, Origins, StatementVisit
from nncdbg.engine.diagnosis.marks import MarkedTensors, Marks, Role, Stage, listed_values, masks_of
from nncdbg.engine.diagnosis.step import Position, Step, marks_key, step_of
from nncdbg.engine.execution.events import Event, Iterated, Popped, Pushed, Skipped
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.execution.loaded import Loaded, MicroPrograms
from nncdbg.engine.observers.nonfinite import array_of, influenced, shaped
from nncdbg.engine.ops import Op
from nncdbg.engine.ops.aten.operators import VIEWS
from nncdbg.engine.ops.influence import EVERYTHING, NOTHING, WHERE, Infinities, Influence, Marked, whole
from nncdbg.errors import NncdbgError
from nncdbg.ir.kinds import Kind
from nncdbg.stats.inspection import bad
from nncdbg.text.torch_names import base_name, is_torch

_SELECTING = frozenset({Infinities.KEPT, Infinities.ABSORBED})
"""How ops treat an infinity that they only move or select."""


def inherits(op: Op) -> bool:
    """Whether an op without its own influence rule inherits that of its formula, if it has one."""
    return op.influence is EVERYTHING


def screened(step: Step) -> Role:
    """Return the role of results of tested gradients; an optimizer that uses these ends it."""
    tested = any(known is not None and Role.SCREENED in known.role for known in step.known)
    in_optimizer = step.binding.code.graph.name.startswith("optimizer")
    return Role.SCREENED if step.binding.op.screens or (tested and not in_optimizer) else Role.NONE


@dataclass(slots=True)
class Formulas:
    """Runs the formulas of statements; `carry` is called with each statement of them."""

    program: Loaded
    carry: Callable[[Step], None]
    known: Callable[[Any], Any]
    _micro_programs: MicroPrograms = field(init=False)

    def __post_init__(self) -> None:
        self._micro_programs = MicroPrograms(self.program.program, self.program.listing, self._follow)

    def run(self, step: Step) -> Sequence[Any] | None:
        """Return the results of the statement's formula; None if it has none for these operands, or fails."""
        binding, operands = step.binding, step.application.operands
        try:
            formula = self._micro_programs.of(binding.code, binding.pc, operands)
            if formula is None:
                return None
            results = [array_of(value) for value in self._micro_programs.run(formula, operands)]
        except NncdbgError:
            return None  # There is no formula for these operands: the op is treated as a whole.
        same = len(results) >= len(step.application.results)
        pairs = zip(results, step.application.results, strict=False)
        return results if same and all(np.shape(a) == np.shape(b) for a, b in pairs) else None

    def _follow(self, binding: Binding, execute: Execute) -> Execute:
        def followed(*inputs: Any) -> Any:
            results = execute(*inputs)
            known = [self.known(value) for value in inputs]
            if any(known):
                self.carry(step_of(binding, inputs, results if binding.several else (results,), known))
            return results

        return followed


@dataclass(slots=True)
class Carrier:
    """Propagates marks from the operands of statements to their results.

    `explaining` holds the origins that explain the NaN and Inf that depend on them, and `data` those of
    inputs and constants with an Inf that is no mask. `rounded` holds the origins of infinities that are not
    exact results: overflows, and constants used as data. `problems` lists what could not be
    tracked exactly, and why.
    """

    marks: MarkedTensors
    seen: FindingRecords
    program: Loaded
    machine: Position
    explaining: set[int]
    data: set[int]
    rounded: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    _formulas: Formulas = field(init=False)

    def __post_init__(self) -> None:
        self._formulas = Formulas(self.program, self.carry, self.marks.of)

    def carry(self, step: Step) -> None:
        """Mark the results of a statement by the marks of its operands."""
        if inherits(step.binding.op) and self._inherited(step):
            return
        for origins in listed_values(step.known, "real"):
            exact = not origins & self.rounded
            carried = self.influenced(step, masks_of(step.known, "real", origins), exact=exact)
            for result, marks in zip(step.results, carried, strict=False):
                self.marks.add(result, "real", origins, marks)
                if isinstance(marks, list) or np.any(marks):
                    self._read(origins, step.binding)
                    self.report(origins, step.binding)
        self._carry_shapes(step)
        for number, stage in listed_values(step.known, "meant"):
            self._consume(step, number, stage)
        row, latest = step.binding.op.influence, NONE.union(*(each.latest for each in step.known if each))
        role = role_of(step.binding.op.name, row, step.known) | screened(step)
        for result in step.results:
            self.marks.note(result, latest, role)

    def _inherited(self, step: Step) -> bool:
        """Propagate the marks through the op's formula; return whether it has one."""
        operands = step.application.operands
        for value, host, known in zip(step.inputs, operands, step.known, strict=True):
            if known is not None and host is not value:
                self.marks.copy(value, host)
        found = self._formulas.run(step)
        for inner, result in zip(found or (), step.results, strict=False):
            self.marks.copy(inner, result)
        return found is not None

    def _carry_shapes(self, step: Step) -> None:
        """Propagate marks of shapes: to the shapes of results, and to all elements if an operand is empty."""
        origins = NONE.union(*(each.shape for each in step.known if each))
        if not origins:
            return
        empty = any(
            each is not None and each.shape and np.size(value) == 0
            for each, value in zip(step.known, step.application.operands, strict=True)
        )
        for result in step.results:
            if empty or step.binding.op.influence.find is NOTHING.find:
                self.marks.add(result, "real", origins, whole(result))
            if np.ndim(result):
                self.marks.add_shape(result, origins)

    def report(self, origins: Origins, statement: Statement | None = None) -> None:
        """Report origins that were held back; `statement` is the one that they influence now."""
        used = None if statement is None else StatementVisit.of(statement, self.machine.frames)
        for number in origins:
            self.seen.report(number, used)

    def _read(self, origins: Iterable[int], binding: Binding) -> None:
        """Record an operator of PyTorch as a reader of bad inputs and constants."""
        if is_torch(binding.op.name):
            visit = StatementVisit.of(binding, self.machine.frames)
            is_view = base_name(binding.op.name) in VIEWS
            for number in origins:
                self.seen.read(number, visit, is_view=is_view)

    def _consume(self, step: Step, number: int, stage: Stage) -> None:
        self._read((number,), step.binding)
        given = masks_of(step.known, "meant", (number, stage))
        row = step.binding.op.influence
        if row.masks is not None and any(m is not None for i, m in enumerate(given) if i not in row.masks):
            row = row.taking(Infinities.SPOILED)
        carried = self.influenced(step, given)
        pairs = zip(step.results, step.application.results, carried, strict=False)
        for result, host, marks in pairs:
            if marks is None:
                continue
            there = shaped(host, marks)
            now = consumed(row, stage, step.known, there, host)
            data = number in self.data and not row.pointwise and row.infinities not in _SELECTING
            if data and not isinstance(there, list):
                now = self._blamed(now, number, there & bad(host, "nan"))
            self.marks.add(result, "meant", (number, now.stage), now.meant)
            self._spoil(step, number, result, now.spoiled)

    def _blamed(self, now: Consumed, number: int, made: Any) -> Consumed:
        """Return what is left of an Inf in data; the NaN that it has `made` are explained by it."""
        if not made.any():
            return now
        self.explaining.add(number)
        return replace(now, spoiled=made if now.spoiled is None else now.spoiled | made)

    def _spoil(self, step: Step, number: int, result: Any, spoiled: Marked) -> None:
        """Mark an intentional infinity as data, except where the element is bad for another reason."""
        known = self.marks.of(result)
        if spoiled is None or isinstance(spoiled, list):
            self.marks.add(result, "real", frozenset({number}), spoiled)
        else:
            for marks in known.real.values() if known else ():
                spoiled = spoiled & ~marks
            if not spoiled.any():
                return
            self.marks.add(result, "real", frozenset({number}), spoiled)
        if spoiled is not None:
            self.rounded.add(number)
            self.report(frozenset({number}), step.binding)

    def influenced(self, step: Step, marked: Sequence[Marked], *, exact: bool = True) -> Sequence[Marked]:
        """Return the elements of each result that depend on the marked elements of the operands."""
        key = marks_key(step.application, marked, exact=exact)
        found = step.influences.get(key)
        if found is None:
            found = influenced(step.application, marked, self.complain, exact=exact)
            step.influences[key] = found
        return found

    def complain(self, problem: str) -> None:
        """Record what could not be tracked exactly."""
        if problem not in self.problems:
            self.problems.append(problem)


@dataclass(slots=True)
class Decisions:
    """The origins that determined whether, or how often, each frame runs."""

    marks: MarkedTensors
    _decided: dict[int, tuple[Origins, Origins]] = field(default_factory=dict)
    """For each frame the origins, and the recorded findings nearest to the condition."""

    def hear(self, event: Event, frames: Sequence[Frame]) -> None:
        """Record the origins of a frame's condition; mark the results when the frame ends."""
        if not self.marks:
            return
        if isinstance(event, Pushed):
            outer = frames[-2]
            node = outer.code.nodes[outer.pc]
            if node.kind in (Kind.IF, Kind.WHILE):
                self._decide(event.frame, outer.code.operands_of(outer.pc, outer.slots)[:1])
        elif isinstance(event, Skipped):
            outer = frames[-1]
            self._decide(event.frame, outer.code.operands_of(outer.pc - 1, outer.slots)[:1])
            self._end(event.frame, outer)
        elif isinstance(event, Iterated):
            self._breaks(event.frame, event.before)
            self._collect(event.frame, event.before)
        elif isinstance(event, Popped):
            self._end(event.frame, frames[-1])

    def _breaks(self, frame: Frame, slots: Sequence[Any]) -> None:
        """Record the conditions of `break` in a completed iteration."""
        code = frame.code
        for pc, node in enumerate(code.nodes):
            if node.kind is Kind.BREAK:
                self._decide(frame, [slots[code.operands[pc][0]]])

    def _decide(self, frame: Frame, conditions: Sequence[Any]) -> None:
        known = [marks for marks in map(self.marks.of, conditions) if marks is not None]
        origins = NONE.union(*(marks.origins for marks in known))
        if origins:
            before, nearest = self._decided.get(id(frame), (NONE, NONE))
            self._decided[id(frame)] = before | origins, nearest.union(*(marks.latest for marks in known))

    def _collect(self, loop: Frame, slots: Sequence[Any]) -> None:
        """Mark the collected values of a completed iteration: a run collects copies."""
        if loop.collected:
            results = loop.code.operands[-1][-len(loop.collected) :]
            for items, slot in zip(loop.collected, results, strict=True):
                self.marks.copy(slots[slot], items[-1])

    def _end(self, frame: Frame, outer: Frame) -> None:
        targets = outer.code.result_slots(outer.pc - 1)
        if frame.is_loop:
            if frame.pc:
                self._breaks(frame, frame.slots)
            self._stack(frame, [outer.slots[slot] for slot in targets])
        origins, nearest = self._decided.pop(id(frame), (NONE, NONE))
        for slot in targets if origins else ():
            self.marks.add(outer.slots[slot], "real", origins, True)
            self.marks.note(outer.slots[slot], nearest)

    def _stack(self, loop: Frame, results: Sequence[Any]) -> None:
        """Stack the marks of the values that a loop has collected, at its end."""
        carried = len(loop.code.graph.inputs) - 1
        latest = loop.code.operands[len(loop.code.nodes)][carried:]
        for result, items, last in zip(results[carried:], loop.collected, latest, strict=False):
            # A loop that ends by `break` does not collect in its last iteration.
            values = [*items, loop.slots[last]][: len(result)]
            self.marks.stack(values, result)
            self.marks.stack_exact(result, values)


@dataclass(frozen=True, slots=True)
class Consumed:
    """An intentional infinity after a statement: masks of one result."""

    meant: Marked = None
    stage: Stage = Stage.RAW
    spoiled: Marked = None


def consumed(
    row: Influence, stage: Stage, known: Sequence[Marks | None], marks: Marked, result: Any
) -> Consumed:
    """Classify the elements `marks` of a result, which depend on an intentional infinity."""
    if isinstance(result, (list, tuple)):
        return Consumed(marks, stage) if row.infinities is Infinities.KEPT else Consumed(spoiled=marks)
    infinite, how = marks & bad(result, "inf"), row.infinities
    if (marks & bad(result, "nan")).any():
        # The NaN is a separate finding, and the infinity its cause.
        return Consumed(infinite, Stage.SCORES)
    if stage is Stage.SHARE:
        return _share(how, known, marks)
    match how:
        case Infinities.KEPT:
            return Consumed(infinite, stage, marks & ~infinite)
        case Infinities.MIXED | Infinities.ABSORBED:
            return Consumed(infinite, Stage.SCORES)
        case Infinities.SCALED if stage is Stage.SCORES:
            return Consumed(infinite, stage, marks & ~bad(result, "inf"))
        case Infinities.EXPONENTIAL if not infinite.any():
            centred = any(each is not None and Role.CENTRED in each.role for each in known)
            return Consumed() if centred else Consumed(marks, Stage.SHARE)
    return Consumed(spoiled=marks)


def _share(how: Infinities, known: Sequence[Marks | None], marks: Marked) -> Consumed:
    match how:
        case Infinities.KEPT:
            return Consumed(marks, Stage.SHARE)
        case Infinities.SCALED:
            total = any(each is not None and Role.TOTAL in each.role for each in known)
            return Consumed() if total else Consumed(marks, Stage.SHARE)
        case Infinities.SUMMED | Infinities.MIXED | Infinities.ABSORBED:
            return Consumed()
    return Consumed(spoiled=marks)


def role_of(op: str, row: Influence, known: Sequence[Marks | None]) -> Role:
    """Return the role of a result in a softmax that is written out."""
    roles = [each.role if each is not None else Role.NONE for each in known]
    if row.greatest:
        return Role.MAXIMUM
    if op == "Sub" and len(roles) == 2 and Role.MAXIMUM in roles[1]:
        return Role.CENTRED
    if row.infinities is Infinities.SUMMED:
        shares = any(stage is Stage.SHARE for each in known if each is not None for _, stage in each.meant)
        return Role.TOTAL if shares else Role.NONE
    if row.infinities is Infinities.KEPT or row is WHERE:
        return _joined(roles)
    return Role.NONE


def _joined(roles: Sequence[Role]) -> Role:
    found = Role.NONE
    for role in roles:
        found |= role
    return found
