"""The bug that a plan of offsets causes, computed from only the program and the offsets.

A debugger runs the program in memory that is never reused, and each step is recorded with the copies of
values that it reads and makes.  A plan is then simulated over that history: the bug is the first read of
a copy after a write to its bytes, and the culprit is the first such write.  The arenas under test are not
used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import nncdbg
from nncdbg.comparison.launches import PlacedPlan
from nncdbg.comparison.launches import ValueSite as Site
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.ir.records import Path

At = tuple[Path, int]
"""A statement: its block, and its number in the block."""


@dataclass(slots=True, eq=False)
class Copy:
    """One computed instance of a value.

    `of` is the copy with the same content that this one was made from: passed by a block, a loop or a call
    (`passed`), or referenced by a view.
    """

    site: Site
    writer: At
    content: Any
    of: Copy | None = None
    passed: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """The reads (name in the block, copy) of a statement, and its writes; they happen at the same time."""

    at: At
    reads: Sequence[tuple[str, Copy]]
    writes: Sequence[Copy]


@dataclass(frozen=True, slots=True)
class Truth:
    """The first wrong read: `reader` reads `lost` as `name` after `overwriter` was written to its bytes."""

    reader: At
    name: str
    lost: Copy
    overwriter: Copy


class History:
    """All steps of a run."""

    def __init__(self, program: nncdbg.Program, inputs: dict[str, Any]) -> None:
        self.debugger = nncdbg.Debugger(program, inputs, statistics=False)
        self.debugger.uncatch()
        self.steps: list[Step] = []
        self.sizes: dict[Site, int] = {}
        self._known: list[dict[int, Copy]] = [{}]
        machine = self.debugger.control.machine
        while not machine.ended:
            self._take_step()
        self.outputs: Mapping[str, Any] = self.debugger.outputs or {}

    @property
    def codes(self) -> Sequence[Code]:
        return self.debugger.loaded.codes

    def line(self, at: At) -> int:
        return self.debugger.loaded.listing.line(*at)

    # -- recording the steps -------------------------------------------------------------------

    def _take_step(self) -> None:
        machine = self.debugger.control.machine
        frame, depth = machine.frames[-1], len(machine.frames)
        code, pc, iteration, here = frame.code, frame.pc, frame.iteration, self._known[-1]
        operands = code.operands[pc]
        given = [here.get(slot) for slot in operands]
        outcome = machine.step()
        assert getattr(outcome, "error", None) is None, outcome
        reads = [(code.names[slot], copy) for slot, copy in zip(operands, given, strict=True) if copy]
        now, at = machine.frames[-1], (code.path, pc)
        if len(machine.frames) > depth:
            writes = self._pushed(now, given, at)
        elif len(machine.frames) < depth:
            if pc < len(code.nodes):
                given = [here.get(slot) for slot in _carried(frame)]
                reads += [(code.names[slot], here[slot]) for slot in _carried(frame) if slot in here]
            self._known.pop()
            writes = self._passed(now, now.pc - 1, given)
        elif pc == len(code.nodes) and frame.iteration > iteration:
            known = {slot: copy for slot, copy in here.items() if slot in code.kept}
            self._known[-1] = known
            writes = self._given(now, _carried(now), given, at)
        elif pc in code.bodies:
            writes = self._passed(now, pc, given[1:] if code.nodes[pc].op == "while" else given)
        else:
            writes = self._made(now, pc, given) if pc < len(code.nodes) else []
        self.steps.append(Step(at, reads, writes))

    def _pushed(self, frame: Frame, given: Sequence[Copy | None], at: At) -> list[Copy]:
        outer = self._known[-1]
        known = {inner: outer[slot] for slot, inner in frame.code.captures if slot in outer}
        self._known.append(known)
        if frame.is_loop:
            return self._given(frame, _carried(frame), given[1:], at)
        return self._given(frame, range(1, 1 + len(frame.code.graph.inputs)), given, at)

    def _given(self, frame: Frame, slots: Sequence[int], given: Sequence[Copy | None], at: At) -> list[Copy]:
        """Return the copies that a block receives, with their names in the block."""
        return [self._new(frame, slot, at, of, passed=True) for slot, of in zip(slots, given, strict=False)]

    def _passed(self, frame: Frame, pc: int, given: Sequence[Copy | None]) -> list[Copy]:
        """Return the results of a block, a loop or a call; collected values of a loop are new."""
        loop = frame.code.nodes[pc].op == "while"
        carried = len(frame.code.nodes[pc].inputs) - 1 if loop else len(given)
        made = []
        for index, slot in enumerate(_targets(frame.code, pc)):
            of = given[index] if index < min(carried, len(given)) else None
            made.append(self._new(frame, slot, (frame.code.path, pc), of, passed=of is not None))
        return [copy for copy in made if copy is not None]

    def _made(self, frame: Frame, pc: int, given: Sequence[Copy | None]) -> list[Copy]:
        node = frame.code.nodes[pc]
        op = lookup(node.op, version_of(node.op, frame.code.opsets))
        of = given[0] if op is not None and op.view and given else None
        at = (frame.code.path, pc)
        return [copy for slot in _targets(frame.code, pc) if (copy := self._new(frame, slot, at, of))]

    def _new(self, frame: Frame, slot: int, at: At, of: Copy | None, passed: bool = False) -> Copy:
        site, content = (frame.code.path, frame.code.names[slot]), frame.slots[slot]
        copy = self._known[-1][slot] = Copy(site, at, content, of, passed)
        if isinstance(content, np.ndarray) and site[1] and not content.dtype.hasobject:
            self.sizes[site] = max(self.sizes.get(site, 0), content.nbytes)
        return copy

    # -- simulating a plan -------------------------------------------------------------------------

    def truth(self, plan: PlacedPlan) -> Truth | None:
        """Return the first wrong read with a plan; None if there is none."""
        return next(self._wrong_reads(plan), None)

    def _wrong_reads(self, plan: PlacedPlan) -> Iterator[Truth]:
        memory = np.zeros(plan.extent + (1 << 20), np.uint8)
        stored_as: dict[Copy, Copy] = {}
        """Maps a passed copy without its own place in the plan to the copy that it was made from."""
        ranges: dict[Copy, tuple[int, int]] = {}
        lost: dict[Copy, Copy] = {}
        for step in self.steps:
            for name, copy in step.reads:
                real = stored_as.get(copy, copy)
                if real in lost:
                    yield Truth(step.at, name, real, lost[real])
            for copy in step.writes:
                of = None if copy.of is None else stored_as.get(copy.of, copy.of)
                place = plan.places.get(copy.site)
                if place is None or not isinstance(copy.content, np.ndarray):
                    stored_as[copy] = of if copy.passed and of is not None else copy
                    continue
                start, end = place.offset, place.offset + copy.content.nbytes
                data = np.ascontiguousarray(copy.content).reshape(-1).view(np.uint8)
                unchanged = bool((memory[start:end] == data).all())
                for other, (first, last) in ranges.items():
                    # An empty tensor overwrites nothing and cannot be overwritten.
                    if max(first, start) < min(last, end) and other not in lost:
                        root = plan.places[other.site].root == place.root
                        if not (unchanged and (root or other is of)):
                            lost[other] = copy
                memory[start:end] = data
                ranges[copy] = (start, end)


def _carried(frame: Frame) -> range:
    return range(2, 1 + len(frame.code.graph.inputs))


def _targets(code: Code, pc: int) -> range:
    target = code.targets[pc]
    if target is None:
        return range(0)
    return range(target.start, target.stop) if isinstance(target, slice) else range(target, target + 1)
