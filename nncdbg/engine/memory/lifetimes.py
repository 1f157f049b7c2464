"""Holders of blocks: one scope per frame on the machine's stack, and per iteration of a loop.

A scope holds a block through a slot. The receiving frame holds a value before the frame that it leaves
releases it, so a value that leaves twice is held twice and freed once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.memory.blocks import MemoryBlock
from nncdbg.engine.memory.planner import Plan


@dataclass(slots=True, eq=False)
class FrameBuffers:
    """The blocks of a frame; `begun` is the pc of its latest statement, `done` of the last completed."""

    frame: Frame
    begun: int = -1
    done: int = -1
    held: dict[int, tuple[MemoryBlock, ...]] = field(default_factory=dict)
    """The blocks of each slot: that of a tensor, or those of the tensors in a sequence."""
    released: dict[int, tuple[tuple[MemoryBlock, ...], Statement]] = field(default_factory=dict)
    """The blocks that the plan released from each slot, and the statement before their release."""
    collected: list[MemoryBlock] = field(default_factory=list)
    """The blocks that a loop has collected in all its iterations so far."""


@dataclass(slots=True)
class Lifetimes:
    """Follows a machine's frames and releases blocks as `plan` says.

    `blocks_of` returns the blocks of a slot's content. `free` is called with a block without holders,
    `freed_again` with one that the plan frees a second time.
    """

    plan: Plan
    blocks_of: Callable[[Any], tuple[MemoryBlock, ...]]
    free: Callable[[MemoryBlock, Statement], None]
    freed_again: Callable[[MemoryBlock, Statement, Statement], None]
    scopes: list[FrameBuffers] = field(default_factory=list)

    def begin(self, frame: Frame) -> None:
        """Start at the entry graph without held blocks."""
        self.scopes = [FrameBuffers(frame)]

    # -- frames --------------------------------------------------------------------------

    def pushed(self, frame: Frame) -> None:
        """Begin a frame; its inputs are held by it as well as by the enclosing frame."""
        scope = FrameBuffers(frame)
        self.scopes.append(scope)
        for slot in range(1, 1 + len(frame.code.graph.inputs)):
            self.hold(scope, slot, frame.slots[slot])

    def popped(self) -> None:
        """End a frame; its results are in the enclosing frame."""
        inner, outer = self.scopes.pop(), self.scopes[-1]
        pc = outer.frame.pc - 1
        self._hold_results(outer, pc)
        self._leave(inner)
        self.complete(outer, Statement(outer.frame.code, pc))

    def iterated(self, frame: Frame) -> None:
        """Begin the next iteration of a loop's frame with the carried values."""
        before = self.scopes[-1]
        scope = self.scopes[-1] = FrameBuffers(frame)
        for slot in range(2, 1 + len(frame.code.graph.inputs)):
            self.hold(scope, slot, frame.slots[slot])
        scope.collected, before.collected = before.collected, []
        for items in frame.collected:
            for block in self.blocks_of(items[-1]):
                block.holders += 1
                scope.collected.append(block)
        self._leave(before)

    def _leave(self, scope: FrameBuffers) -> None:
        code = scope.frame.code
        if scope.begun == len(code.nodes):
            self._release_planned(scope, Statement(code, scope.begun))
        after = Statement(code, max(scope.begun, 0))
        for block in (*chain.from_iterable(scope.held.values()), *scope.collected):
            self._let_go(block, after)

    # -- statements ------------------------------------------------------------------------

    def complete_through(self, scope: FrameBuffers, last: int) -> None:
        """Account for the statements of a scope up to `last`: hold their results, free dead values."""
        code = scope.frame.code
        for pc in range(scope.done + 1, last + 1):
            self._hold_results(scope, pc)
            self._release_planned(scope, Statement(code, pc))
        scope.done = max(scope.done, last)

    def complete(self, scope: FrameBuffers, statement: Statement) -> None:
        """Free dead values after a statement with results that are held already."""
        self._release_planned(scope, statement)
        scope.done = statement.pc

    def _hold_results(self, scope: FrameBuffers, pc: int) -> None:
        slots = scope.frame.slots
        for slot in scope.frame.code.result_slots(pc):
            self.hold(scope, slot, slots[slot])

    def hold(self, scope: FrameBuffers, slot: int, content: Any) -> None:
        """Hold the blocks of a slot's content."""
        blocks = self.blocks_of(content)
        if blocks:
            for block in blocks:
                block.holders += 1
            scope.held[slot] = blocks

    def _release_planned(self, scope: FrameBuffers, after: Statement) -> None:
        for slot in self.plan(after.code, after.pc):
            blocks = scope.held.pop(slot, None)
            if blocks is not None:
                scope.released[slot] = (blocks, after)
                for block in blocks:
                    self._let_go(block, after)
            elif slot in scope.released:
                blocks, first = scope.released[slot]
                self.freed_again(blocks[0], first, after)

    def _let_go(self, block: MemoryBlock, after: Statement) -> None:
        block.holders -= 1
        if block.holders == 0 and block.freed is None:
            self.free(block, after)
