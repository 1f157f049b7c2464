"""Straight lines of statements with places in the arena that are known from an earlier run.

The holes of the arena, and the blocks taken and freed since, determine where a block goes. So a run of
statements that begins with the same holes takes the same places, without a search.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.memory.blocks import MemoryBlock
from nncdbg.engine.memory.buffers import GUARD, pattern_between
from nncdbg.engine.memory.segment import Segment
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
