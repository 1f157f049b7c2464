"""The allocators `arena` and `poison`: memory is used again once the plan says that a value is dead.

As in production, so bugs of the plan show as they do there.  `poison` fills memory with the
pattern of fresh memory when it is freed, so that old data cannot pass for new.

Statements that ran before in an arena of the same holes take the same places (see `stretches`).  Who holds
their blocks is only noted once somebody wants to know: a block or call begins, a statement does something
else than it did, or a value is looked up.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import Any

import numpy as np

from nncdbg.engine.code import Code, Statement
from nncdbg.engine.events import Event, Iterated, Popped, Pushed
from nncdbg.engine.graph import Array
from nncdbg.engine.linking import Binding, Execute, Gather
from nncdbg.engine.memory.blocks import Block, Heap, Owner
from nncdbg.engine.memory.buffers import GUARD, write_pattern
from nncdbg.engine.memory.inspected import InspectedAllocation
from nncdbg.engine.memory.lifetimes import Scope
from nncdbg.engine.memory.planner import Plan, by_liveness
from nncdbg.engine.memory.reusing import ReusingAllocation
from nncdbg.engine.memory.stretches import Step, Stretches, step_of


class ArenaAllocation(ReusingAllocation):
    """Results in one reusable arena, freed by `plan`; with `poison`, refilled when freed."""

    def __init__(self, plan: Plan = by_liveness, *, poison: bool = False) -> None:
        super().__init__(plan)
        self.name = "poison" if poison else "arena"
        self.poison = poison
        self.heap = Heap()
        self._stretches = Stretches()
        self._learns = plan is by_liveness
        """Another plan may free something else each time, and what is read after that is to be found."""
        self._forget()

    def _forget(self) -> None:
        """Nothing has run yet."""
        self._next: Step | None = None
        """What runs next, if it is known."""
        self._step: Step | None = None
        """What is in execution, if it is known."""
        self._slots: list[Any] | None = None
        """The slots of the frame of `_next`."""
        self._handed: Array | None = None
        """The buffer that the step in execution writes into."""
        self._pending: list[tuple[Step, Array]] = []
        """What has run and is not accounted for yet."""
        self._learning: tuple[Hashable, Step | None, Scope, int] | None = None
        """The stretch that is learned: its key, last step, scope and the number of segments."""
        self._freed: list[Block] = []
        """What the statement in execution has freed, while it is learned."""
        self._span = 0
        """What the latest block was asked for."""
        self._alone = True
        """False once another machine has computed with values of this run."""

    def live_bytes(self) -> int:
        """Bytes of the blocks that are not freed."""
        self._account()
        return self.heap.live_bytes

    def block_of(self, content: Any) -> Block | None:
        self._account()
        return super().block_of(content)

    def _renew(self) -> None:
        self.heap = Heap()
        self._forget()

    def _hear(self, event: Event) -> None:
        if isinstance(event, (Pushed, Popped, Iterated)):
            self._leave_stretch()
        super()._hear(event)

    # -- memory --------------------------------------------------------------------------

    def allocate(self, shape: Sequence[int], dtype: Any, span: int) -> tuple[Array, int]:
        step = self._step
        if step is not None:
            if shape == step.shape and dtype is step.dtype and self._handed is None:
                return self._placed(step)
            self._account()
        assert self._owner is not None
        heap, size = self.heap, prod(shape) * dtype.itemsize
        block = heap.take(span, size, self._owner)
        start, raw = block.start, heap.raw[block.number]
        write_pattern(raw, start - GUARD, start)
        write_pattern(raw, start + size, start + block.span)
        buffer: Array = np.ndarray(shape, dtype, block.segment, start)
        self._know(buffer, block)
        self._span = span
        return buffer, heap.bases[block.number] + start

    def _placed(self, step: Step) -> tuple[Array, int]:
        """The buffer of a step, where it was the last time."""
        heap, number, start = self.heap, step.number, step.start
        raw = heap.raw[number]
        assert step.guards is not None
        (before, early), (after, late) = step.guards
        raw[before] = early
        raw[after] = late
        buffer = self._handed = np.ndarray(step.shape, step.dtype, heap.segments[number], start)
        return buffer, heap.bases[number] + start

    def _free(self, block: Block, after: Statement) -> None:
        self.heap.free(block, after)
        if self._learning is not None:
            self._freed.append(block)
        if self.poison:
            write_pattern(self.heap.raw[block.number], block.start, block.start + block.span)

    # -- statements ----------------------------------------------------------------------

    def gathering(self, code: Code, pc: int, gather: Gather) -> Gather:
        slow = super().gathering(code, pc, gather)
        if not self._learns:
            return slow
        quick = InspectedAllocation.gathering(self, code, pc, gather)

        def gathered(slots: list[Any]) -> Sequence[Any]:
            step = self._next
            if step is not None and step.pc == pc and slots is self._slots:
                self._step = step if step.slot >= 0 else None
                return quick(slots)
            self._leave_stretch()
            operands = slow(slots)
            self._follow(code, pc, slots)
            return operands

        return gathered

    def _accounting(self, binding: Binding, run: Execute) -> Execute:
        slow = super()._accounting(binding, run)
        if not self._learns:
            return slow

        def execute(*inputs: Any) -> Any:
            return run(*inputs) if self._step is not None else slow(*inputs)

        return execute

    def completing(self, binding: Binding, execute: Execute) -> Execute:
        slow = super().completing(binding, execute)
        if not self._learns:
            return slow

        def completed(*inputs: Any) -> Any:
            step = self._step
            if step is None:
                results = slow(*inputs)
                if self._learning is not None:
                    self._learn(binding, results)
                return results
            try:
                results = execute(*inputs)
            except BaseException:
                self._leave_stretch()
                self.lifetimes.scopes[-1].begun = binding.pc
                self._discard(binding)
                raise
            if self._step is not step or results is not self._handed:
                self._complete_late(binding, results)
                return results
            self._pending.append((step, results))
            self._handed = self._step = None
            self._next = step.after
            if self.poison:
                for number, start, end in step.freed:
                    write_pattern(self.heap.raw[number], start, end)
            return results

        return completed

    def _complete_late(self, binding: Binding, results: Any) -> None:
        """The statement was begun as a step, and was something else."""
        self._leave_stretch()
        scope = self.lifetimes.scopes[-1]
        scope.begun = binding.pc
        self._keep(scope, binding, results)
        self.lifetimes.complete(scope, binding)

    # -- stretches -----------------------------------------------------------------------

    def _follow(self, code: Code, pc: int, slots: list[Any]) -> None:
        """Begin, or go on with, a stretch at a statement of which nothing is known yet."""
        scope, learning = self._current, self._learning
        self._alone = self._alone and scope is not None
        self._learning = None
        if scope is None or not self._alone or scope.begun != pc or scope.done != pc - 1:
            return
        outermost = scope.frame is self._debuggee.frames[0]
        if not self._stretches.plannable(code, outermost)[pc]:
            return
        self._freed.clear()
        if learning is not None and learning[2] is scope:
            self._learning = learning
            if pc == len(code.nodes):
                self._add(Step(pc, Statement(code, pc)))
                self._learning = None
        elif pc < len(code.nodes):
            self._begin_stretch((code, pc, outermost, self.heap.layout, _held(scope)), scope, slots)

    def _begin_stretch(self, key: Hashable, scope: Scope, slots: list[Any]) -> None:
        if key in self._stretches.first:
            step = self._stretches.first[key]
            if step is not None:
                self._next = self._step = step
                self._slots = slots
                scope.begun = scope.done
        else:
            self._stretches.begin(key)
            self._learning = (key, None, scope, len(self.heap.segments))

    def _learn(self, binding: Binding, results: Any) -> None:
        """Remember where a statement put its result, if it took one block and nothing else happened."""
        assert self._learning is not None
        scope, segments = self._learning[2:]
        slot, made = binding.code.targets[binding.pc], self._made
        known = len(made) == 1 and segments == len(self.heap.segments) and self.block_of(results) is made[0]
        if known and isinstance(slot, int) and scope is self.lifetimes.scopes[-1] and scope.done == binding.pc:
            self._add(step_of(binding, slot, results, made[0], self._span, self._freed))
        else:
            self._learning = None

    def _add(self, step: Step) -> None:
        assert self._learning is not None
        key, last, scope, segments = self._learning
        self._stretches.add(key, last, step)
        self._learning = (key, step, scope, segments)

    def _leave_stretch(self) -> None:
        self._account()
        self._next = None

    def _account(self) -> None:
        """Note who holds, and who held, the blocks of the steps that have run.

        Amid a step, what it has taken is noted as well, and the statement goes on as if it was none.
        """
        if self._step is not None:
            self._account_running(self._step)
        if self._pending:
            pending, self._pending = self._pending, []
            scope, poison = self.lifetimes.scopes[-1], self.poison
            # It was poisoned when it died.
            self.poison = False
            for step, buffer in pending:
                self._take(step, buffer, scope)
                scope.begun = step.pc
                self.lifetimes.hold(scope, step.slot, buffer)
                self.lifetimes.complete(scope, step.statement)
            self.poison = poison

    def _account_running(self, step: Step) -> None:
        self._step, handed, self._handed = None, self._handed, None
        self._leave_stretch()
        scope = self._current = self.lifetimes.scopes[-1]
        self._made.clear()
        self._owner = Owner(step.name, step.statement, scope.frame.iteration)
        if handed is not None:
            self._take(step, handed, scope)

    def _take(self, step: Step, buffer: Array, scope: Scope) -> None:
        block = self.heap.take(step.span, step.size, Owner(step.name, step.statement, scope.frame.iteration))
        assert (block.number, block.start) == (step.number, step.start), "the arena is not as it was"
        self._know(buffer, block)


def _held(scope: Scope) -> Hashable:
    """Where the blocks stand that a scope may free, and how many hold them."""
    return tuple(
        (slot, block.number, block.start, block.span, block.holders, block.freed is None)
        for slot, block in scope.held.items()
    )
