"""Propagates marks through a statement, from its operands to its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.diagnosis.intentional import Consumed, consumed, role_of
from nncdbg.engine.diagnosis.marks import MarkedTensors, Role, Stage, groups_of, masks_of
from nncdbg.engine.diagnosis.register import NONE, Origins
from nncdbg.engine.diagnosis.sightings import Sightings, StatementVisit
from nncdbg.engine.diagnosis.step import Position, Step, marks_key, step_of
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.execution.loaded import Loaded, MicroPrograms
from nncdbg.engine.observers.nonfinite import array_of, influenced, shaped
from nncdbg.engine.ops import Op
from nncdbg.engine.ops.aten.operators import VIEWS
from nncdbg.engine.ops.influence import EVERYTHING, NOTHING, Infinities, Marked, whole
from nncdbg.errors import NncdbgError
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
    seen: Sightings
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
        for origins in groups_of(step.known, "real"):
            exact = not origins & self.rounded
            carried = self.influenced(step, masks_of(step.known, "real", origins), exact=exact)
            for result, marks in zip(step.results, carried, strict=False):
                self.marks.add(result, "real", origins, marks)
                if isinstance(marks, list) or np.any(marks):
                    self._read(origins, step.binding)
                    self.report(origins, step.binding)
        self._carry_shapes(step)
        for number, stage in groups_of(step.known, "meant"):
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
