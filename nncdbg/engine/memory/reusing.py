"""Base of the allocators that reuse memory: they track the owner of each byte and check each read.

Each block records its owner, the statement that freed it and the successor at its bytes. The operands
of every statement are checked before it runs. Old values are overwritten, so stepping back replays from
the start. Machines other than the debugged one (clones that inspect another moment) compute in separate
memory.

The plan decides when memory is freed.  It is a plain function, so a test can pass one with a planted bug, and
a user the plan of a suspected runtime.

Blocks are held by scopes: one per frame on the machine's stack, and per iteration of a loop.  A scope holds a
block through a slot. The receiving frame holds a value before the frame that it leaves releases it, so a
value that leaves twice is held twice and freed once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from nncdbg.by_identity import ByIdentity
from nncdbg.engine.compilation.code import Code, Statement, dying
from nncdbg.engine.execution.events import Event, Iterated, Popped, Pushed, Restored
from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.linking import Binding, Execute, Gather, LineOf
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.memory.blocks import MemoryBlock, Owner
from nncdbg.engine.memory.inspected import InspectedAllocation
from nncdbg.errors import RunError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Array
from nncdbg.text.lexemes import name_text

Plan: TypeAlias = Callable[[Code, int], Sequence[int]]
"""`plan(code, pc)`: the slots of the block with the values to free after its statement `pc`."""


def by_liveness(code: Code, pc: int) -> Sequence[int]:
    """Free each value after the last statement that reads it."""
    return dying(code)[pc]


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


@dataclass(slots=True, eq=False)
class Misread:
    """`statement` reads its operand `name` from a block that was freed or overwritten.

    `iteration` holds the iterations of the enclosing loops at the first misread, outermost first;
    `count` is the number of misreads, `tick` the number of statements that had run.
    """

    statement: Statement
    name: str
    block: MemoryBlock
    iteration: tuple[int, ...]
    tick: int
    count: int = 1


class ReusingAllocation(InspectedAllocation):
    """Results in reused memory, allocated by `allocate` and freed by `plan`."""

    retains = False
    settles = False
    """True if the results of a statement are moved to their final places (see `_settled`)."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.lifetimes = Lifetimes(plan, self.blocks_of, self._free, self._freed_again)
        self.misreads: dict[tuple[Code, int, str], Misread] = {}
        """The misreads, in the order of the run."""
        self._blocks: ByIdentity[MemoryBlock] = ByIdentity()
        self._made: list[MemoryBlock] = []
        self._current: FrameBuffers | None = None
        """The scope of the statement in execution; None if another machine executes it."""
        self._owner: Owner | None = None

    def begin(self, machine: Machine, over: Callable[[], None], line: LineOf) -> None:
        super().begin(machine, over, line)
        self._debuggee = machine
        self._line = line
        self.lifetimes.begin(machine.frames[0])
        machine.listeners.append(self._hear)

    def _hear(self, event: Event) -> None:
        match event:
            case Pushed(frame):
                self._moved_in(event)
                self.lifetimes.pushed(frame)
            case Popped(frame):
                self._check_break(frame)
                self._moved_in(event)
                self.lifetimes.popped()
            case Iterated(frame):
                self._moved_in(event)
                self.lifetimes.iterated(frame)
            case Restored():
                self._restart()

    def _restart(self) -> None:
        """Start over: the machine is at its first statement again, with nothing computed."""
        assert self._debuggee.tick == 0
        # A new arena, so that a replay finds the same contents as the first run.
        self._renew()
        self._blocks.clear()
        self.misreads.clear()
        self.lifetimes.begin(self._debuggee.frames[0])

    def _moved_in(self, event: Event) -> None:
        """Move the values that a transfer of control brought into the innermost frame to their places."""

    @abstractmethod
    def _renew(self) -> None:
        """Take a new, empty arena."""

    @abstractmethod
    def _free(self, block: MemoryBlock, after: Statement) -> None:
        """Free a block without holders."""

    # -- statements ------------------------------------------------------------------------

    def gathering(self, code: Code, pc: int, gather: Gather) -> Gather:
        lifetimes = self.lifetimes
        gather, blocks, here = super().gathering(code, pc, gather), self._blocks.by_id, Statement(code, pc)

        def gathered(slots: list[Any]) -> Sequence[Any]:
            innermost = self._debuggee.frames[-1].slots is slots
            scope = self._current = lifetimes.scopes[-1] if innermost else None
            if scope is None:
                operands = gather(slots)
                self._refuse_stale(operands)
                return operands
            if scope.begun >= pc:
                return gather(slots)
            first = scope.begun < 0
            scope.begun = pc
            if first or scope.done < pc - 1:
                self._catch_up(scope, pc, first)
            operands = gather(slots)
            for value in operands:
                known = blocks.get(id(value))
                if known is None:
                    if value.__class__ is not list:
                        continue
                    lost = any(map(_lost, self.blocks_of(value)))
                else:
                    lost = known[1].freed is not None or known[1].successor is not None
                if lost:
                    self._check_operands(here, operands)
                    break
            return operands

        return gathered

    def _catch_up(self, scope: FrameBuffers, pc: int, first: bool) -> None:
        """Account for statements before `pc`; `first` if none of the scope was executed yet."""
        self.lifetimes.complete_through(scope, pc - 1)

    def wrap(self, binding: Binding) -> Execute:
        return self._accounting(binding, super().wrap(binding))

    def _accounting(self, binding: Binding, run: Execute) -> Execute:
        """Run a statement and record the holders of its results."""
        kernel, made = binding.kernel, self._made
        outputs = binding.node.outputs
        owner = Owner(outputs[0].name if outputs else "_", binding)
        settles = self.settles

        def execute(*inputs: Any) -> Any:
            nonlocal owner
            scope = self._current
            if scope is None:
                return kernel(*inputs)
            if owner.iteration != scope.frame.iteration:
                owner = replace(owner, iteration=scope.frame.iteration)
            self._owner = owner
            made.clear()
            try:
                results = run(*inputs)
                if settles:
                    results = self._settled(binding, inputs, results)
            except BaseException:
                self._discard(binding)
                raise
            self._keep(scope, binding, results)
            return results

        return execute

    def completing(self, binding: Binding, execute: Execute) -> Execute:
        """Free operands after their last read; observers run before that."""
        lifetimes = self.lifetimes

        def completed(*inputs: Any) -> Any:
            scope = self._current
            results = execute(*inputs)
            if scope is not None:
                lifetimes.complete(scope, binding)
            return results

        return completed

    def _settled(self, binding: Binding, inputs: Sequence[Any], results: Any) -> Any:
        """Return the results of a statement at their final places, for an allocation that `settles` them."""
        raise NotImplementedError

    def _keep(self, scope: FrameBuffers, binding: Binding, results: Any) -> None:
        """Hold the results of a statement in its frame, and free new blocks without a holder."""
        slots = binding.code.result_slots(binding.pc)
        for slot, result in zip(slots, results if binding.several else (results,), strict=False):
            self.lifetimes.hold(scope, slot, result)
        for block in self._made:
            if block.holders == 0 and block.freed is None:
                self._free(block, binding)

    def _discard(self, binding: Binding) -> None:
        """Free the blocks that a failed statement took."""
        for block in self._made:
            if block.holders == 0 and block.freed is None:
                self._free(block, binding)
        self._made.clear()

    def _adopt(
        self, binding: Binding, inputs: Sequence[Any], index: int, result: Any, wrong: str | None = None
    ) -> Any:
        if isinstance(result, (list, tuple)):
            # A sequence outlives the tensors that it was made of.
            return [np.array(item) if isinstance(item, np.ndarray) else item for item in result]
        assert self._owner is not None
        self._owner = Owner(binding.node.outputs[index].name, binding, self._owner.iteration)
        return super()._adopt(binding, inputs, index, result, wrong)

    # -- blocks ------------------------------------------------------------------------------

    def _know(self, buffer: Array, block: MemoryBlock) -> None:
        """Record that `buffer` is in `block`, which the statement in execution took."""
        self._made.append(block)
        self._blocks.set(buffer, block)

    def block_of(self, content: Any) -> MemoryBlock | None:
        """Return the current or former block of a tensor; None for content outside the arena."""
        return self._blocks.get(content)

    def blocks_of(self, content: Any) -> tuple[MemoryBlock, ...]:
        """Return the current or former blocks of a slot's content, also of the tensors in a sequence."""
        each = content if content.__class__ is list else (content,)
        return tuple(block for block in map(self.block_of, each) if block is not None)

    def _lost_block(self, content: Any) -> MemoryBlock | None:
        """Return the first block of a slot's content that was freed or overwritten."""
        return next(filter(_lost, self.blocks_of(content)), None)

    # -- findings ------------------------------------------------------------------------------

    def standing(self, content: Any) -> str | None:
        block = self._lost_block(content)
        return None if block is None else f"its memory was {self._fate(block)}"

    def _refuse_stale(self, operands: Sequence[Any]) -> None:
        """Raise RunError if a value that another machine shares has lost its memory."""
        for value in operands:
            block = self._lost_block(value)
            if block is not None:
                raise RunError(
                    f"%{name_text(block.owner.value)} is no longer valid: its memory was {self._fate(block)}",
                    hint="inspect it at an earlier step, or use --allocator debug, which keeps every value",
                )

    def _check_operands(self, statement: Statement, operands: Sequence[Any]) -> None:
        """Report each operand with freed or overwritten memory."""
        moment = self._debuggee.tick, self._debuggee.frames
        self._check_standing(statement, statement.code.operands[statement.pc], operands, moment)

    def _check_break(self, frame: Frame) -> None:
        """Check the carried values of a loop that ends by `break`: they are its results."""
        if frame.is_loop and frame.pc < len(frame.code.nodes):
            carried = range(2, 1 + len(frame.code.graph.inputs))
            contents = [frame.slots[slot] for slot in carried]
            # The frame is popped already, and the tick is the one after it.
            moment = self._debuggee.tick - 1, [*self._debuggee.frames, frame]
            self._check_standing(Statement(frame.code, frame.pc), carried, contents, moment)

    def _check_standing(
        self,
        statement: Statement,
        slots: Sequence[int],
        contents: Sequence[Any],
        moment: tuple[int, Sequence[Frame]],
    ) -> None:
        for slot, value in zip(slots, contents, strict=True):
            block = self._lost_block(value)
            if block is not None:
                name, made = statement.code.names[slot], block.owner.value
                misread = Misread(statement, name, block, _iteration(moment[1]), moment[0])
                first = self.misreads.setdefault((statement.code, statement.pc, name), misread)
                first.count += first is not misread
                known = "" if name == made else f" (defined as %{name_text(made)})"
                words = (
                    f"{verb(statement)} reads %{name_text(name)}{known}, but its memory was "
                    f"{self._fate(block)}"
                )
                other = block.successor.statement if block.successor is not None else block.freed
                self.report(Finding("guard", statement, words, contents, None, other, operand=name))

    def _freed_again(self, block: MemoryBlock, first: Statement, second: Statement) -> None:
        words = (
            f"%{name_text(block.owner.value)}'s memory is freed twice: "
            f"after {self._described(first)} and after {self._described(second)}"
        )
        self.report(Finding("guard", second, words, (), None, first))

    def _fate(self, block: MemoryBlock) -> str:
        parts = [] if block.freed is None else [f"freed after {self._described(block.freed)}"]
        if block.successor is not None:
            statement, value = block.successor.statement, block.successor.value
            line = self._line(statement.code, statement.pc)
            if overwrites_state(block):
                parts.append(f"overwritten by the update of %{name_text(value)} (line {line})")
            else:
                parts.append(f"reused by %{name_text(value)} ({verb(statement)}, line {line})")
        return " and ".join(parts)

    def _described(self, statement: Statement) -> str:
        """Describe a statement: `%y = Relu (line 3)`."""
        code, pc = statement.code, statement.pc
        outputs = code.nodes[pc].outputs if pc < len(code.nodes) else ()
        word = verb(statement)
        return (
            f"%{name_text(outputs[0].name)} = {word}" if outputs else word
        ) + f" (line {self._line(code, pc)})"


def _iteration(frames: Sequence[Frame]) -> tuple[int, ...]:
    return tuple(frame.iteration for frame in frames if frame.is_loop)


def _lost(block: MemoryBlock) -> bool:
    return block.freed is not None or block.successor is not None


def overwrites_state(block: MemoryBlock) -> bool:
    """Return whether the bytes of the old value of a state were taken by an update in place."""
    taker = block.successor
    return taker is not None and taker.value == block.owner.value and verb(taker.statement) == "update"


def verb(statement: Statement) -> str:
    """Return the op, or the keyword of a line that is not an op."""
    code, pc = statement.code, statement.pc
    if pc < len(code.nodes):
        return code.nodes[pc].op
    if not isinstance(code.path[-1], int):
        return "return"
    assert code.parent is not None
    return "next" if code.parent.nodes[int(code.path[-2])].kind is Kind.WHILE else "yield"
