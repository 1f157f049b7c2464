"""The allocators `arena` and `poison`: memory is used again once the plan says that a value is dead.

As in production, so bugs of the plan show as they do there; but each block knows its owner, who
freed it and who got its bytes, and every statement's operands are looked up before it runs.
`poison` fills memory with the pattern of fresh memory when it is freed, so that old data cannot
pass for new.  Old values do not stand, so going back in time is a replay from the start.

Machines other than the one that is debugged (clones that look at another moment) compute in
memory of their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nncdbg.engine.code import Code, Statement
from nncdbg.engine.errors import RunError
from nncdbg.engine.events import Event, Iterated, Popped, Pushed, Restored
from nncdbg.engine.findings import Finding
from nncdbg.engine.graph import Array
from nncdbg.engine.linking import Binding, Execute, Gather, LineOf
from nncdbg.engine.machine import Machine
from nncdbg.engine.memory.blocks import Block, Heap, Owner
from nncdbg.engine.memory.buffers import GUARD, address_of
from nncdbg.engine.memory.inspected import InspectedAllocation
from nncdbg.engine.memory.lifetimes import Lifetimes, Scope, target_slots
from nncdbg.engine.memory.planner import Plan, by_liveness
from nncdbg.stats.inspection import fill


class ArenaAllocation(InspectedAllocation):
    """Results in one reusable arena, freed by `plan`; with `poison`, refilled when freed."""

    retains = False

    def __init__(self, plan: Plan = by_liveness, *, poison: bool = False) -> None:
        super().__init__()
        self.name = "poison" if poison else "arena"
        self.poison = poison
        self.heap = Heap()
        self.lifetimes = Lifetimes(plan, self.block_of, self._free, self._freed_again)
        self._blocks: dict[int, tuple[weakref.ref[Array], Block]] = {}
        self._made: list[Block] = []
        self._current: Scope | None = None
        """The scope of the statement in execution; None if another machine executes it."""
        self._owner: Owner | None = None

    def live_bytes(self) -> int:
        """Bytes of the blocks that are not freed."""
        return self.heap.live_bytes

    def begin(self, machine: Machine, over: Callable[[], None], line: LineOf) -> None:
        self._machine = machine
        self._line = line
        self.lifetimes.begin(machine.frames[0])
        machine.listeners.append(self._hear)

    def _hear(self, event: Event) -> None:
        match event:
            case Pushed(frame):
                self.lifetimes.pushed(frame)
            case Popped():
                self.lifetimes.popped()
            case Iterated(frame):
                self.lifetimes.iterated(frame)
            case Restored():
                self._restart()

    def _restart(self) -> None:
        """The machine is at its first statement again, with nothing computed."""
        assert self._machine.tick == 0
        # A new arena, so that a replay finds in it exactly what the first run found.
        self.heap = Heap()
        self._blocks.clear()
        self.lifetimes.begin(self._machine.frames[0])

    # -- statements ------------------------------------------------------------------------

    def gathering(self, code: Code, pc: int, gather: Gather) -> Gather:
        gather = super().gathering(code, pc, gather)

        def gathered(slots: list[Any]) -> Sequence[Any]:
            operands = gather(slots)
            self._current = self._scope_of(slots)
            if self._current is None:
                self._refuse_stale(operands)
            elif self._current.begun < pc:
                self._current.begun = pc
                self.lifetimes.complete_through(self._current, pc - 1)
                self._check_operands(Statement(code, pc), operands)
            return operands

        return gathered

    def _scope_of(self, slots: list[Any]) -> Scope | None:
        return self.lifetimes.scopes[-1] if self._machine.frames[-1].slots is slots else None

    def wrap(self, binding: Binding) -> Execute:
        run, kernel, pc = super().wrap(binding), binding.kernel, binding.pc
        names = [value.name for value in binding.node.outputs]

        def execute(*inputs: Any) -> Any:
            scope = self._current
            if scope is None:
                return kernel(*inputs)
            self._owner = Owner(names[0] if names else "_", binding, scope.frame.iteration)
            self._made.clear()
            try:
                results = run(*inputs)
            except BaseException:
                self._discard(binding)
                raise
            self._keep(scope, binding, results)
            self._discard(binding)
            self.lifetimes.complete(scope, pc)
            return results

        return execute

    def _keep(self, scope: Scope, binding: Binding, results: Any) -> None:
        """The statement's frame holds what it has just made."""
        slots = target_slots(binding.code.targets[binding.pc])
        for slot, result in zip(slots, results if binding.several else (results,), strict=False):
            self.lifetimes.hold(scope, slot, result)

    def _discard(self, binding: Binding) -> None:
        """What the statement took and nobody holds is free again."""
        for block in self._made:
            if block.holders == 0 and block.freed is None:
                self._free(block, binding)
        self._made.clear()

    def _adopt(self, binding: Binding, inputs: Sequence[Any], index: int, result: Any) -> Any:
        if isinstance(result, (list, tuple)):
            # A sequence outlives the tensors that it was made of.
            return [np.array(item) if isinstance(item, np.ndarray) else item for item in result]
        assert self._owner is not None
        self._owner = Owner(binding.node.outputs[index].name, binding, self._owner.iteration)
        return super()._adopt(binding, inputs, index, result)

    # -- memory ------------------------------------------------------------------------------

    def allocate(self, shape: Sequence[int], dtype: Any, span: int) -> tuple[Array, int]:
        assert self._owner is not None
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        block = self.heap.take(span, size, self._owner)
        segment = np.asarray(block.segment)
        fill(segment[block.start - GUARD : block.start])
        fill(segment[block.start + size : block.start + block.span])
        buffer: Array = np.ndarray(shape, dtype, block.segment, block.start)
        self._made.append(block)
        key = id(buffer)
        # When the buffer goes, so does its entry; `pop` takes the dead reference as its default.
        self._blocks[key] = (weakref.ref(buffer, partial(self._blocks.pop, key)), block)
        return buffer, address_of(buffer)

    def block_of(self, content: Any) -> Block | None:
        """The block that a slot's content stands in, or stood in; None for what is not in the arena."""
        entry = self._blocks.get(id(content))
        return entry[1] if entry is not None and entry[0]() is content else None

    def _free(self, block: Block, after: Statement) -> None:
        self.heap.free(block, after)
        if self.poison:
            fill(np.asarray(block.segment)[block.start : block.start + block.span])

    # -- what is found -------------------------------------------------------------------------

    def standing(self, content: Any) -> str | None:
        block = self.block_of(content)
        return None if block is None or block.freed is None else f"its memory was {self._fate(block)}"

    def _refuse_stale(self, operands: Sequence[Any]) -> None:
        """Another machine may share values with this one only as long as they stand."""
        for value in operands:
            gone = self.standing(value)
            if gone is not None:
                block = self.block_of(value)
                assert block is not None
                raise RunError(
                    f"%{block.owner.value} stands no more: {gone}",
                    hint="use --allocator debug, where every value stands",
                )

    def _check_operands(self, statement: Statement, operands: Sequence[Any]) -> None:
        """Report each operand whose memory was freed, or has another owner by now."""
        slots = statement.code.operands[statement.pc]
        for slot, value in zip(slots, operands, strict=True):
            block = self.block_of(value)
            if block is not None and block.freed is not None:
                name, made = statement.code.names[slot], block.owner.value
                known = "" if name == made else f" (made as %{made})"
                words = f"{_verb(statement)} reads %{name}{known}, whose memory was {self._fate(block)}"
                other = block.successor.statement if block.successor is not None else block.freed
                self.report(Finding("guard", statement, words, operands, None, other))

    def _freed_again(self, block: Block, first: Statement, second: Statement) -> None:
        words = (
            f"%{block.owner.value}'s memory is freed twice: "
            f"after {self._place(first)} and after {self._place(second)}"
        )
        self.report(Finding("guard", second, words, (), None, first))

    def _fate(self, block: Block) -> str:
        assert block.freed is not None
        fate = f"freed after {self._place(block.freed)}"
        if block.successor is None:
            return fate
        statement = block.successor.statement
        return f"{fate} and reused by %{block.successor.value} ({_verb(statement)}{self._at(statement)})"

    def _place(self, statement: Statement) -> str:
        """A statement in words: `%y = Relu (line 3)`."""
        code, pc = statement.code, statement.pc
        outputs = code.nodes[pc].outputs if pc < len(code.nodes) else ()
        verb = _verb(statement)
        return (f"%{outputs[0].name} = {verb}" if outputs else verb) + f" (line {self._line(code, pc)})"

    def _at(self, statement: Statement) -> str:
        return f", line {self._line(statement.code, statement.pc)}"


def _verb(statement: Statement) -> str:
    """The op, or the word at the start of a line that is none."""
    code, pc = statement.code, statement.pc
    if pc < len(code.nodes):
        return code.nodes[pc].op
    if not isinstance(code.path[-1], int):
        return "return"
    assert code.parent is not None
    return "next" if code.parent.nodes[int(code.path[-2])].op == "while" else "yield"
