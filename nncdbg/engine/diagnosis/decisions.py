"""Marks through control flow: a condition influences all results of its branch or loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nncdbg.engine.diagnosis.marks import MarkedTensors
from nncdbg.engine.diagnosis.register import NONE, Origins
from nncdbg.engine.execution.events import Event, Iterated, Popped, Pushed, Skipped
from nncdbg.engine.execution.frame import Frame
from nncdbg.ir.kinds import Kind


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
