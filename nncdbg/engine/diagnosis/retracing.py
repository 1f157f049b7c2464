"""Origins of the bad elements of a value at a stop: the NaN tracker over what the history still holds.

The tracker reads the statements from which the value was computed, in the order in which they ran, as it
does during a watch. So `why`, `catch` and the debug adapter report the origins and causes of a watch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nncdbg.engine.compilation.code import EVICTED, UNSET
from nncdbg.engine.diagnosis.diagnosing import Diagnosing
from nncdbg.engine.diagnosis.finding_records import FindingRecord
from nncdbg.engine.diagnosis.nan_tracker import NanTracker
from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.loaded import Loaded
from nncdbg.engine.observers.nonfinite import KINDS, bad_in
from nncdbg.engine.time.timeline import Timeline
from nncdbg.engine.values.slicing import BlockVisit, Origin, Slicing
from nncdbg.ir.kinds import Kind

MOST_VALUES = 100_000
"""Maximum number of values that are read to find an origin."""


@dataclass(frozen=True, slots=True)
class Traced:
    """The place of an origin, and its record as in a watch; `intentional` marks a legal infinity."""

    at: Origin
    sighting: FindingRecord
    intentional: bool

    @property
    def pc(self) -> int:
        """The statement where the value originates, or that has it as a number; -1 for other entrances."""
        return self.sighting.statement.pc

    @property
    def entered(self) -> bool:
        """Whether no statement made the value: an input, a constant, or a value set by hand."""
        return self.sighting.tick < 0


@dataclass(slots=True)
class _Place:
    """The statement that the tracker reads now."""

    frames: list[Frame] = field(default_factory=list)
    tick: int = 0


class Retracing:
    """Finds the origins of NaN and Inf in the values of a stopped program.

    One object serves one stop: it keeps the values that it has computed again. `between` is called before
    each value is read; an exception from it ends the search.
    """

    def __init__(self, loaded: Loaded, timeline: Timeline, between: Callable[[], None]) -> None:
        self.between = between
        self.slicing = Slicing(timeline)
        self.unknown: list[Origin] = []
        """Bad values with an operand that is no longer in the history."""
        self._linker = loaded.linker
        self._main = loaded.codes[0]
        self._place = _Place()
        self._trail = NanTracker(
            self._place,
            {},
            loaded.linker.backend.to_host,
            loaded.linker.allocation.whole,
            Diagnosing(loaded),
            lambda first: None,
        )
        self._timeline = timeline
        self._seen: set[tuple[int, int]] = set()
        self._first: dict[int, Origin] = {}
        """The place of each origin."""
        self._read: set[tuple[int, int]] = set()

    def origins(self, visit: BlockVisit, slots: Sequence[int]) -> list[Traced]:
        """Return the origins of the bad elements of values of a frame, in the order of execution.

        For values without any, return the origins that these finite values depend on. Intentional
        infinities are returned only if there are no others.
        """
        for slot in slots:
            self._follow(visit, slot)
        contents = [self.slicing.content(visit, slot) for slot in slots]
        bad = any(map(self._is_bad, contents))
        real = {number for each in contents for number in self._numbers(each, "real", bad=bad)}
        real |= self._trail.infinities_of(real)
        found = self._traced_at(real - self._trail.legal, intentional=False)
        if found or not bad:
            return found
        meant = {number for each in contents for number in self._numbers(each, "meant", bad=bad)}
        # An infinity among other numbers is no mask, so it comes before the masks; in an output, none is.
        returned = visit.code is self._main and any(map(self._main.returns, slots))
        numbers = meant & self._trail.entrances.data or real | meant
        return self._traced_at(numbers, intentional=not returned)

    def _traced_at(self, numbers: Iterable[int], *, intentional: bool) -> list[Traced]:
        found = [(self._first[each], self._trail.sighting(each)) for each in numbers]
        return sorted((Traced(at, each, intentional) for at, each in found), key=_moment)

    def finding(self, visit: BlockVisit, finding: Finding) -> list[Traced]:
        """Return the origins of what a statement is reported for: it has just run, or is about to."""
        code, pc = visit.code, finding.binding.pc
        finding = replace(finding, kind="inf") if finding.kind == "overflow" else finding
        results = code.result_slots(pc) if pc < len(code.nodes) else ()
        if finding.kind in KINDS and finding.elements is None:
            return self.origins(visit, [results[finding.output or 0]])
        for operand in filter(None, code.operands[pc]):
            self._follow(visit, operand)
        self._enter(visit, pc)
        before = len(self._trail.sightings)
        self._trail.found(finding)
        born = [each for each in self._trail.sightings[before:] if each.role == "birth"]
        slots = [*(results if finding.output is not None else ()), *code.operands[pc]]
        named = (slot for slot in slots if finding.operand and code.names[slot] == finding.operand)
        at = Origin(visit, next(named, slots[0]), 0)
        return [Traced(at, each, False) for each in born]

    # -- following ---------------------------------------------------------------------------------

    def _follow(self, visit: BlockVisit, slot: int) -> None:
        """Read the values that a value was computed from, each after its own operands.

        A value that was dropped is computed again only as an operand of a bad one.
        """
        pending = [(visit, slot, True, False)]
        while pending and len(self._seen) < MOST_VALUES:
            here, at, needed, ready = pending.pop()
            key = (id(here.slots), at)
            if ready:
                self._visit(here, at)
            elif key not in self._seen and (needed or here.slots[at] is not EVICTED):
                self._seen.add(key)
                self.between()
                needed = self._is_bad(self.slicing.content(here, at))
                sources = [*self.slicing.sources(here, at), *self._conditions(here, at)]
                pending.append((here, at, True, True))
                pending += [(*source, needed, False) for source in reversed(sources)]

    def _conditions(self, visit: BlockVisit, slot: int) -> Sequence[tuple[BlockVisit, int]]:
        """Return the conditions that decided which block computed a value, or how often."""
        code, pc = visit.code, visit.code.definition[slot]
        if pc < 0 or code.nodes[pc].kind not in (Kind.IF, Kind.WHILE):
            return ()
        found = [(visit, one) for one in code.operands[pc][:1] if one]
        for each in self.slicing.visits(visit, pc):
            nodes = enumerate(each.code.nodes)
            found += [(each, each.code.operands[at][0]) for at, node in nodes if node.kind is Kind.BREAK]
        return found

    def _is_bad(self, content: Any) -> bool:
        host = content if content is UNSET else self._trail.to_host(content)
        return any(bad_in(host, kind) is not None for kind in KINDS)

    def _visit(self, visit: BlockVisit, slot: int) -> None:
        content, code = self.slicing.content(visit, slot), visit.code
        origin = Origin(visit, slot, 0)
        edit = self._timeline.edit_that_set(content)
        if edit is not None:
            self._trail.entrances.by_hand(content, code, origin.name, edit.tick)
        elif origin.pc >= 0 and code.runs_kernel(origin.pc):
            self._read_statement(visit, origin.pc)
        else:
            self._transfer(origin, content)
        for number in (known := {*self._numbers(content, "real"), *self._numbers(content, "meant")}):
            self._first.setdefault(number, origin)
        if not known and self._is_bad(content):
            self.unknown.append(origin)

    def _numbers(self, content: Any, name: str, *, bad: bool = False) -> Iterator[int]:
        """Yield the origins of the marks of a value; with `bad`, only those of its bad elements."""
        marks = self._trail.marks.of(content)
        there = [bad_in(self._trail.to_host(content), kind) for kind in KINDS] if bad else []
        for key, mask in getattr(marks, name).items() if marks is not None else ():
            if not bad or isinstance(mask, list) or any(_meet(mask, each) for each in there):
                yield from key if name == "real" else key[:1]
        if marks is not None and name == "real":
            yield from marks.shape

    def _read_statement(self, visit: BlockVisit, pc: int) -> None:
        code = visit.code
        key = (id(visit.slots), pc)
        if key in self._read:
            return
        self._read.add(key)
        inputs = [self.slicing.content(visit, slot) for slot in code.operands[pc]]
        results = [self.slicing.content(visit, slot) for slot in code.result_slots(pc)]
        for slot, value in zip(code.operands[pc], inputs, strict=True):
            if value is UNSET or (slot and self._is_bad(value) and not self._is_known(visit, slot, value)):
                return
        self._enter(visit, pc)
        binding = self._linker.bind(code, pc, code.nodes[pc])
        # A result that is not kept has no elements to follow.
        kept = [None if each is UNSET else each for each in results]
        self._trail.trace(binding, inputs, kept, reported=any(map(self._is_bad, results)))

    def _is_known(self, visit: BlockVisit, slot: int, value: Any) -> bool:
        if visit.code.definition[slot] < 0:
            self._trail.entrances.of_constants(visit.code)
        return self._trail.marks.of(value) is not None

    def _transfer(self, origin: Origin, content: Any) -> None:
        """Mark a value that a call, a branch or a loop passes on, or that is given to the program."""
        visit, slot = origin.visit, origin.slot
        # A loop without iterations returns its operands themselves.
        sources = [each for each in self.slicing.sources(visit, slot) if each[0] is not visit]
        values = [self.slicing.content(*source) for source in sources]
        marks = self._trail.marks
        if len(values) == 1 and np.shape(values[0]) == np.shape(content):
            marks.copy(values[0], content)
        elif values:
            marks.stack(values[::-1], content)
        elif origin.pc < 0:
            self._enter(visit, 0)
            self._trail.entrances.of_constants(visit.code)
            if visit.outer is None and slot <= len(visit.code.graph.inputs):
                self._trail.entrances.of_inputs(visit.code, {origin.name: content})
        for source in self._conditions(visit, slot):
            known = marks.of(self.slicing.content(*source))
            if known is not None and known.origins:
                marks.add(content, "real", known.origins, True)

    def _enter(self, visit: BlockVisit, pc: int) -> None:
        """Set the place of the tracker to a statement, inside the frames that led there."""
        self._place.frames.clear()
        at: BlockVisit | None = visit
        while at is not None:
            frame = Frame(at.code, at.slots)
            frame.pc, frame.iteration = pc, at.iteration or 0
            self._place.frames.insert(0, frame)
            pc, at = at.pc, at.outer


def _meet(mask: Any, there: Any) -> bool:
    return there is not None and not isinstance(there, list) and bool((mask & there).any())


def _moment(traced: Traced) -> tuple[Any, ...]:
    """Return a key in the order of execution: inputs and constants first, by the start of their blocks."""
    steps: list[tuple[int, int]] = []
    pc, at = traced.pc, traced.at.visit
    entered = pc < 0
    if not entered:
        steps.append((at.iteration or 0, pc))
    while at.outer is not None:
        pc, at = at.pc, at.outer
        steps.insert(0, (at.iteration or 0, pc))
    return (not entered, steps, traced.sighting.number)
