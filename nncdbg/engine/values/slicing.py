"""The backward slice of a value: the values it was computed from, through calls, branches and loops.

No recording is needed.  Frames in progress are on the stack; frames that were left, and the slots of
finished iterations, are in the machine's undo log.  The slice ends at the start of the log, and at a
value that was set by hand since.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from nncdbg.engine.compilation.code import EVICTED, UNSET, Code
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.undo_log import FramePopped, IterationEnded
from nncdbg.engine.time.timeline import Timeline
from nncdbg.engine.values.values import ValueLocation

FinishedKind = TypeVar("FinishedKind", FramePopped, IterationEnded)


@dataclass(frozen=True, slots=True, eq=False)
class BlockVisit:
    """One frame of a block, or one iteration of a loop; statement `pc` of `outer` began it.

    `outer` is None for the entry graph, and if it is unknown.  `depth` is None for a frame that was left.
    `until` is the last tick at which it existed.
    """

    code: Code
    slots: list[Any]
    outer: BlockVisit | None
    pc: int = -1
    depth: int | None = None
    until: float = math.inf

    @property
    def iteration(self) -> int | None:
        """The number of the iteration of a loop; None for other blocks, and if it was dropped."""
        return _iteration(self.slots) if self.code.is_loop else None


@dataclass(frozen=True, slots=True)
class Origin:
    """A slot that a value depends on, `distance` statements away; `pc` is -1 for an input of a block."""

    visit: BlockVisit
    slot: int
    distance: int

    @property
    def pc(self) -> int:
        return self.visit.code.definition[self.slot]

    @property
    def name(self) -> str:
        return self.visit.code.names[self.slot]


class Slicing:
    """Follows values back through the current state of a program."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.machine = timeline.machine
        self.edited = timeline.last_edit
        """The tick of the last value set by hand."""
        self._recomputed: dict[tuple[int, int], tuple[BlockVisit, Any]] = {}
        """Values that were dropped; the visit is kept so that its id stays its own."""

    def content(self, visit: BlockVisit, slot: int) -> Any:
        """Return the content of a slot, computed again if it was dropped; UNSET if it is no longer valid."""
        content = visit.slots[slot]
        if content is EVICTED and visit.depth is not None:
            key = (id(visit.slots), slot)
            if key not in self._recomputed:
                self._recomputed[key] = visit, self.timeline.recompute(visit.depth, slot)
            content = self._recomputed[key][1]
        return UNSET if content is EVICTED or self.timeline.standing(content) is not None else content

    # -- starting points --------------------------------------------------------------------

    def visit(self, depth: int) -> BlockVisit:
        """Return the frame at a depth of the stack (0: the entry graph)."""
        found = None
        for index, frame in enumerate(self.machine.frames[: depth + 1]):
            pc = self.machine.frames[index - 1].pc if index else -1
            found = BlockVisit(frame.code, frame.slots, found, pc, index)
        assert found is not None
        return found

    def visit_of(self, place: ValueLocation) -> BlockVisit:
        """Return the frame that contains a place."""
        return self._left(place.slots) if place.depth is None else self.visit(place.depth)

    def visit_of_frame(self, frame: Frame) -> BlockVisit:
        """Return the visit of a frame that is on the stack or was left."""
        standing = [depth for depth, each in enumerate(self.machine.frames) if each is frame]
        return self.visit(standing[0]) if standing else self._left(frame.slots)

    def _left(self, slots: list[Any]) -> BlockVisit:
        """Return the visit of a frame that was left, with the statement that began it, if that is known."""
        found = next(each for each in self.machine.finished() if each.slots is slots)
        frame = found.frame if isinstance(found, FramePopped) else Frame(found.code, slots)
        standing = [(each.code, each.slots, depth) for depth, each in enumerate(self.machine.frames)]
        for code, there, depth in (*reversed(standing), *self._left_after(found.tick)):
            visit = BlockVisit(code, there, None)
            began = (pc for pc in range(len(code.nodes)) if code.transfers(pc))
            pc = next((pc for pc in began if self._begun_by(visit, pc, frame)), None)
            if pc is not None:
                outer = self._left(there) if depth is None else self.visit(depth)
                return BlockVisit(found.code, slots, outer, pc, None, found.tick)
        return BlockVisit(found.code, slots, None, until=found.tick)

    def _left_after(self, tick: int) -> Iterator[tuple[Code, list[Any], None]]:
        """Yield the frames and iterations that ended after `tick`, the latest first."""
        for each in self.machine.finished():
            if each.tick <= tick:
                return
            yield each.code, each.slots, None

    # -- following ---------------------------------------------------------------------------

    def origins(
        self,
        visit: BlockVisit,
        slots: Sequence[int],
        depth: int,
        leads_on: Callable[[Origin], bool] = lambda origin: True,
    ) -> Iterator[Origin]:
        """Yield the slots themselves, then breadth first all slots that they were computed from.

        An origin for which `leads_on` is false is yielded, but not followed further.
        """
        level = [(visit, slot) for slot in slots if slot]
        seen = {(id(each.slots), slot) for each, slot in level}
        for distance in range(depth + 1):
            following = []
            # A statement with several results is reported once, so its results must be adjacent.
            for here, slot in sorted(level, key=lambda one: -one[0].code.definition[one[1]]):
                origin = Origin(here, slot, distance)
                yield origin
                for source in self.sources(here, slot) if leads_on(origin) else ():
                    key = (id(source[0].slots), source[1])
                    if key not in seen:
                        seen.add(key)
                        following.append(source)
            level = following

    def sources(self, visit: BlockVisit, slot: int) -> Sequence[tuple[BlockVisit, int]]:
        """Return the slots that one value was computed from."""
        code, pc = visit.code, visit.code.definition[slot]
        if pc < 0:
            given = self._given(visit, slot)
            return () if given is None else (given,)
        inner = self._inside(visit, pc)
        if inner is not None:
            return self._results(inner, code.result_slots(pc).index(slot))
        read = [one for one in code.operands[pc] if one]
        captured = sorted(code.reads(pc) - set(read) - {0})
        return [(visit, one) for one in (*read, *captured)]

    # -- into a block --------------------------------------------------------------------------

    def _inside(self, visit: BlockVisit, pc: int) -> BlockVisit | None:
        """Return the finished frame that the statement at `pc` began; None if none exists or is kept."""
        if not visit.code.transfers(pc):
            return None
        for each in self._finished(FramePopped, visit.until):
            if self._begun_by(visit, pc, each.frame):
                return BlockVisit(each.code, each.slots, visit, pc, None, each.tick)
        return None

    def _begun_by(self, visit: BlockVisit, pc: int, frame: Frame) -> bool:
        """Return whether this statement began a frame: its block and its inputs are the same."""
        code = visit.code
        if pc in code.bodies:
            if frame.code not in code.bodies[pc]:
                return False
            given = [(visit.slots[outer], frame.slots[inner]) for outer, inner in frame.code.captures]
            return all(a is b for a, b in given)
        if frame.code.path != (code.nodes[pc].called,) or frame.code.formula is not code.formula:
            return False
        operands = code.operands[pc]
        inputs = zip(operands, frame.slots[1 : 1 + len(operands)], strict=True)
        return all(visit.slots[slot] is value for slot, value in inputs)

    def _results(self, inner: BlockVisit, index: int) -> Sequence[tuple[BlockVisit, int]]:
        """Return the values inside a block that became its result `index`, the latest iteration first.

        They are several for a result that a loop collects.
        """
        code = inner.code
        results = code.operands[len(code.nodes)]
        if not code.is_loop:
            return [(inner, results[index])]
        broken = self._broken(inner)
        if index < len(code.graph.inputs) - 1:
            return [(inner, 2 + index if broken else results[index])]
        return [(each, results[index]) for each in self._iterations(inner)[broken:]]

    def visits(self, visit: BlockVisit, pc: int) -> Sequence[BlockVisit]:
        """Return the frame that a call, a branch or a loop began, each iteration, the latest first."""
        inner = self._inside(visit, pc)
        return () if inner is None else self._iterations(inner)

    def _iterations(self, last: BlockVisit) -> Sequence[BlockVisit]:
        found: list[BlockVisit] = []
        each: BlockVisit | None = last
        while each is not None:
            found.append(each)
            each = self._iteration_before(each) if each.code.is_loop else None
        return found

    def _broken(self, inner: BlockVisit) -> bool:
        """Return whether a loop ended by its `break`: its last iteration did not reach its end."""
        for each in self._finished(FramePopped, inner.until):
            if each.slots is inner.slots:
                return each.frame.pc < len(inner.code.nodes)
        return False

    # -- out of a block ------------------------------------------------------------------------

    def _given(self, visit: BlockVisit, slot: int) -> tuple[BlockVisit, int] | None:
        """Return the origin of a block's input; None for constants and the program's inputs."""
        code, index = visit.code, slot - 1
        captured = {inner: outer for outer, inner in code.captures}
        if slot in captured:
            return (visit.outer, captured[slot]) if visit.outer is not None else None
        if index >= len(code.graph.inputs):
            return None
        if code.is_loop:
            if index == 0:
                return None
            before = self._iteration_before(visit)
            if before is not None:
                return before, code.operands[len(code.nodes)][index - 1]
            if _iteration(visit.slots) != 0:
                return None
        if visit.outer is None:
            return None
        operands = visit.outer.code.operands[visit.pc]
        if code.formula is not None and visit.outer.code.formula is not code.formula:
            operands = tuple(one for one in operands if visit.outer.slots[one] is not None)
        return visit.outer, operands[index]

    def _iteration_before(self, visit: BlockVisit) -> BlockVisit | None:
        iteration = _iteration(visit.slots)
        if not iteration:
            return None
        for each in self._finished(IterationEnded, visit.until):
            if each.code is visit.code and _iteration(each.slots) == iteration - 1:
                return BlockVisit(each.code, each.slots, visit.outer, visit.pc, None, each.tick)
        return None

    def _finished(self, kind: type[FinishedKind], until: float) -> Iterator[FinishedKind]:
        """Yield finished frames or iterations up to tick `until`, latest first, back to the last edit."""
        for each in self.machine.finished():
            if each.tick <= self.edited:
                return
            if isinstance(each, kind) and each.tick <= until:
                yield each


def _iteration(slots: Sequence[Any]) -> int | None:
    return None if slots[1] is UNSET or slots[1] is EVICTED else int(slots[1])
