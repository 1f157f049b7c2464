"""Decide whether a breakpoint or a finding stops the program, and describe the stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product
from typing import Any, Protocol

from nncdbg.engine.compilation.code import EVICTED, Code, Statement
from nncdbg.engine.execution.findings import RACE, STATE_RESET, Finding
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.undo_log import FramePopped
from nncdbg.engine.observers.catching import Catches
from nncdbg.engine.observers.nonfinite import array_of, bad_in
from nncdbg.engine.observers.statement_checks import (
    FAULTS,
    Races,
    StateResets,
    faults_of,
    finding_of,
    is_zero,
    old_slot,
)
from nncdbg.engine.stopping.breakpoints import Breakpoint, Traps
from nncdbg.engine.stopping.placement import braced
from nncdbg.engine.stopping.stops import Judged, LogMessage, Stop
from nncdbg.engine.values.current import Current
from nncdbg.engine.values.explanation import explained, size_origins
from nncdbg.engine.values.values import Values
from nncdbg.errors import NncdbgError, NotComputed
from nncdbg.expression import Expression, condition, evaluate
from nncdbg.expression.tokens import LATER
from nncdbg.ir.records import Array
from nncdbg.stats.inspection import holds
from nncdbg.text.listing import Listing

_TOLD_AS = {"nan": ("nan",), "inf": ("inf", "overflow")}


class FirstUses(Protocol):
    """Finds the first uses of NaN and Inf in inputs, constants and values set by hand."""

    def uses(self, finding: Finding, depth: int, tick: int) -> bool:
        """Return whether the statement in execution may be such a use."""

    def first_used(self, finding: Finding, frame: Frame, tick: int) -> str:
        """Return which values the statement that has just run uses first; empty if none."""

    def left(self, finding: Finding, frame: Frame, name: str) -> str:
        """Return which values the program returns as output `name` that no statement has used."""


class Judge:
    """Judges breakpoints and findings with `scope`, the names and values of the innermost frame.

    `traps` has the breakpoints at each place; `catches` has the kinds of findings that stop the program.
    `entering` finds the first uses of values that were bad from the start.  `resets` finds updates of an
    optimizer's states to 0, `races` races of a schedule.  `listing_in` returns the listing of a block;
    `inputs` are the entry graph's arrays.
    """

    def __init__(
        self,
        scope: Values,
        traps: Traps,
        catches: Catches,
        resets: StateResets,
        races: Races,
        listing_in: Callable[[Code], Listing],
        inputs: Mapping[str, Array],
        entering: FirstUses,
    ) -> None:
        self.entering = entering
        self.scope = scope
        self.machine = scope.machine
        self.traps = traps
        self.catches = catches
        self.resets = resets
        self.races = races
        self.listing_in = listing_in
        self.inputs = inputs

    def __repr__(self) -> str:
        return f"<Judge of {len(self.traps.breakpoints)} breakpoints, {self.catches!r}>"

    def describe(self, reason: str, frame: Frame | None, pc: int, **fields: Any) -> Stop:
        """Return the stop at statement `pc` of a frame, with its error explained; `fields` as in Stop."""
        if frame is None:
            return Stop(reason, None, None, None, **fields)
        node = frame.code.nodes[pc] if pc < len(frame.code.nodes) else None
        error = fields.get("error")
        if error is not None:
            fields["error"] = self.explain(error, frame, pc)
        return Stop(reason, frame, node, self.scope.line(frame.code, pc), **fields)

    def explain(self, error: BaseException, frame: Frame, pc: int) -> NncdbgError:
        """Return a statement's error with its place, its operands, and the origins of their sizes."""
        result = explained(error, frame, pc, self.listing_in(frame.code))
        result.operands += size_origins(self.machine.frames, frame, pc, self.inputs)
        return result

    # -- breakpoints -------------------------------------------------------------------------

    def holding(self) -> list[Judged]:
        """Return the breakpoints here with a true condition; a condition that fails counts as true."""
        frame = self.machine.frames[-1]
        found = []
        for breakpoint, after in self.traps.at(frame):
            if after and frame.pc == 0 and not frame.is_loop and breakpoint.kind == "value":
                continue
            try:
                if self._holds(breakpoint, after):
                    found.append(Judged(breakpoint, after))
            except NncdbgError as error:
                found.append(Judged(breakpoint, after, f"its condition failed: {error.message}"))
        return found

    def stop_of(self, holding: Iterable[Judged], log: Callable[[Judged], None]) -> Stop | None:
        """Count the breakpoints that hold here, log messages, and return the stop if one is due."""
        due = []
        for judged in holding:
            judged.breakpoint.passed(self.machine.tick)
            if not judged.detail and not judged.breakpoint.due():
                continue
            if judged.breakpoint.log is not None and not judged.detail:
                log(judged)
                continue
            due.append(judged)
        return self.stop_at(due) if due else None

    def stop_at(self, due: Sequence[Judged]) -> Stop:
        """Return the stop of these breakpoints, and remove the temporary ones."""
        frame = self.machine.frames[-1]
        first = due[0]
        for judged in due:
            if judged.breakpoint.temporary:
                self.traps.remove(judged.breakpoint.number)
        begins = frame.pc == 0
        detail = "; ".join(_description(each, begins) for each in due)
        reason = "data" if first.breakpoint.after_writes else "breakpoint"
        pc = frame.pc - 1 if first.after and frame.pc > 0 else frame.pc
        return self.describe(
            reason, frame, pc, detail=detail, breakpoints=tuple(j.breakpoint.number for j in due)
        )

    def due_backwards(self) -> list[Judged]:
        """Return the breakpoints at which a forward run stops here, during a backward move."""
        due = []
        for judged in self.holding():
            judged.breakpoint.rewind(self.machine.tick - 1)
            judged.breakpoint.passed(self.machine.tick)
            if (judged.detail or judged.breakpoint.due()) and judged.breakpoint.log is None:
                due.append(judged)
        return due

    def _holds(self, found: Breakpoint, after: bool) -> bool:
        """Return whether the condition of a breakpoint is true now, before or after its statement."""
        when = found.condition
        if when is not None:
            scope = self._scope(found, after) if when.variables else self.scope
            if when.sourced:
                when, scope = self._read(when.text, found, after)
            if not self._true(when, scope):
                return False
        return found.expression is None or self._stops(found, found.expression, after)

    def _true(self, when: Expression, scope: Values) -> bool:
        """Return whether a condition is true; one on the step or the epoch is false outside a run."""
        driver = (when.variables & {"step", "epoch"}) - scope.convenience.keys()
        if driver and all(frame.code.epoch is None for frame in self.machine.frames):
            return False
        return condition(when, scope)

    def _stops(self, found: Breakpoint, expression: Expression, after: bool) -> bool:
        """Return whether a watched expression changed or an asserted one is false, if it can be computed."""
        scope = self._scope(found, after) if expression.variables else self.scope
        try:
            if expression.sourced:
                expression, scope = self._read(expression.text, found, after)
            if found.kind == "assert":
                return not condition(expression, scope)
            return found.changes.changed(self.machine.tick, evaluate(expression, scope))
        except NotComputed:
            return False

    def _scope(self, found: Breakpoint, after: bool) -> Values:
        """Return the current names and values, with `$in0` and `$out` of the breakpoint's statement.

        At the beginning of a block, `$out` is the watched value.
        """
        frame = self.machine.frames[-1]
        at_begin = partial(frame.code.slot_at, pc=0)
        if not after or (frame.pc == 0 and found.expression is not None):
            current = Current(frame, frame.pc, None)
        elif frame.pc == 0 and (
            slots := [slot for name in found.names if (slot := at_begin(name)) is not None]
        ):
            current = Current(frame, 0, tuple(slots))
        else:
            current = Current.after(frame, frame.pc - 1)
        return replace(self.scope, current=current)

    def _read(self, text: str, found: Breakpoint, after: bool) -> tuple[Expression, Values]:
        """Return an expression, with the values that names of the user's source hold now, and its scope.

        Raises NotComputed for a name that holds none.
        """
        frame = next(each for each in reversed(self.machine.frames) if each.code.formula is None)
        held = self.traps.names.held((frame.code.path, frame.pc), after and frame.pc > 0, found)
        return self._with_names(text, self._scope(found, after), held)

    def _with_names(self, text: str, scope: Values, held: Mapping[str, str]) -> tuple[Expression, Values]:
        names = {**dict.fromkeys(self.traps.names.bound, LATER), **held}
        scope = replace(scope, aliases=lambda: names)
        expression = scope.read(text)
        if expression.sourced:
            name = min(expression.sourced)
            raise NotComputed(f"`{name}` holds no tensor here", hint="go on to a line after it is bound")
        return expression, scope

    def message(self, judged: Judged) -> LogMessage:
        """Return the message of a logpoint, with each expression in braces replaced by its value."""
        rest, text = judged.breakpoint.log or "", ""
        for part in braced(rest):
            try:
                shown = str(evaluate(*self._read(part, judged.breakpoint, judged.after)))
            except NncdbgError as error:
                shown = f"<{error.message}>"
            before, _, rest = rest.partition("{" + part + "}")
            text += before + shown
        frame = self.machine.frames[-1]
        pc = frame.pc - 1 if judged.after and frame.pc > 0 else frame.pc
        return LogMessage(text + rest, frame, self.scope.line(frame.code, pc))

    # -- findings ----------------------------------------------------------------------------

    def concerns(self, finding: Finding) -> bool:
        """Return whether a finding can stop the program; `settle` evaluates its condition."""
        if self.scope.timeline.replaying:
            return False
        return any(True for _ in self.catches.qualifying(finding)) or self._may_enter(finding)

    def _may_enter(self, finding: Finding) -> bool:
        """Return whether a caught NaN or Inf may come from a value that was bad from the start."""
        if finding.kind not in _TOLD_AS or finding.kind not in self.catches.conditions:
            return False
        frames = self.machine.frames
        return frames[-1].code is finding.binding.code and self.entering.uses(
            finding, len(frames) - 1, self.machine.tick
        )

    def _caught(self, finding: Finding, frame: Frame) -> Iterator[tuple[Finding, Expression | None]]:
        """Yield the finding for each caught kind, with the condition that remains to be evaluated."""
        born = [*self.catches.qualifying(finding)]
        yield from born
        if not born and finding.kind in _TOLD_AS and finding.kind in self.catches.conditions:
            used = self.entering.first_used(finding, frame, self.machine.tick)
            if used:
                yield replace(finding, detail=used), self.catches.conditions[finding.kind]

    def settle(self, finding: Finding) -> Stop | None:
        """Return the stop for a finding if it is caught and its condition holds.

        The statement's results must be stored.
        """
        statement = finding.binding
        left = (each.frame for each in self.machine.finished() if isinstance(each, FramePopped))
        frame = next(f for f in chain(reversed(self.machine.frames), left) if f.code is statement.code)
        if finding.kind == STATE_RESET and self._was_zero(frame, statement.pc, finding.output or 0):
            return None
        return self._stop_for(self._caught(finding, frame), frame)

    def judges_outputs(self) -> bool:
        """Whether a NaN or Inf in an output is caught."""
        return not self.catches.conditions.keys().isdisjoint(_TOLD_AS)

    def settle_outputs(self) -> Stop | None:
        """Return the stop before the end for an output that has a NaN or Inf that no statement has used."""
        frame = self.machine.frames[0]
        code, kinds = frame.code, [kind for kind in _TOLD_AS if kind in self.catches.conditions]
        for kind, slot in product(kinds, code.operands[-1]):
            pc = code.definition[slot]
            if pc >= 0 and bad_in(self.scope.to_host(frame.slots[slot]), kind) is not None:
                number = [*code.result_slots(pc)].index(slot)
                finding = Finding(kind, Statement(code, pc), "", (), number)
                detail = self.entering.left(finding, frame, code.names[slot])
                caught = (replace(finding, detail=detail), self.catches.conditions[kind])
                if detail and (stop := self._stop_for([caught], frame)) is not None:
                    return stop
        return None

    def _stop_for(self, found: Iterable[tuple[Finding, Expression | None]], frame: Frame) -> Stop | None:
        """Return the stop for the first of these findings of a frame whose condition is true."""
        for caught, when in found:
            statement, detail = caught.binding, caught.detail
            try:
                current = Current.after(frame, statement.pc)
                scope = replace(self.scope, current=current)
                if when is not None and when.sourced:
                    held = self.traps.names.held((frame.code.path, statement.pc + 1), True)
                    when, scope = self._with_names(when.text, scope, held)
                if when is not None and not self._true(when, scope):
                    continue
            except NncdbgError as error:
                detail = f"{detail}; the condition of catch {caught.kind} failed: {error.message}"
            return self.describe("exception", frame, statement.pc, detail=detail, finding=caught)
        return None

    def _was_zero(self, frame: Frame, pc: int, number: int) -> bool:
        """Return whether state `number` of the update at `pc` was 0 everywhere before it."""
        slot = old_slot(frame.code, pc, number)
        old = frame.slots[slot] if slot is not None else None
        if slot is not None and old is EVICTED and frame in self.machine.frames:
            old = self.scope.timeline.recompute(self.machine.frames.index(frame), slot)
        return hasattr(old, "shape") and is_zero(array_of(self.scope.to_host(old)))

    def settle_before(self) -> Stop | None:
        """Return the stop for a finding caught in the previous statement, during a backward move."""
        frame = self.machine.frames[-1]
        pc = frame.pc - 1
        if pc < 0 or self.machine.last_transfer is not None or not frame.code.runs_kernel(pc):
            return None
        stops = map(self.settle, self._findings_at(Statement(frame.code, pc)))
        return next((stop for stop in stops if stop is not None), None)

    def _findings_at(self, statement: Statement) -> Iterator[Finding]:
        """Yield the findings of caught kinds in a statement that has run."""
        conditions, to_host = self.catches.conditions.keys(), self.scope.to_host
        kinds = [kind for kind, told_as in _TOLD_AS.items() if not conditions.isdisjoint(told_as)]
        if RACE in conditions:
            yield from self.races.at(statement)
        if not kinds and conditions.isdisjoint({*FAULTS, STATE_RESET}):
            return
        code, pc = statement.code, statement.pc
        slots = self.scope.timeline.recalled(pc)
        if slots is None:
            return
        inputs, outputs = [*map(to_host, code.operands_of(pc, slots))], code.results_of(pc, slots)
        if STATE_RESET in conditions:
            yield from self.resets.zeros(statement, inputs)
        for kind, fault in () if conditions.isdisjoint(FAULTS) else faults_of(statement, inputs):
            yield finding_of(statement, kind, fault, inputs, outputs[0])
        for (index, output), kind in product(enumerate(outputs), kinds):
            if holds(to_host(output), kind):
                yield Finding(kind, statement, "", inputs, index)


def _description(judged: Judged, begins: bool) -> str:
    """Describe a breakpoint that holds; `begins`: its block is about to begin."""
    found = judged.breakpoint
    behind = judged.after and not begins and not found.after_writes and found.condition is not None
    after = "after the statement, as the condition reads its result" if behind else ""
    change = str(found.changes) if found.kind == "watch" else ""
    words = "; ".join(filter(None, (change, after, judged.detail)))
    return f"breakpoint {found.number}, {found}" + (f": {words}" if words else "")
