"""The NaN tracker: follows bad values element by element, from where they originate to the outputs.

The allocation or observer that inspects every result reports NaN, Inf and misused memory. Until the
first report the tracker has no cost, unless an input or constant contains NaN or Inf: then, and from
the first report on, it tracks each statement (`wrap`). By the op's influence rule
(`nncdbg.engine.ops.influence`) it marks the result elements that depend on a bad value, including
finite ones: the index of an ArgMax, the 0 of 1 / Inf. A mark in an output means that the bad value has
an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.diagnosis.effect import Effect, step_outputs
from nncdbg.engine.diagnosis.finding_records import (
    ENTRANCE,
    NONE,
    FindingRecord,
    FindingRecords,
    Origins,
    Register,
)
from nncdbg.engine.diagnosis.marks import MarkedTensors, Marks, hits
from nncdbg.engine.diagnosis.nonfinite_inputs import Entrances, masked_factor, masked_words
from nncdbg.engine.diagnosis.propagation import Carrier, Decisions
from nncdbg.engine.diagnosis.step import Notes, Position, Step, alone, either, key_of, step_of
from nncdbg.engine.diagnosis.widened import Widened
from nncdbg.engine.execution.events import Event
from nncdbg.engine.execution.findings import STATE_RESET, Finding
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.observers.nonfinite import KINDS, array_of, bad_in, influenced, shaped
from nncdbg.engine.observers.statement_checks import FAULTS, faults_of
from nncdbg.engine.ops.aten.operators import facts_of
from nncdbg.engine.ops.causes import WHERE_TRAP, Cause
from nncdbg.engine.ops.influence import CHECK, NOTHING, Application, Infinities, Marked, whole
from nncdbg.ir.kinds import Kind
from nncdbg.stats.inspection import bad, is_finite
from nncdbg.text.torch_names import autograd_nodes, is_torch

if TYPE_CHECKING:
    from nncdbg.engine.diagnosis.diagnosing import Diagnosing
    from nncdbg.engine.execution.frame import Frame

_READ_NOTHING = (NOTHING.find, CHECK.find)


@dataclass(slots=True)
class NanTracker:
    """The NaN tracker of a run; `machine` is where the program is, `inputs` are its inputs by name.

    The inputs are the values in the machine's slots. `whole` returns whether every element of a tensor
    is initialized. `begin` schedules its argument before the next statement, from which on all are
    tracked. `quiet` returns whether the past is being recomputed, so that nothing is recorded.
    """

    machine: Position
    inputs: Mapping[str, Any]
    to_host: Callable[[Any], Any]
    whole: Callable[[Any], bool]
    diagnosing: Diagnosing
    begin: Callable[[Callable[[], None]], None]
    quiet: Callable[[], bool] = lambda: False
    _seen: FindingRecords = field(default_factory=FindingRecords)
    marks: MarkedTensors = field(default_factory=MarkedTensors)
    _carrier: Carrier = field(init=False)
    _widened: Widened = field(init=False)
    _notes: Notes = field(init=False)
    entrances: Entrances = field(init=False)
    _decisions: Decisions = field(init=False)
    _asked: bool = False
    _followed: bool = False
    _reported: bool = False
    """Whether a result of the statement in execution contains NaN or Inf."""
    legal: set[int] = field(default_factory=set)
    """The origins of infinities that are legal by definition."""
    _explaining: set[int] = field(default_factory=set)
    """Records of misused memory, wrong integers and inner overflows, which explain dependent values."""
    _trapped: Origins = NONE
    """The origins of infinities that a mask dropped in forward, and that backward multiplied by 0."""
    _dropping: dict[int, Binding] = field(default_factory=dict)
    """Origins of NaN to the first statement that selects other elements, such as a mask."""
    _reached: dict[int, str] = field(default_factory=dict)
    """The origins that outputs depend on, with evidence."""
    _in_numbers: Origins = NONE
    """The origins that outputs of one number depend on, such as the loss."""
    _nearest: Origins = NONE
    """The recorded findings nearest to the outputs."""
    _zeros: Register = field(default_factory=Register)
    """The operands with a 0 from which an infinity originates."""
    _again: dict[int, Origins] = field(default_factory=dict)
    """The origins of NaN that read such an operand again, as backward does, with those of the infinities."""
    _unfollowed: list[tuple[Statement, Origins]] = field(default_factory=list)
    """Statements that read uninitialized memory before tracking began."""

    def __post_init__(self) -> None:
        self._notes = Notes(self.machine, self.to_host, self._seen, self.marks)
        self.entrances = Entrances(self._seen, self.marks, self.to_host, self.diagnosing.loaded.rebound)
        self._carrier = Carrier(
            self.marks,
            self._seen,
            self.diagnosing.loaded,
            self.machine,
            self._explaining,
            self.entrances.data,
        )
        self._widened = Widened(self.marks)
        self._decisions = Decisions(self.marks)

    def start(self) -> bool:
        """Inspect inputs and constants; return whether a NaN or Inf requires tracking every statement."""
        frame = self.machine.frames[0]
        if self.entrances.of_inputs(frame.code, self.inputs) | self.entrances.of_constants(frame.code):
            self._asked = self._followed = True
        return self._followed

    @property
    def unmarked(self) -> bool:
        """Whether no tensor has marks."""
        return not self.marks

    def sighting(self, number: int) -> FindingRecord:
        """Return a record by its number."""
        return self._seen[number]

    def reach(self, frame: Frame, slots: list[Any] | None = None) -> Iterable[int]:
        """Record that the results of a block are outputs; return the origins that they depend on.

        `slots` are the values of the block, by default those of `frame`.
        """
        code, effect = frame.code, Effect(self.marks, self._seen, self.to_host, self.legal, self._widened)
        values = code.operands_of(-1, frame.slots if slots is None else slots)
        found = effect.reaching(values, step_outputs(code))
        self._reached |= {number: why or self._reached.get(number, "") for number, why in found.items()}
        self._in_numbers |= effect.of_scalars(values)
        self._nearest |= effect.nearest(values)
        return found

    def infinities_of(self, numbers: Iterable[int]) -> Origins:
        """Return the origins of harmless infinities in forward with the zeros of these NaN in backward."""
        return NONE.union(*(self._again.get(each, NONE) for each in numbers))

    @property
    def problems(self) -> list[str]:
        """What could not be tracked exactly, and why."""
        return self._carrier.problems

    @property
    def sightings(self) -> list[FindingRecord]:
        return self._seen.reported

    # -- reports -----------------------------------------------------------------------------------

    def found(self, finding: Finding) -> None:
        """Handle a result with NaN or Inf, misused memory, or a fault."""
        if self.quiet() or finding.kind in ("micro", STATE_RESET):
            return
        self._follow()
        if finding.kind in FAULTS:
            self._faulty_operand(finding)
        elif finding.elements is not None:
            self._overflowed(finding)
        elif finding.kind not in KINDS:
            self._misused(finding)
        elif self._followed:
            self._reported = True
        else:
            binding = finding.binding
            assert isinstance(binding, Binding)
            results = [None] * (finding.output or 0) + [finding.result]
            self.trace(binding, finding.inputs, results, reported=True, kinds=(finding.kind,))

    def _faulty_operand(self, finding: Finding) -> None:
        """Record the results of a faulty operand; those caused by a NaN or Inf get its origin."""
        operands = [array_of(self.to_host(value)) for value in finding.inputs]
        fault = dict(faults_of(finding.binding, operands)).get(finding.kind)
        if fault is None or finding.result is None:
            self._notes.birth(finding, cause=self.diagnosing.cause(finding)[0])
            return
        host = array_of(self.to_host(finding.result))
        binding, known = finding.binding, [self.marks.of(value) for value in finding.inputs]
        assert isinstance(binding, Binding)
        given: list[Marked] = [None] * len(operands)
        blamed, marks = operands[fault.operand], known[fault.operand]
        there = bad(blamed, "nan") | bad(blamed, "inf")
        followed = np.logical_or.reduce([*marks.real.values()]) if marks and marks.real else False
        given[fault.operand] = brought = fault.elements & there & followed
        application = Application(binding.op, binding.attributes, operands, [host], given)
        carried = influenced(application, given, self._carrier.complain)[0] if np.any(brought) else None
        explained = np.zeros(host.shape, bool) if carried is None else shaped(host, carried)
        wrong = np.broadcast_to(fault.results, host.shape)
        cause = self.diagnosing.cause(finding)[0]
        if (born := wrong & ~explained).any():
            number = self._notes.birth(finding, cause=cause).number
            self._explaining.add(number)
            self._notes.mark_birth(finding.result, number, born, meant=False)
        origins = NONE.union(*(NONE.union(*each.real) for each in known if each))
        if (wrong & explained).any() and origins:
            self._notes.hand_on("propagated", finding, origins, known, finding.result, cause=cause)

    def _overflowed(self, finding: Finding) -> None:
        """Record an overflow inside an op, and the elements of its finite result that it made wrong."""
        cause, within = self.diagnosing.cause(finding)
        number = self._notes.birth(finding, cause=cause, within=within).number
        self._carrier.rounded.add(number)
        self._explaining.add(number)
        self._notes.mark_birth(finding.result, number, finding.elements, meant=False)
        self._widened.judged.add(number)
        binding, known = finding.binding, [self.marks.of(value) for value in finding.inputs]
        assert isinstance(binding, Binding)
        results = [finding.result] + [None] * (binding.outputs - 1)
        self._widened.judge(step_of(binding, finding.inputs, results, known, self.to_host), inner=True)

    def _misused(self, finding: Finding) -> None:
        cause = Cause(_misuse_of(finding), finding.detail, "")
        number = self._notes.birth(finding, cause=cause, other=finding.other).number
        self._explaining.add(number)
        origins = frozenset({number})
        if finding.result is not None:
            self._mark_whole(finding.result, origins)
            return
        if not self._followed:
            self._unfollowed.append((finding.binding, origins))
        # The finding is about an operand: later reads of that operand depend on it.
        for value in finding.inputs:
            marks = self.marks.of(value)
            if not self.whole(value) and (marks is None or not marks.origins & self._explaining):
                self._mark_whole(value, origins)

    def _mark_whole(self, value: Any, origins: Origins) -> None:
        self.marks.add(value, "real", origins, whole(self.to_host(value)))
        self.marks.note(value, origins)

    # -- tracking ----------------------------------------------------------------------------------

    def _follow(self) -> None:
        if not self._asked:
            self._asked = True
            self.begin(self._catch_up)

    def _catch_up(self) -> None:
        """Mark the results of statements that read uninitialized memory before tracking began."""
        self._followed = True
        frame = self.machine.frames[-1]
        for statement, origins in self._unfollowed:
            if statement.code is frame.code and statement.pc < frame.pc:
                for slot in frame.code.result_slots(statement.pc):
                    self._mark_whole(frame.slots[slot], origins)

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return an instruction that propagates the marks of its operands to its results."""

        def followed(*inputs: Any) -> Any:
            results = execute(*inputs)
            if isinstance(results, np.bool_):
                # NumPy has one object for each bool, so results would share their marks.
                results = np.asarray(results)
            reported, self._reported = self._reported, False
            if (self.marks or reported) and not self.quiet():
                self.trace(binding, inputs, results if binding.several else (results,), reported=reported)
            return results

        return followed

    def hear(self, event: Event) -> None:
        """Handle a transfer of control; called by the machine."""
        if self.quiet():
            return
        if self.entrances.hear(event):
            self._follow()
        self._decisions.hear(event, self.machine.frames)

    def trace(
        self,
        binding: Binding,
        inputs: Sequence[Any],
        results: Sequence[Any],
        *,
        reported: bool,
        kinds: Sequence[str] = KINDS,
    ) -> None:
        """Propagate marks from operands to results, and record the changes of NaN and Inf."""
        known = [self.marks.of(value) for value in inputs]
        if not reported and not any(known):
            return
        for index, each in enumerate(known):
            if each is None and self.entrances.of_operand(inputs[index], binding, index):
                known[index] = self.marks.of(inputs[index])
        marked = any(known)
        step = step_of(binding, inputs, results, known, self.to_host)
        if marked:
            self._carrier.carry(step)
        noted = [
            self._note_kind(step, index, kind)
            for index, host in enumerate(step.application.results)
            for kind in kinds
            if not isinstance(host, (list, tuple)) and not is_finite(host)
        ]
        self._widened.judge(step)
        if marked and not any(noted) and binding.op.influence.find not in _READ_NOTHING:
            self._healed(step)

    # -- records -----------------------------------------------------------------------------------

    def _note_kind(self, step: Step, index: int, kind: str) -> bool:
        """Record the origins and propagation of one kind in one result; return whether it contains any."""
        host, result = step.application.results[index], step.results[index]
        there = bad(host, kind)
        if not there.any():
            return False
        there &= ~self._misused_in(step, index)
        explained = self._explained(step, index, kind)
        born, given = there & np.logical_not(explained), there & explained
        marks = self.marks.of(result) or Marks()
        if born.any():
            parents = NONE.union(*hits(marks.real, born))
            self._originates(step, index, kind, explained, parents)
        if given.any():
            origins = NONE.union(*hits(marks.real, given))
            if kind == "nan":
                self._masked_by_zero(step)
                self._selected(step, index, origins)
            if origins and not born.any():
                finding = Finding(kind, step.binding, "", step.inputs, index, result=result)
                self._notes.hand_on("propagated", finding, origins, step.known, result)
        return True

    def _masked_by_zero(self, step: Step) -> None:
        """Add to the cause of a bad input or parameter that a product gives each of its elements weight 0."""
        found = masked_factor(step.application)
        marks = None if found is None else step.known[found[0]]
        if found is None or marks is None:
            return
        code, pc = step.binding.code, step.binding.pc
        names = [code.names[code.operands[pc][number]] for number in found]
        evidence, hint = masked_words(names, step.binding.node.op)
        for number in NONE.union(*hits(marks.real, bad_in(step.application.operands[found[0]], "nan"))):
            known = self._seen[number]
            if (
                known.cause is not None
                and known.statement.pc == ENTRANCE
                and evidence not in known.cause.evidence
            ):
                known.cause = Cause(known.cause.name, f"{known.cause.evidence}; {evidence}", hint)

    def _selected(self, step: Step, index: int, origins: Origins) -> None:
        """Give a NaN of the program text the cause of the operator that selects it, if its rule names one.

        A function of PyTorch that consists of several operators selects it where it is not defined.
        """
        if not is_torch(step.binding.op.name):
            return
        written = [self._seen[number] for number in origins if _is_number(self._seen[number].statement)]
        if written:
            # Imported late: the rules are many, and most runs need none.
            from nncdbg.engine.diagnosis.explaining import explained

            finding = Finding("nan", step.binding, "", step.inputs, index, result=step.results[index])
            cause = explained(self.diagnosing.birth(finding))
            for each in written if cause is not None else ():
                each.cause = cause

    def _misused_in(self, step: Step, index: int) -> Any:
        """Return the elements of a result that a memory finding at this statement explains."""
        found, marks = (
            np.zeros(step.application.results[index].shape, bool),
            self.marks.of(step.results[index]),
        )
        given = NONE.union(*(known.origins for known in step.known if known))
        for origins, mask in marks.real.items() if marks else ():
            if origins & self._explaining and not origins & given:
                found |= mask
        return found

    def _explained(self, step: Step, index: int, kind: str) -> Any:
        """Return the result elements that depend on an operand element of the kind, or on misused memory."""
        masks: list[Marked] = []
        for value, known in zip(step.application.operands, step.known, strict=True):
            there = bad_in(value, kind)
            for origins, marks in known.real.items() if known else ():
                if origins & self._explaining:
                    there = marks if there is None else either(there, marks)
            masks.append(there)
        found = self._carrier.influenced(step, masks, exact=False)[index]
        return False if found is None else shaped(step.application.results[index], found)

    def _originates(self, step: Step, index: int, kind: str, explained: Any, parents: Origins) -> None:
        """Record an origin; a legal infinity is tracked as an intentional one."""
        result = step.results[index]
        finding = Finding(kind, step.binding, "", step.inputs, index, result=result)
        there = bad(step.application.results[index], kind)
        born = there & ~np.asarray(explained)
        slots = self.machine.frames[-1].slots
        key = key_of("birth", finding)
        known = self._seen.known(key)
        if known is not None:
            known.count += 1
            known.parents |= parents
            self._notes.mark_birth(result, known.number, born, meant=known.number in self.legal)
            return
        apart = alone(finding, step.application, born)
        legal = self.diagnosing.is_legal(apart, slots)
        cause, within = self.diagnosing.cause(apart)
        sighting = self._notes.birth(finding, parents, report=not legal, cause=cause, within=within)
        if kind == "inf" and cause.is_overflow:
            self._carrier.rounded.add(sighting.number)
        if cause.name == WHERE_TRAP:
            self._trapped |= parents
        if legal:
            self.legal.add(sighting.number)
        elif kind == "inf":
            self._widened.judged.add(sighting.number)
            for value, host in zip(step.inputs, step.application.operands, strict=True):
                if not cause.is_overflow and isinstance(host, np.ndarray) and (host == 0).any():
                    self._zeros.mark(value, "inf", frozenset({sighting.number}))
        elif cause.name != WHERE_TRAP and (found := self._zeros.union(step.inputs, "inf")):
            self._again[sighting.number] = found
        self._notes.mark_birth(result, sighting.number, born, meant=legal)

    def _healed(self, step: Step) -> None:
        """Record bad operands with finite results: the value is lost, or influences a result."""
        depends = NONE.union(*(marks.origins for marks in map(self.marks.of, step.results) if marks))
        for kind in KINDS:
            origins, known = NONE, []
            for value, each in zip(step.application.operands, step.known, strict=True):
                there = bad_in(value, kind)
                if each is not None and there is not None and not isinstance(there, list):
                    origins |= NONE.union(*hits(each.real, there))
                    known.append(each)
            moved = step.binding.op.influence.infinities is Infinities.KEPT
            lost = not (origins & depends)
            if moved and lost and kind == "nan" and _is_forward(step.binding):
                self._dropping = {**dict.fromkeys(origins, step.binding), **self._dropping}
            if origins and not (moved and lost):
                finding = Finding(kind, step.binding, "", step.inputs, 0, result=step.results[0])
                self._notes.hand_on("healed", finding, origins, known, step.results[0], lost=lost)

    # -- end -----------------------------------------------------------------------------------------

    def conclude(self, *, ended: bool, complete: bool = False) -> None:
        """Determine what reaches an output.

        `complete`: the program did not end, but everything that it reached is recorded (see `reach`).
        Otherwise, if it did not end, everything may reach an output.
        """
        if ended:
            self.reach(self.machine.frames[0])
        reaching = dict(self._reached)
        reaching |= dict.fromkeys(self.infinities_of(reaching) - reaching.keys(), "")
        self._carrier.report(frozenset(reaching))
        for number in self._widened.right - reaching.keys():
            self._seen[number].effect = "harmless: the result is right"
        for number, evidence in reaching.items():
            self._seen[number].effect = evidence
        for number in (self._trapped & reaching.keys()) - self._in_numbers:
            self._seen[number].dropped = True
            self._seen[number].effect = "a mask drops it in forward, and its gradient is NaN"
        for number in (self._dropping.keys() & reaching.keys()) - self._in_numbers:
            if _is_forward(self._seen[number].statement):
                binding = self._dropping[number]
                line, location = self.diagnosing.loaded.line(binding.code, binding.pc), binding.node.location
                place = f", {location.place}" if location is not None and location.place else ""
                words = (
                    f"{binding.node.op} (line {line}{place}) drops the NaN in forward, and a gradient is NaN"
                )
                self._seen[number].effect = words
        self._seen.conclude(frozenset(reaching), self._nearest, ended=ended or complete)


def _is_number(statement: Statement) -> bool:
    """Return whether a statement is PyTorch's operator for a number among tensors."""
    nodes, pc = statement.code.nodes, statement.pc
    return 0 <= pc < len(nodes) and is_torch(nodes[pc].op) and facts_of(nodes[pc].op).makes_scalar


def _is_forward(statement: Statement) -> bool:
    """Return whether a statement is an operator of PyTorch outside of a backward pass."""
    nodes, pc = statement.code.nodes, statement.pc
    if not 0 <= pc < len(nodes) or not is_torch(nodes[pc].op):
        return False
    location = nodes[pc].location
    return location is None or not autograd_nodes(location.name or "")


def _misuse_of(finding: Finding) -> str:
    """Return the name of the cause of a finding about memory."""
    if finding.kind == "uninitialized":
        return "uninitialized read"
    if finding.other is None:
        return finding.kind
    nodes, pc = finding.other.code.nodes, finding.other.pc
    return "overwritten state" if pc < len(nodes) and nodes[pc].kind is Kind.UPDATE else "wrong reuse"
