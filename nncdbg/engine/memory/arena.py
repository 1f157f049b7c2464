"""The allocators `arena` and `poison`: memory is reused once the plan frees a value.

Memory is reused as in production, so bugs of the plan have the same effects. `poison` fills freed
memory with the pattern of fresh memory, so that stale data is not mistaken for new.

Statements that ran before in an arena with the same holes take the same places (see `Stretches`). The
holders of their blocks are recorded late: when a block or call begins, a statement deviates from its
earlier run, or a value is looked up.

The holes of the arena, and the blocks taken and freed since, determine where a block goes. So a run of
statements that begins with the same holes takes the same places, without a search.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias
from weakref import ref

import numpy as np

from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.execution.events import Event, Iterated, Popped, Pushed
from nncdbg.engine.execution.findings import Report
from nncdbg.engine.execution.linking import Binding, Execute, Gather
from nncdbg.engine.execution.statistics_log import MASK, ROW_BYTES, StatisticsLog
from nncdbg.engine.memory.blocks import Heap, MemoryBlock, Owner
from nncdbg.engine.memory.buffers import GUARD, pattern_between, span_of, write_pattern
from nncdbg.engine.memory.inspected import InspectedAllocation, Making, shared, sizes_key
from nncdbg.engine.memory.region import Segment
from nncdbg.engine.memory.reusing import FrameBuffers, Plan, ReusingAllocation, by_liveness
from nncdbg.ir.records import Array

Bytes: TypeAlias = "tuple[int, int, int]"
"""(segment, start, end)."""

MOST_STEPS = 200_000
"""Maximum number of remembered statements; beyond it, all are dropped and learned anew."""


@dataclass(slots=True, eq=False)
class BufferStretch:
    """The place of a block: segment number, start of its buffer, and expected contents of its guards."""

    number: int
    start: int
    before: slice
    before_bytes: bytes
    beyond: slice
    beyond_bytes: bytes


@lru_cache(maxsize=1 << 14)
def place_of(number: int, start: int, size: int, span: int) -> BufferStretch:
    """Return the place of a block; many statements share few places, which stay in the CPU cache."""
    before, end, limit = start - GUARD, start + size, start + span
    return BufferStretch(
        number,
        start,
        slice(before, start),
        pattern_between(before, start),
        slice(end, limit),
        pattern_between(end, limit),
    )


@dataclass(slots=True, eq=False)
class StretchStep:
    """A statement that takes one block; without a `place`, the end of its graph, which takes none."""

    pc: int
    statement: Statement
    name: str = ""
    slot: int = -1
    shape: tuple[int, ...] = ()
    dtype: Any = None
    size: int = 0
    span: int = 0
    place: BufferStretch | None = None
    freed: tuple[Bytes, ...] = ()
    """The bytes that are freed after the statement."""
    after: StretchStep | None = None


def step_of(
    statement: Statement, slot: int, buffer: Any, block: MemoryBlock, span: int, freed: list[MemoryBlock]
) -> StretchStep:
    """Return the step that repeats a statement that has just run."""
    return StretchStep(
        statement.pc,
        Statement(statement.code, statement.pc),
        block.owner.value,
        slot,
        buffer.shape,
        buffer.dtype,
        block.size,
        span,
        place_of(block.number, block.start, block.size, block.span),
        tuple((each.number, each.start, each.start + each.span) for each in freed),
    )


@dataclass(slots=True, eq=False)
class Course:
    """The position of a run in a stretch, in one object because every statement reads all of it."""

    next: StretchStep | None = None
    """The next step, if it is known."""
    running: StretchStep | None = None
    """The step in execution, if it is known."""
    slots: list[Any] | None = None
    """The slots of the frame of `next`."""
    handed: Array | None = None
    """The buffer that the step in execution writes into."""
    pending: list[Array] = field(default_factory=list)
    """Results of the steps that have run and are not accounted for yet."""
    unaccounted: StretchStep | None = None
    """The first of these steps."""
    number: int = -1
    """The number of the segment in use; `segment`, `raw` and `base` are its array, bytes and address."""
    segment: Segment | None = None
    raw: Any = None
    base: int = 0


@dataclass(slots=True)
class Stretches:
    """The first step of each stretch by the state of the arena at its start; None without a step."""

    first: dict[Hashable, StretchStep | None] = field(default_factory=dict)
    count: int = 0
    _plannable: dict[tuple[Code, bool], tuple[bool, ...]] = field(default_factory=dict)

    def begin(self, key: Hashable) -> None:
        """Begin a stretch without steps."""
        if self.count > MOST_STEPS:
            self.first.clear()
            self.count = 0
        self.first[key] = None
        self.count += 1

    def add(self, key: Hashable, last: StretchStep | None, step: StretchStep) -> None:
        """Append a step after the last one of a stretch."""
        self.count += 1
        if last is None:
            self.first[key] = step
        else:
            last.after = step

    def plannable(self, code: Code, outermost: bool) -> tuple[bool, ...]:
        """Return per pc whether its statement makes one value and needs no check of its operands.

        Such operands are inputs of the program or results of ordinary statements of the block. A value
        freed by liveness is not read again.
        """
        found = self._plannable.get((code, outermost))
        if found is None:
            found = self._plannable[code, outermost] = _plannable(code, outermost)
        return found


def _plannable(code: Code, outermost: bool) -> tuple[bool, ...]:
    given = set() if outermost else set(range(1, 1 + len(code.graph.inputs)))
    unsure = given | {inner for _, inner in code.captures}
    unsure |= {slot for slot, pc in enumerate(code.definition) if pc >= 0 and code.transfers(pc)}
    ordinary = [isinstance(code.targets[pc], int) and not code.transfers(pc) for pc in range(len(code.nodes))]
    return tuple(
        each and unsure.isdisjoint(read) for each, read in zip([*ordinary, True], code.operands, strict=True)
    )


class ArenaAllocation(ReusingAllocation):
    """Results in one reusable arena, freed by `plan`; with `poison`, refilled when freed."""

    def __init__(self, plan: Plan = by_liveness, *, poison: bool = False) -> None:
        super().__init__(plan)
        self.name = "poison" if poison else "arena"
        self.poison = poison
        self.heap = Heap()
        self._stretches = Stretches()
        self._unobserved: tuple[Execute, Execute] | None = None
        """The latest instructions made for a statement: with and without accounting of its blocks."""
        self._making_steps: Making | None = None
        self._latest: Execute | None = None
        """The latest instruction made for a kernel that writes into a given buffer."""
        self._learns = plan is by_liveness
        """Whether stretches are learned: only for `by_liveness`.

        Another plan may free differently each time, and its reads of freed memory must be found.
        """
        self._course = Course()
        self._gathering_steps = self._going_along()
        self._forget()

    def _forget(self) -> None:
        """Reset to the state before the first statement."""
        course, fresh = self._course, Course()
        for each in fields(Course):
            # Keep the same object: the instructions refer to it.
            setattr(course, each.name, getattr(fresh, each.name))
        self._learning: tuple[Hashable, StretchStep | None, FrameBuffers, int] | None = None
        """The stretch being learned: its key, last step, scope and the number of segments."""
        self._freed: list[MemoryBlock] = []
        """The blocks freed by the statement in execution while a stretch is learned."""
        self._span = 0
        """The span requested for the latest block."""
        self._alone = True
        """False once another machine has computed with values of this run."""

    def connect(self, report: Report, log: StatisticsLog | None) -> None:
        super().connect(report, log)
        self._making_steps = None

    def live_bytes(self) -> int:
        """Return the size in bytes of the live blocks."""
        self._account()
        return self.heap.live_bytes

    def drain(self) -> int:
        return super().drain() + self.heap.region.drain()

    def block_of(self, content: Any) -> MemoryBlock | None:
        self._account()
        return super().block_of(content)

    def _renew(self) -> None:
        # Keep the pages of the earlier run for this one.
        region = self.heap.region
        region.begin_run()
        self.heap = Heap(region)
        self._forget()

    def _hear(self, event: Event) -> None:
        if isinstance(event, (Pushed, Popped, Iterated)):
            self._leave_stretch()
        super()._hear(event)

    # -- memory --------------------------------------------------------------------------

    def allocate(self, shape: Sequence[int], dtype: Any, span: int) -> tuple[Array, int]:
        course = self._course
        step = course.running
        if step is not None:
            if shape == step.shape and dtype is step.dtype and course.handed is None:
                # The same place as the last time.
                place: Any = step.place
                if place.number != course.number:
                    self._turn_to(place.number)
                raw, start = course.raw, place.start
                raw[place.before] = place.before_bytes
                raw[place.beyond] = place.beyond_bytes
                buffer: Array = np.ndarray(shape, dtype, course.segment, start)
                course.handed = buffer
                return buffer, course.base + start
            self._account()
        assert self._owner is not None
        heap, size = self.heap, prod(shape) * dtype.itemsize
        block = heap.take(span, size, self._owner)
        start, raw = block.start, heap.raw[block.number]
        write_pattern(raw, start - GUARD, start)
        write_pattern(raw, start + size, start + block.span)
        buffer = np.ndarray(shape, dtype, block.segment, start)
        self._know(buffer, block)
        self._span = span
        return buffer, heap.bases[block.number] + start

    def _turn_to(self, number: int) -> None:
        """Switch the steps to another segment."""
        course, heap = self._course, self.heap
        course.number, course.segment = number, heap.segments[number]
        course.raw, course.base = heap.raw[number], heap.bases[number]

    def _free(self, block: MemoryBlock, after: Statement) -> None:
        self.heap.free(block, after)
        if self._learning is not None:
            self._freed.append(block)
        if self.poison:
            write_pattern(self.heap.raw[block.number], block.start, block.start + block.span)

    # -- statements ----------------------------------------------------------------------

    def _adopt(
        self, binding: Binding, inputs: Sequence[Any], index: int, result: Any, wrong: str | None = None
    ) -> Any:
        if not isinstance(result, (list, tuple)):
            return super()._adopt(binding, inputs, index, result, wrong)
        assert self._owner is not None
        self._owner = Owner(binding.node.outputs[index].name, binding, self._owner.iteration)
        return [self._element(each) for each in result]

    def _element(self, content: Any) -> Any:
        """Return an element of a sequence in the arena: a tensor of an operand stays in its block."""
        outside = isinstance(content, np.ndarray) and self.block_of(content) is None
        if not outside or content.dtype.hasobject:
            return content
        buffer, _ = self.allocate(content.shape, content.dtype, span_of(content.nbytes))
        np.copyto(buffer, content)
        return buffer

    def gathering(self, code: Code, pc: int, gather: Gather) -> Gather:
        slow = super().gathering(code, pc, gather)
        if not self._learns:
            return slow

        def otherwise(slots: list[Any]) -> Sequence[Any]:
            self._leave_stretch()
            operands = slow(slots)
            self._follow(code, pc, slots)
            return operands

        quick = InspectedAllocation.gathering(self, code, pc, gather)
        return self._gathering_steps(pc, quick, otherwise, pc == len(code.nodes))

    def _going_along(self) -> Callable[[int, Gather, Gather, bool], Gather]:
        """Return the factory of the functions that begin a step (see `_writing`)."""
        course = self._course

        def making(pc: int, quick: Gather, otherwise: Gather, ends: bool) -> Gather:
            def gathered(slots: list[Any]) -> Sequence[Any]:
                step = course.next
                if step is not None and step.pc == pc and slots is course.slots:
                    course.running = step
                    return quick(slots)
                return otherwise(slots)

            def gathered_last(slots: list[Any]) -> Sequence[Any]:
                if course.next is not None and course.next.pc == pc and slots is course.slots:
                    course.running = None
                    return quick(slots)
                return otherwise(slots)

            return gathered_last if ends else gathered

        return making

    def _into(self, binding: Binding) -> Execute:
        self._latest = super()._into(binding)
        return self._latest

    def _accounting(self, binding: Binding, run: Execute) -> Execute:
        slow = super()._accounting(binding, run)
        if not self._learns:
            return slow

        course = self._course

        def execute(*inputs: Any) -> Any:
            return run(*inputs) if course.running is not None else slow(*inputs)

        self._unobserved = execute, run
        return execute

    def completing(self, binding: Binding, execute: Execute) -> Execute:
        slow = super().completing(binding, execute)
        if not self._learns:
            return slow
        course, refill = self._course, self._refill if self.poison else None
        assert self._unobserved is not None
        accounted, run = self._unobserved
        # Without an observer the direct instruction suffices.
        quick = run if execute is accounted else execute

        def completed(*inputs: Any) -> Any:
            step = course.running
            if step is None:
                results = slow(*inputs)
                if self._learning is not None:
                    self._learn(binding, results)
                return results
            try:
                results = quick(*inputs)
            except BaseException:
                self._fail(binding)
                raise
            if course.running is not step or results is not course.handed or results is None:
                self._complete_late(binding, results)
                return results
            course.pending.append(results)
            course.handed = course.running = None
            course.next = step.after
            if refill is not None:
                refill(step.freed)
            return results

        if run is not self._latest or binding.op.foreign or execute is not accounted:
            return completed
        assert binding.kernel_into is not None
        if self._making_steps is None:
            self._making_steps = self._writing_steps()
        return self._making_steps(binding, binding.kernel_into, completed)

    def _writing_steps(self) -> Making:
        """Return the factory of instructions that run a known step without further calls (see `_writing`).

        Everything else is left to `otherwise`, the instruction with accounting.
        """
        course, unwritten, mask, sizes_of = self._course, self.unwritten.by_id, MASK, self._sizes_of
        refill = self._refill if self.poison else None
        rows, logged, position = self._row_source()

        def making(binding: Binding, kernel: Execute, otherwise: Execute) -> Execute:
            key_of = sizes_key(binding)
            seen: tuple[Any, ...] | None = None
            sizes: Any = None

            def execute(*inputs: Any) -> Any:
                nonlocal seen, sizes
                step = course.running
                if step is None or unwritten:
                    return otherwise(*inputs)
                try:
                    current = (*key_of(inputs),)
                    if current != seen:
                        seen, sizes = None, sizes_of(binding, inputs)
                        if sizes is not None and sizes[-1] is not None:
                            seen = shared(current)
                    if sizes is None or sizes[0] != step.shape or sizes[1] is not step.dtype:
                        step = None
                        return otherwise(*inputs)
                    shape, dtype, count, _, compiled = sizes
                    place: Any = step.place
                    if place.number != course.number:
                        self._turn_to(place.number)
                    raw, start = course.raw, place.start
                    raw[place.before] = place.before_bytes
                    raw[place.beyond] = place.beyond_bytes
                    course.handed = buffer = np.ndarray(shape, dtype, course.segment, start)
                    address = course.base + start
                    kernel(*inputs, buffer)
                    row = 0
                    if rows:
                        number = position() & mask
                        logged[number] = ref(buffer)
                        row = rows + number * ROW_BYTES
                    if compiled is not None:
                        flags = compiled(address, count, GUARD, row)
                    else:
                        flags = self._inspect_plain(buffer, row)
                    if flags & self.watched:
                        self._examine(binding, inputs, buffer, flags)
                except BaseException:
                    if step is not None:
                        self._fail(binding)
                    raise
                if course.running is not step:
                    self._complete_late(binding, buffer)
                    return buffer
                course.pending.append(buffer)
                course.handed = course.running = None
                course.next = step.after
                if refill is not None:
                    refill(step.freed)
                return buffer

            return execute

        return making

    def _refill(self, freed: tuple[Bytes, ...]) -> None:
        for number, start, end in freed:
            write_pattern(self.heap.raw[number], start, end)

    def _fail(self, binding: Binding) -> None:
        """Leave the stretch after a step raised."""
        self._leave_stretch()
        self.lifetimes.scopes[-1].begun = binding.pc
        self._discard(binding)

    def _complete_late(self, binding: Binding, results: Any) -> None:
        """Complete a statement that began as a step but deviated from it."""
        self._leave_stretch()
        scope = self.lifetimes.scopes[-1]
        scope.begun = binding.pc
        self._keep(scope, binding, results)
        self.lifetimes.complete(scope, binding)

    # -- stretches -----------------------------------------------------------------------

    def _follow(self, code: Code, pc: int, slots: list[Any]) -> None:
        """Begin or continue a stretch at a statement without a known step."""
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
                self._add(StretchStep(pc, Statement(code, pc)))
                self._learning = None
        elif pc < len(code.nodes):
            self._begin_stretch((code, pc, outermost, self.heap.layout, _held(scope)), scope, slots)

    def _begin_stretch(self, key: Hashable, scope: FrameBuffers, slots: list[Any]) -> None:
        if key in self._stretches.first:
            step = self._stretches.first[key]
            if step is not None:
                self._course.next = self._course.running = self._course.unaccounted = step
                self._course.slots = slots
                scope.begun = scope.done
        else:
            self._stretches.begin(key)
            self._learning = (key, None, scope, len(self.heap.segments))

    def _learn(self, binding: Binding, results: Any) -> None:
        """Record the place of a statement's result, if it took one block and nothing else happened."""
        assert self._learning is not None
        scope, segments = self._learning[2:]
        slot, made = binding.code.targets[binding.pc], self._made
        known = len(made) == 1 and segments == len(self.heap.segments) and self.block_of(results) is made[0]
        if (
            known
            and isinstance(slot, int)
            and scope is self.lifetimes.scopes[-1]
            and scope.done == binding.pc
        ):
            self._add(step_of(binding, slot, results, made[0], self._span, self._freed))
        else:
            self._learning = None

    def _add(self, step: StretchStep) -> None:
        assert self._learning is not None
        key, last, scope, segments = self._learning
        self._stretches.add(key, last, step)
        self._learning = (key, step, scope, segments)

    def _leave_stretch(self) -> None:
        self._account()
        self._course.next = None

    def _account(self) -> None:
        """Record the past and present holders of the blocks of the executed steps.

        During a step, the blocks that it has taken are recorded as well, and the statement continues as
        an ordinary one.
        """
        if self._course.running is not None:
            self._account_running(self._course.running)
        if self._course.pending:
            pending, self._course.pending = self._course.pending, []
            scope, poison = self.lifetimes.scopes[-1], self.poison
            # Already poisoned when it was freed.
            self.poison = False
            step = self._course.unaccounted
            for buffer in pending:
                assert step is not None
                self._take(step, buffer, scope)
                scope.begun = step.pc
                self.lifetimes.hold(scope, step.slot, buffer)
                self.lifetimes.complete(scope, step.statement)
                step = step.after
            self._course.unaccounted = step
            self.poison = poison

    def _account_running(self, step: StretchStep) -> None:
        self._course.running, handed, self._course.handed = None, self._course.handed, None
        self._leave_stretch()
        scope = self._current = self.lifetimes.scopes[-1]
        self._made.clear()
        self._owner = Owner(step.name, step.statement, scope.frame.iteration)
        if handed is not None:
            self._take(step, handed, scope)

    def _take(self, step: StretchStep, buffer: Array, scope: FrameBuffers) -> None:
        block = self.heap.take(step.span, step.size, Owner(step.name, step.statement, scope.frame.iteration))
        place: Any = step.place
        assert (block.number, block.start) == (place.number, place.start), "the arena is not as it was"
        self._know(buffer, block)


def _held(scope: FrameBuffers) -> Hashable:
    """Return the places and holder counts of the blocks that a scope may free."""
    return tuple(
        (slot, block.number, block.start, block.span, block.holders, block.freed is None)
        for slot, blocks in scope.held.items()
        for block in blocks
    )
