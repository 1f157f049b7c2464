"""The NaN tracker: follows bad values element by element, from where they originate to the outputs.

The allocation or observer that inspects every result reports those with NaN or Inf, and misused
memory.  Until the first report the tracker costs nothing, unless the program is given a NaN or Inf: then,
and from the first report on, it follows each statement (`wrap`).  By the op's row
(`nncdbg.engine.ops.influence`) it marks the elements of the results that depend on a bad value, finite ones
too: the index of an ArgMax, the 0 of 1 / Inf. What is marked in an output has an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.engine.code import Code, Statement
from nncdbg.engine.diagnosis.cause import Cause
from nncdbg.engine.diagnosis.causes.places import bad
from nncdbg.engine.diagnosis.decisions import Decisions
from nncdbg.engine.diagnosis.entrances import Entrances
from nncdbg.engine.diagnosis.intentional import consumed, role_of
from nncdbg.engine.diagnosis.marks import (
    MarkedTensors,
    Marks,
    Stage,
    groups_of,
    hits,
    influenced,
    masks_of,
)
from nncdbg.engine.diagnosis.register import NONE, Origins
from nncdbg.engine.diagnosis.sightings import Seen, Sighting, Sightings
from nncdbg.engine.events import Event
from nncdbg.engine.findings import Finding
from nncdbg.engine.integer_checks import fault_of
from nncdbg.engine.linking import Binding, Execute
from nncdbg.engine.machine import Machine
from nncdbg.engine.memory.lifetimes import target_slots
from nncdbg.engine.ops.influence import NOTHING, Application, Marked, whole
from nncdbg.engine.values import type_of
from nncdbg.stats import summarize
from nncdbg.stats.finiteness import is_finite

if TYPE_CHECKING:
    from nncdbg.engine.diagnosis.diagnosing import Diagnosing

KINDS = ("nan", "inf")


@dataclass(frozen=True, slots=True)
class Step:
    """One executed statement: its operands and results, on the host too, and the marks of the operands."""

    binding: Binding
    inputs: Sequence[Any]
    results: Sequence[Any]
    application: Application
    known: Sequence[Marks | None]


@dataclass(slots=True)
class Trail:
    """`machine` runs the program; `inputs` are its inputs by name, as they are in its slots.

    `whole` says whether every element of a tensor was written.  `begin` has its argument called before the
    next statement, from which on all are followed; `quiet` says when nothing is to be noted, as the past is
    being computed again.
    """

    machine: Machine
    inputs: Mapping[str, Any]
    to_host: Callable[[Any], Any]
    whole: Callable[[Any], bool]
    diagnosing: Diagnosing
    begin: Callable[[Callable[[], None]], None]
    quiet: Callable[[], bool] = lambda: False
    problems: list[str] = field(default_factory=list)
    """What could not be followed exactly, and why."""
    _seen: Sightings = field(default_factory=Sightings)
    _marks: MarkedTensors = field(default_factory=MarkedTensors)
    _entrances: Entrances = field(init=False)
    _decisions: Decisions = field(init=False)
    _asked: bool = False
    _followed: bool = False
    _reported: bool = False
    """Whether a result of the statement that runs has NaN or Inf."""
    _legal: set[int] = field(default_factory=set)
    """The births of infinities that are legal by definition."""
    _explaining: set[int] = field(default_factory=set)
    """The sightings of misused memory and wrong integers, which explain whatever depends on them."""
    _unfollowed: list[tuple[Statement, Origins]] = field(default_factory=list)
    """Statements that read what nobody wrote before they were followed."""

    def __post_init__(self) -> None:
        self._entrances = Entrances(self._seen, self._marks, self.to_host)
        self._decisions = Decisions(self._marks)
        self.machine.listeners.append(self._hear)

    def start(self) -> bool:
        """Inspect what the program is given; with a NaN or Inf in it every statement has to be followed."""
        frame = self.machine.frames[0]
        if self._entrances.of_inputs(frame.code, self.inputs) | self._entrances.of_constants(frame.code):
            self._asked = self._followed = True
        return self._followed

    @property
    def sightings(self) -> list[Sighting]:
        return self._seen.told

    # -- what is reported ------------------------------------------------------------------------

    def found(self, finding: Finding) -> None:
        """A result holds NaN or Inf, or memory was misused."""
        if self.quiet() or finding.kind == "micro":
            return
        self._follow()
        if finding.kind == "integer":
            self._integer_fault(finding)
        elif finding.kind not in KINDS:
            self._misused(finding)
        elif self._followed:
            self._reported = True
        else:
            binding = finding.binding
            assert isinstance(binding, Binding)
            results = [None] * (finding.output or 0) + [finding.result]
            self._trace(binding, finding.inputs, results, reported=True, kinds=(finding.kind,))

    def _integer_fault(self, finding: Finding) -> None:
        """Note wrong integers; those that come from a NaN or Inf have the origin of that."""
        operands = [_array(self.to_host(value)) for value in finding.inputs]
        fault = fault_of(finding.binding, operands)
        if fault is None or finding.result is None:
            self._birth(finding, cause=self.diagnosing.cause(finding)[0])
            return
        host = _array(self.to_host(finding.result))
        binding, known = finding.binding, [self._marks.of(value) for value in finding.inputs]
        assert isinstance(binding, Binding)
        given: list[Marked] = [None] * len(operands)
        blamed, marks = operands[fault.operand], known[fault.operand]
        there = bad(blamed, "nan") | bad(blamed, "inf")
        followed = np.logical_or.reduce([*marks.real.values()]) if marks and marks.real else False
        given[fault.operand] = fault.elements & there & followed
        application = Application(binding.op, binding.attributes, operands, [host], given)
        carried = influenced(application, given, self._complain)[0]
        explained = np.zeros(host.shape, bool) if carried is None else carried
        wrong = np.broadcast_to(fault.results, host.shape)
        cause = self.diagnosing.cause(finding)[0]
        if (born := wrong & ~explained).any():
            number = self._birth(finding, cause=cause).number
            self._explaining.add(number)
            self._mark_birth(finding.result, number, born, meant=False)
        origins = NONE.union(*(NONE.union(*each.real) for each in known if each))
        if (wrong & explained).any() and origins:
            self._hand_on("propagated", finding, origins, known, finding.result, cause=cause)

    def _misused(self, finding: Finding) -> None:
        name = "uninitialized read" if finding.kind == "uninitialized" else finding.kind
        cause = Cause(name, finding.detail, "")
        number = self._birth(finding, cause=cause, other=finding.other).number
        self._explaining.add(number)
        origins = frozenset({number})
        if finding.result is not None:
            self._mark_whole(finding.result, origins)
            return
        if not self._followed:
            self._unfollowed.append((finding.binding, origins))
        # It is about an operand: whatever is read of it from now on comes from there.
        for value in finding.inputs:
            if not self.whole(value) and not self._depends_on_memory(self._marks.of(value)):
                self._mark_whole(value, origins)

    def _depends_on_memory(self, marks: Marks | None) -> bool:
        return marks is not None and bool(marks.origins & self._explaining)

    def _mark_whole(self, value: Any, origins: Origins) -> None:
        self._marks.add(value, "real", origins, whole(self.to_host(value)))
        self._marks.note(value, origins)

    # -- what is followed ------------------------------------------------------------------------

    def _follow(self) -> None:
        if not self._asked:
            self._asked = True
            self.begin(self._catch_up)

    def _catch_up(self) -> None:
        """What a statement gave while it was not followed yet depends on what it read."""
        self._followed = True
        frame = self.machine.frames[-1]
        for statement, origins in self._unfollowed:
            if statement.code is frame.code and statement.pc < frame.pc:
                for slot in target_slots(frame.code.targets[statement.pc]):
                    self._mark_whole(frame.slots[slot], origins)

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """An instruction after which the marks of its operands are carried to its results."""

        def followed(*inputs: Any) -> Any:
            results = execute(*inputs)
            reported, self._reported = self._reported, False
            if (self._marks or reported) and not self.quiet():
                self._trace(binding, inputs, results if binding.several else (results,), reported=reported)
            return results

        return followed

    def _hear(self, event: Event) -> None:
        if self.quiet():
            return
        if self._entrances.hear(event):
            self._follow()
        self._decisions.hear(event, self.machine)

    def _trace(
        self,
        binding: Binding,
        inputs: Sequence[Any],
        results: Sequence[Any],
        *,
        reported: bool,
        kinds: Sequence[str] = KINDS,
    ) -> None:
        """Carry marks from operands to results, and note what became of NaN and Inf."""
        known = [self._marks.of(value) for value in inputs]
        if not reported and not any(known):
            return
        hosts = [_array(self.to_host(value)) for value in results]
        operands = [_array(self.to_host(value)) for value in inputs]
        for index, each in enumerate(known):
            if each is None and self._entrances.of_operand(inputs[index], binding, index):
                known[index] = self._marks.of(inputs[index])
        marked = any(known)
        application = Application(binding.op, binding.attributes, operands, hosts, [None] * len(operands))
        step = Step(binding, inputs, results, application, known)
        if marked:
            self._carry(step)
        noted = [
            self._note_kind(step, index, kind)
            for index, host in enumerate(hosts)
            for kind in kinds
            if not isinstance(host, (list, tuple)) and not is_finite(host)
        ]
        if marked and not any(noted) and binding.op.influence.find is not NOTHING.find:
            self._healed(step)

    def _carry(self, step: Step) -> None:
        for origins in groups_of(step.known, "real"):
            carried = self._influenced(step, masks_of(step.known, "real", origins))
            for result, marks in zip(step.results, carried, strict=False):
                self._marks.add(result, "real", origins, marks)
                if marks is not None:
                    self._tell_entrances(origins)
        for number, stage in groups_of(step.known, "meant"):
            self._consume(step, number, stage)
        row, latest = step.binding.op.influence, NONE.union(*(each.latest for each in step.known if each))
        role = role_of(step.binding.op.name, row, step.known)
        for result in step.results:
            self._marks.note(result, latest, role)

    def _tell_entrances(self, origins: Origins, other: Statement | None = None) -> None:
        for number in origins:
            self._seen.tell(number, other)

    def _consume(self, step: Step, number: int, stage: Stage) -> None:
        carried = self._influenced(step, masks_of(step.known, "meant", (number, stage)))
        pairs = zip(step.results, step.application.results, carried, strict=False)
        for result, host, marks in pairs:
            if marks is None:
                continue
            now = consumed(step.binding.op.influence, stage, step.known, marks, host)
            self._marks.add(result, "meant", (number, now.stage), now.meant)
            if now.spoiled is not None and np.any(now.spoiled):
                self._marks.add(result, "real", frozenset({number}), now.spoiled)
                self._tell_entrances(frozenset({number}), step.binding)

    def _influenced(self, step: Step, marked: Sequence[Marked]) -> Sequence[Marked]:
        return influenced(step.application, marked, self._complain)

    def _complain(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    # -- what is noted ---------------------------------------------------------------------------

    def _note_kind(self, step: Step, index: int, kind: str) -> bool:
        """Note the births and what is handed on of one kind in one result; whether it holds any."""
        host, result = step.application.results[index], step.results[index]
        there = bad(host, kind)
        if not there.any():
            return False
        explained = self._explained(step, index, kind)
        born, given = there & ~explained, there & explained
        marks = self._marks.of(result) or Marks()
        if born.any():
            parents = NONE.union(*hits(marks.real, born))
            self._originates(step, index, kind, explained, parents)
        if given.any():
            origins = NONE.union(*hits(marks.real, given))
            if origins:
                finding = Finding(kind, step.binding, "", step.inputs, index, result=result)
                self._hand_on("propagated", finding, origins, step.known, result)
        return True

    def _explained(self, step: Step, index: int, kind: str) -> Any:
        """The result elements that depend on an operand element of the kind, or on misused memory."""
        masks: list[Marked] = []
        for value, known in zip(step.application.operands, step.known, strict=True):
            there = _bad_in(value, kind)
            for origins, marks in known.real.items() if known else ():
                if origins & self._explaining:
                    there = marks if there is None else _either(there, marks)
            masks.append(there)
        found = self._influenced(step, masks)
        return False if not found or found[index] is None else found[index]

    def _originates(self, step: Step, index: int, kind: str, explained: Any, parents: Origins) -> None:
        """Note a birth; an infinity that is legal by definition is followed as an intentional one."""
        result = step.results[index]
        finding = Finding(kind, step.binding, "", step.inputs, index, result=result)
        there = bad(step.application.results[index], kind)
        born = there & ~np.asarray(explained)
        slots = self.machine.frames[-1].slots
        key = _key("birth", finding)
        known = self._seen.known(key)
        if known is not None:
            known.count += 1
            known.parents |= parents
            self._mark_birth(result, known.number, born, meant=known.number in self._legal)
            return
        alone = _alone(finding, step.application, born)
        legal = self.diagnosing.is_legal(alone, slots)
        cause, within = self.diagnosing.cause(alone)
        sighting = self._birth(finding, parents, tell=not legal, cause=cause, within=within)
        if legal:
            self._legal.add(sighting.number)
        self._mark_birth(result, sighting.number, born, meant=legal)

    def _mark_birth(self, result: Any, number: int, born: Any, *, meant: bool) -> None:
        if meant:
            self._marks.add(result, "meant", (number, Stage.RAW), born)
        else:
            self._marks.add(result, "real", frozenset({number}), born)
            self._marks.note(result, frozenset({number}))

    def _healed(self, step: Step) -> None:
        """Operands held NaN or Inf, and no result does."""
        for kind in KINDS:
            origins, known = NONE, []
            for value, each in zip(step.application.operands, step.known, strict=True):
                there = _bad_in(value, kind)
                if each is not None and there is not None and not isinstance(there, list):
                    origins |= NONE.union(*hits(each.real, there))
                    known.append(each)
            if origins:
                finding = Finding(kind, step.binding, "", step.inputs, 0, result=step.results[0])
                self._hand_on("healed", finding, origins, known, step.results[0])

    def _hand_on(
        self,
        role: str,
        finding: Finding,
        roots: Origins,
        known: Iterable[Marks | None],
        result: Any,
        cause: Cause | None = None,
    ) -> None:
        parents = NONE.union(*(each.latest for each in known if each is not None))
        key = _key(role, finding)
        sighting = self._seen.known(key)
        if sighting is None:
            sighting = self._add(key, role, finding, parents, roots=roots, cause=cause)
        else:
            sighting.count += 1
            sighting.parents |= parents - {sighting.number}
            sighting.roots |= roots
        marks = self._marks.of(result)
        if marks is not None and not isinstance(result, (list, tuple)):
            marks.latest = (marks.latest - parents) | {sighting.number}

    def _birth(self, finding: Finding, parents: Origins = NONE, **fields: Any) -> Sighting:
        key = _key("birth", finding)
        known = self._seen.known(key)
        if known is not None:
            known.count += 1
            return known
        return self._add(key, "birth", finding, parents, **fields)

    def _add(
        self, key: tuple[Any, ...], role: str, finding: Finding, parents: Origins, **fields: Any
    ) -> Sighting:
        statement, frames = finding.binding, self.machine.frames
        calls = [
            Statement(frame.code, frame.pc)
            for frame in frames[:-1]
            if frame.code.nodes[frame.pc].op.startswith("@")
        ]
        return self._seen.add(
            key,
            kind=finding.kind,
            role=role,
            statement=statement,
            value=_value(finding),
            iteration=tuple(frame.iteration for frame in frames if frame.is_loop),
            calls=tuple(calls),
            operands=tuple(self._operands(statement.code, statement.pc, finding.inputs)),
            stats=_stats(self.to_host(finding.result)),
            tick=self.machine.tick,
            parents=parents,
            **fields,
        )

    def _operands(self, code: Code, pc: int, inputs: Sequence[Any]) -> Iterable[Seen]:
        for slot, value in zip(code.operands[pc], inputs, strict=False):
            if value is not None:
                host = self.to_host(value)
                known = type_of(host)
                yield Seen(code.names[slot], str(known) if known is not None else None, _stats(host))

    # -- at the end --------------------------------------------------------------------------------

    def conclude(self, *, ended: bool) -> None:
        """Decide what reaches an output; where the program did not end, everything may."""
        frame = self.machine.frames[0]
        outputs = frame.code.instructions[-1][1](frame.slots) if ended else ()
        known = [marks for marks in map(self._marks.of, outputs) if marks is not None]
        reaching = NONE.union(*(marks.origins for marks in known))
        nearest = NONE.union(*(marks.latest for marks in known))
        infinite = frozenset(number for marks in known for number, _ in marks.meant)
        self._tell_entrances(reaching | infinite)
        self._seen.conclude(reaching | infinite, nearest, ended=ended)


def _array(value: Any) -> Any:
    """NumPy gives an element for some tensors of no axes."""
    return np.asarray(value) if isinstance(value, np.generic) else value


def _key(role: str, finding: Finding) -> tuple[Any, ...]:
    return role, finding.kind, id(finding.binding.code), finding.binding.pc, finding.output


def _bad_in(value: Any, kind: str) -> Marked:
    """The elements of an operand that are NaN or Inf; None where none is."""
    if isinstance(value, (list, tuple)):
        items = [_bad_in(item, kind) for item in value]
        if all(item is None for item in items):
            return None
        return [whole(v, False) if i is None else i for v, i in zip(value, items, strict=True)]
    if not isinstance(value, (np.ndarray, np.generic)) or is_finite(value):
        return None
    found = bad(np.asarray(value), kind)
    return found if found.any() else None


def _either(a: Marked, b: Marked) -> Marked:
    if isinstance(a, list):
        return [_either(x, y) for x, y in zip(a, b, strict=True)]
    return a | b


def _alone(finding: Finding, application: Application, born: Any) -> Finding:
    """The finding without what came in bad: operands and result with finite numbers in its place."""
    kind = finding.kind
    operands = [_finite(value, _bad_in(value, kind)) for value in application.operands]
    host = application.results[finding.output or 0]
    result = _finite(host, bad(host, kind) & ~born)
    return Finding(kind, finding.binding, "", operands, finding.output, result=result)


def _finite(value: Any, there: Marked) -> Any:
    if there is None or isinstance(value, (list, tuple)) or not there.any():
        return value
    cleaned = np.array(value)
    cleaned[there] = 1
    return cleaned


def _value(finding: Finding) -> str:
    """The name of the result concerned; of what another statement made, where it is about an operand."""
    statement, output = finding.binding, finding.output
    if output is None and finding.other is not None:
        statement, output = finding.other, 0
    code, pc = statement.code, statement.pc
    outputs = code.nodes[pc].outputs if pc < len(code.nodes) else ()
    return outputs[output].name if output is not None and output < len(outputs) else ""


def _stats(host: Any) -> Any:
    if isinstance(host, (np.ndarray, np.generic)) and not host.dtype.hasobject:
        return summarize(np.asarray(host))
    return None
