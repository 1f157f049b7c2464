"""States in place: `update` writes the new value of a state into the memory of its old value.

Training runtimes update parameters this way.  A statement that still reads the old value afterwards, such as
a backward pass with saved parameters, reads the new numbers.  The allocator reports it as a read of reused
memory: the old value and its views lose their bytes to the new value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.linking import Binding, Execute, LineOf
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.memory.arena import ArenaAllocation
from nncdbg.engine.memory.blocks import MemoryBlock, Owner
from nncdbg.engine.memory.buffers import address_of, span_of
from nncdbg.engine.memory.inspected import UNWRITTEN
from nncdbg.engine.memory.reusing import Plan, by_liveness
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Array


class InPlaceArena(ArenaAllocation):
    """An arena in which each of `states` keeps its buffer to the end of the run, as in a training runtime."""

    def __init__(self, states: Collection[str], plan: Plan = by_liveness, *, poison: bool = False) -> None:
        super().__init__(self._keeping(plan), poison=poison)
        # A known stretch does not check what its statements read.
        self._learns = False
        self._states = frozenset(states)
        self._buffers: dict[str, Array] = {}
        """The latest value of each state that was updated; the state holds its block."""

    def _keeping(self, plan: Plan) -> Plan:
        """Return a plan without the last values of the states in the entry graph."""

        def kept(code: Code, pc: int) -> Sequence[int]:
            freed = plan(code, pc)
            if code is not self._debuggee.frames[0].code:
                return freed
            last = {code.slot_of.get(name) for name in self._states}
            return [slot for slot in freed if slot not in last]

        return kept

    def begin(self, machine: Machine, over: Callable[[], None], line: LineOf) -> None:
        super().begin(machine, over, line)
        self._receive(machine.frames[0])

    def _restart(self) -> None:
        super()._restart()
        self._receive(self._debuggee.frames[0])

    def _receive(self, entry: Frame) -> None:
        """Copy states that begin with data into buffers: an update must not write into a file or an input."""
        self._buffers.clear()
        code = entry.code
        for slot, name in enumerate(code.names):
            content = entry.slots[slot]
            begins = name in self._states and code.definition[slot] < 0
            if not begins or not isinstance(content, np.ndarray) or content.dtype.hasobject:
                continue
            self._made.clear()
            self._owner = Owner(name, Statement(code, 0))
            buffer, _ = self.allocate(content.shape, content.dtype, span_of(content.nbytes))
            np.copyto(buffer, content)
            entry.slots[slot] = buffer
            self.lifetimes.hold(self.lifetimes.scopes[0], slot, buffer)

    # -- statements ----------------------------------------------------------------------

    def wrap(self, binding: Binding) -> Execute:
        if binding.node.kind is Kind.UPDATE:
            return self._accounting(binding, self._overwriting(binding))
        return super().wrap(binding)

    def _adopt(
        self, binding: Binding, inputs: Sequence[Any], index: int, result: Any, wrong: str | None = None
    ) -> Any:
        """Keep a view of a state, as a training runtime does; copy other results into the arena."""
        block = self._viewed(inputs, result)
        if block is None or binding.node.outputs[index].name in self._states:
            return super()._adopt(binding, inputs, index, result, wrong)
        self._blocks.set(result, block)
        return result

    def _viewed(self, inputs: Sequence[Any], result: Any) -> MemoryBlock | None:
        """Return the block of the state that a result is a view of; None for other results."""
        for value in inputs if isinstance(result, np.ndarray) else ():
            block = self.block_of(value)
            if block is not None and block.owner.value in self._states and np.may_share_memory(value, result):
                return block
        return None

    def _overwriting(self, binding: Binding) -> Execute:
        """Return the instruction of an `update`."""
        kernel, several = binding.kernel, binding.several
        names = [value.name for value in binding.node.outputs]

        def execute(*inputs: Any) -> Any:
            if self.unwritten.by_id:
                self._check_reads(binding, inputs)
            given = kernel(*inputs)
            old = [self._buffer_of(name) for name in names]
            new = self._apart(given if several else (given,), old)
            results = [
                self._overwrite(binding, inputs, index, each, value)
                for index, (each, value) in enumerate(zip(old, new, strict=True))
            ]
            self._buffers.update(zip(names, results, strict=True))
            return results if several else results[0]

        return execute

    def _buffer_of(self, name: str) -> Any:
        """Return the array that an update of a state overwrites; None if the state has no buffer."""
        content = self._buffers.get(name)
        if content is None:
            entry = self._debuggee.frames[0]
            slot = entry.code.slot_at(name, entry.pc)
            content = None if slot is None else entry.slots[slot]
        block = self.block_of(content)
        lost = block is None or block.freed is not None or block.successor is not None
        return None if lost or block is None or block.owner.value != name else content

    def _apart(self, values: Sequence[Any], old: Sequence[Any]) -> list[Any]:
        """Return the new values; one in the buffer of another state is copied before that is overwritten."""
        taken = [self.block_of(each) for each in old if each is not None]
        return [
            np.array(value) if value is not own and self.block_of(value) in taken and value.size else value
            for value, own in zip(values, old, strict=True)
        ]

    def _overwrite(self, binding: Binding, inputs: Sequence[Any], index: int, old: Any, value: Any) -> Any:
        """Write the new value of a state over the old one; without a buffer that fits, into a new buffer."""
        if old is value and old is not None:
            return old
        block = None if old is None else self.block_of(old)
        if block is None or (old.shape, old.dtype) != (value.shape, value.dtype):
            return self._move(binding, inputs, index, value)
        assert self._owner is not None
        owner = Owner(binding.node.outputs[index].name, binding, self._owner.iteration)
        buffer: Array = np.ndarray(value.shape, value.dtype, block.segment, block.start)
        np.copyto(buffer, value)
        self._know(buffer, _succeeding(block, owner))
        flags = self._inspect(buffer, address_of(buffer)) & self.watched & ~UNWRITTEN
        if flags:
            self._examine(binding, inputs, buffer, flags, index)
        return buffer

    def _move(self, binding: Binding, inputs: Sequence[Any], index: int, value: Any) -> Any:
        left = self.block_of(self._buffers.get(binding.node.outputs[index].name))
        result = self._adopt(binding, inputs, index, value)
        for block in self.blocks_of(result):
            block.holders += 1
        if left is not None:
            left.holders -= 1
            if left.holders == 0 and left.freed is None:
                self._free(left, binding)
        return result


def arena_of(
    states: Collection[str] = (), plan: Plan = by_liveness, *, poison: bool = False
) -> ArenaAllocation:
    """Return an arena; with `states`, one in which updates overwrite these states."""
    return InPlaceArena(states, plan, poison=poison) if states else ArenaAllocation(plan, poison=poison)


def _succeeding(block: MemoryBlock, owner: Owner) -> MemoryBlock:
    """Return the block of a new value at the bytes of an old one, which loses them; its state holds it."""
    new = replace(block, owner=owner, holders=1)
    block.successor, block.taken = owner, (block.start, block.start + block.size)
    # The arena gets the bytes back from the new block only.
    block.holders += 1
    return new
