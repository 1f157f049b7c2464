"""An arena that follows a plan of offsets, such as another framework's.

Each kernel runs in a separate buffer with guards. Its result is then copied to the planned offset and
overwrites what is there. If an overwritten value is read later, the finding is reported at the reader.
The inputs of a graph, the values that a loop carries and the results of a block are placed in the same
way, all at once, because `next` is a parallel assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nncdbg.comparison.launches import PlacedPlan
from nncdbg.comparison.launches import ValueSite as Site
from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.execution.events import Event, Iterated, Popped, Pushed
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.linking import Binding, LineOf
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.memory.blocks import MemoryBlock, Owner
from nncdbg.engine.memory.buffers import GUARD, address_of
from nncdbg.engine.memory.region import MemoryRegion, Segment
from nncdbg.engine.memory.reusing import FrameBuffers, ReusingAllocation, by_liveness
from nncdbg.ir.records import Array
from nncdbg.stats.inspection import fill

SLACK = 1 << 20
"""Bytes after the arena, room for a value that is larger than its planned place."""


class Space:
    """An arena of fixed size and the values in it."""

    def __init__(self, extent: int) -> None:
        self.memory: Segment = MemoryRegion().segment(extent + SLACK)
        self._standing: list[tuple[MemoryBlock, Site]] = []
        """Live values with all their bytes intact, each with the root value of its bytes."""

    @property
    def live_bytes(self) -> int:
        return sum(block.size for block, _ in self._standing)

    def put(
        self, content: Array, offset: int, root: Site, owner: Owner, source: MemoryBlock | None
    ) -> tuple[Array, MemoryBlock]:
        """Write a value into the arena; values that it overwrites lose bytes.

        Values of the same root, and the `source` that this value is a copy or view of, share bytes on
        purpose: they stay valid if the write leaves their bytes unchanged.
        """
        size, end = content.nbytes, offset + content.nbytes
        placed: Array = np.ndarray(content.shape, content.dtype, self.memory, offset)
        block = MemoryBlock(0, self.memory, offset, size, size, owner)
        same: bool | None = None
        kept = []
        for other, its_root in self._standing:
            lost = other.overlap(offset, end)
            shared = its_root == root or other is source
            if lost is not None and shared and same is None:
                same = bool(np.array_equal(_bytes(placed), _bytes(content)))
            if lost is None or (shared and same):
                kept.append((other, its_root))
            else:
                other.successor, other.taken = owner, lost
        np.copyto(placed, content)
        self._standing = [*kept, (block, root)]
        return placed, block

    def remove(self, block: MemoryBlock) -> None:
        """Remove a dead value."""
        self._standing = [pair for pair in self._standing if pair[0] is not block]

    def poison(self, block: MemoryBlock) -> None:
        """Fill the bytes of a dead value with the pattern, unless a live value shares them."""
        start, end = block.start, block.start + block.size
        if all(other.overlap(start, end) is None for other, _ in self._standing):
            fill(np.asarray(self.memory)[start:end])


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class PlacedAllocation(ReusingAllocation):
    """Results at the offsets of `plan`; with `poison`, dead bytes are filled with the pattern.

    `needed` is the largest size in bytes of each value so far. `apart` lists op results without a place
    in the plan, and `beyond` those that do not fit into the arena; both are stored outside of it.
    """

    name = "placed"
    settles = True

    def __init__(self, plan: PlacedPlan, *, poison: bool = False) -> None:
        super().__init__(by_liveness)
        self.plan = plan
        self.poison = poison
        self.needed: dict[Site, int] = {}
        self.apart: dict[Site, None] = {}
        self.beyond: dict[Site, None] = {}
        self._given: list[Any] = []
        self._space = Space(plan.extent)

    def live_bytes(self) -> int:
        """Return the size in bytes of the values in the arena."""
        return self._space.live_bytes

    def begin(self, machine: Machine, over: Callable[[], None], line: LineOf) -> None:
        super().begin(machine, over, line)
        entry = machine.frames[0]
        self._given = entry.slots[1 : 1 + len(entry.code.graph.inputs)]
        self._receive(entry, Statement(entry.code, 0))

    def _renew(self) -> None:
        self._space = Space(self.plan.extent)
        entry = self._debuggee.frames[0]
        entry.slots[1 : 1 + len(self._given)] = self._given
        self._receive(entry, Statement(entry.code, 0))

    def _moved_in(self, event: Event) -> None:
        frames = self._debuggee.frames
        match event:
            case Pushed(frame) if len(frames) > 1:
                outer = frames[-2]
                self._receive(frame, Statement(outer.code, outer.pc))
            case Popped():
                self._results(frames[-1], frames[-1].pc - 1)
            case Iterated(frame):
                for items in frame.collected:
                    # Copy what a loop collects: the next iteration overwrites its place.
                    items[-1] = np.array(items[-1]) if self.block_of(items[-1]) else items[-1]
                self._receive(frame, Statement(frame.code, len(frame.code.nodes)))

    def _catch_up(self, scope: FrameBuffers, pc: int, first: bool) -> None:
        # A loop of zero iterations returns its results without a frame.
        for each in range(scope.done + 1, pc):
            self._results(scope.frame, each)
        super()._catch_up(scope, pc, first)

    # -- frames ------------------------------------------------------------------------------------

    def _receive(self, frame: Frame, statement: Statement) -> None:
        """Put the inputs of a frame, or the values that its loop carries, into their places."""
        first = 2 if frame.is_loop else 1
        self._put_all(frame, range(first, 1 + len(frame.code.graph.inputs)), statement)

    def _results(self, frame: Frame, pc: int) -> None:
        """Put the results of a block or call into their places."""
        self._put_all(frame, frame.code.result_slots(pc), Statement(frame.code, pc))

    def _put_all(self, frame: Frame, slots: Sequence[int], statement: Statement) -> None:
        code = frame.code
        wanted = [
            slot
            for slot in slots
            if code.names[slot] and self._placeable(code, code.names[slot], frame.slots[slot])
        ]
        owners = [Owner(code.names[slot], statement, frame.iteration, code) for slot in wanted]
        sources = [self.block_of(frame.slots[slot]) for slot in wanted]
        copies = [np.array(frame.slots[slot]) for slot in wanted]
        for slot, copy, owner, source in zip(wanted, copies, owners, sources, strict=True):
            frame.slots[slot] = self._put(code, copy, owner, source)

    # -- statements --------------------------------------------------------------------------------

    def allocate(self, shape: Sequence[int], dtype: Any, span: int) -> tuple[Array, int]:
        """Return a separate buffer with guards, for a kernel to write into."""
        memory = np.empty(GUARD + span, np.uint8)
        fill(memory)
        buffer: Array = np.ndarray(shape, dtype, memory, GUARD)
        return buffer, address_of(buffer)

    def _settled(self, binding: Binding, inputs: Sequence[Any], results: Any) -> Any:
        source = self.block_of(inputs[0]) if binding.op.view and inputs else None
        if not binding.several:
            return self._settle(binding, 0, results, source)
        return [self._settle(binding, index, result, source) for index, result in enumerate(results)]

    def _settle(self, binding: Binding, index: int, result: Any, source: MemoryBlock | None) -> Any:
        outputs = binding.node.outputs
        name = outputs[index].name if index < len(outputs) else ""
        if not name or not isinstance(result, np.ndarray):
            return result
        if not self._placeable(binding.code, name, result):
            if binding.code.formula is None:
                self.apart[binding.code.path, name] = None
            return result
        assert self._owner is not None
        placed = self._put(binding.code, result, Owner(name, binding, self._owner.iteration), source)
        origin = self.unwritten.get(result)
        if origin is not None:
            self.unwritten.set(placed, origin)
        return placed

    def _placeable(self, code: Code, name: str, content: Any) -> bool:
        is_tensor = isinstance(content, np.ndarray) and not content.dtype.hasobject
        return is_tensor and code.formula is None and (code.path, name) in self.plan.places

    def _put(self, code: Code, content: Array, owner: Owner, source: MemoryBlock | None) -> Any:
        site = (code.path, owner.value)
        place = self.plan.places[site]
        self.needed[site] = max(self.needed.get(site, 0), content.nbytes)
        if place.offset + content.nbytes > len(self._space.memory):
            self.beyond[site] = None
            return content
        placed, block = self._space.put(content, place.offset, place.root, owner, source)
        self._know(placed, block)
        return placed

    def _free(self, block: MemoryBlock, after: Statement) -> None:
        block.freed = after
        self._space.remove(block)
        if self.poison and block.successor is None:
            self._space.poison(block)
