"""Holders of blocks: one scope per frame on the machine's stack, and per iteration of a loop.

A scope holds a block through a slot. The receiving frame holds a value before the frame that it leaves
releases it, so a value that leaves twice is held twice and freed once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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
    held: dict[int, MemoryBlock] = field(default_factory=dict)
    released: dict[int, tuple[MemoryBlock, Statement]] = field(default_factory=dict)
    """The block that the plan released from each slot, and the statement before its release."""
    collected: list[MemoryBlock] = field(default_factory=list)
    """The blocks that a loop has collected in all its iterations so far."""


@dataclass(slots=True)
class Lifetimes:
    """Follows a machine's frames and releases blocks as `plan` says.

    `block_of` returns the block of a slot's content. `free` is called with a block without holders,
    `freed_again` with one that the plan frees a second time.
    """

    plan: Plan
    block_of: Callable[[Any], MemoryBlock | None]
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
            block = self.block_of(items[-1])
            if block is not None:
                block.holders += 1
                scope.collected.append(block)
        self._leave(before)

    def _leave(self, scope: FrameBuffers) -> None:
        code = scope.frame.code
        if scope.begun == len(code.nodes):
            self._release_planned(scope, Statement(code, scope.begun))
        after = Statement(code, max(scope.begun, 0))
        for block in (*scope.held.values(), *scope.collected):
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
        """Hold the block of a slot's content, if it has one."""
        block = self.block_of(content)
        if block is not None:
            block.holders += 1
            scope.held[slot] = block

    def _release_planned(self, scope: FrameBuffers, after: Statement) -> None:
        for slot in self.plan(after.code, after.pc):
            block = scope.held.pop(slot, None)
            if block is not None:
                scope.released[slot] = (block, after)
                block.holders -= 1
                if block.holders == 0 and block.freed is None:
                    self.free(block, after)
            elif slot in scope.released:
                self.freed_again(*scope.released[slot], after)

    def _let_go(self, block: MemoryBlock, after: Statement) -> None:
        block.holders -= 1
        if block.holders == 0 and block.freed is None:
            self.free(block, after)
