"""Blocks of an arena: their owner, the statement that freed them, and their successor.

Best fit over a sorted list of holes; adjacent holes are merged. A hole remembers the blocks that were
freed into it until their bytes are reused, so that a stale read can be reported with both sites.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from operator import attrgetter

from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.memory.buffers import ALIGNMENT, GUARD, address_of
from nncdbg.engine.memory.region import MemoryRegion, Segment
from nncdbg.ir.records import Path

_CHUNK = 1 << 20
_LEAST = ALIGNMENT + GUARD
"""Minimum size in bytes of a remainder that becomes a separate hole."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a block: a value, the statement that wrote it, and the iteration of its loop.

    `home` is the block of the program that defines the value, if it is not the statement's.
    """

    value: str
    statement: Statement
    iteration: int = 0
    home: Code | None = None

    @property
    def code(self) -> Code:
        return self.home or self.statement.code

    @property
    def site(self) -> tuple[Path, str]:
        return self.code.path, self.value


@dataclass(slots=True, eq=False)
class MemoryBlock:
    """`span` bytes at offset `start` of a segment: a buffer of `size` bytes and the guard after it.

    `holders` counts the slots that hold the block. `freed` is the statement after which the last holder
    released it, None while the block is live. `successor` is the first owner to reuse some of its
    bytes, and `taken` is their range, counted from the start of the segment.
    """

    number: int
    """Index of the segment, in the order of allocation."""
    segment: Segment
    start: int
    span: int
    size: int
    owner: Owner
    holders: int = 0
    freed: Statement | None = None
    successor: Owner | None = None
    taken: tuple[int, int] | None = None

    def overlap(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the bytes of its buffer from `start` to `end` of the segment; None if there are none."""
        own = self.start
        first = start if start > own else own
        last = end if end < own + self.size else own + self.size
        return (first, last) if first < last else None


@dataclass(slots=True, eq=False)
class Hole:
    """Free bytes of a segment."""

    number: int
    segment: Segment
    start: int
    span: int
    graves: list[MemoryBlock] = field(default_factory=list)
    """Freed blocks with bytes that are not overwritten yet."""


class Heap:
    """A growing arena; `peak_bytes` is the largest total size of its blocks so far."""

    def __init__(self, region: MemoryRegion | None = None) -> None:
        self.region = region or MemoryRegion()
        self.segments: list[Segment] = []
        self._holes: list[Hole] = []
        self.bases: list[int] = []
        """The address of each segment."""
        self.raw: list[memoryview] = []
        """The bytes of each segment."""
        self.live_bytes = 0
        self.peak_bytes = 0

    def take(self, span: int, size: int, owner: Owner) -> MemoryBlock:
        """Take a block of at least `span` bytes from the smallest hole that fits, without clearing it."""
        hole = self._fitting(span) or self._grow(span)
        if hole.span - span < _LEAST:
            span = hole.span
        block = MemoryBlock(hole.number, hole.segment, hole.start, span, size, owner)
        hole.start += span
        hole.span -= span
        if hole.graves:
            hole.graves = [grave for grave in hole.graves if not _succeeds(block, grave)]
        if hole.span == 0:
            self._holes.remove(hole)
        self.live_bytes += span
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes = self.live_bytes
        return block

    @property
    def layout(self) -> tuple[tuple[int, int, int], ...]:
        """Return (segment, start, span) of each hole, which determines the places of the next blocks."""
        return tuple((hole.number, hole.start, hole.span) for hole in self._holes)

    def _fitting(self, span: int) -> Hole | None:
        """Return the smallest hole of at least `span` bytes, the first of equals."""
        found = None
        for hole in self._holes:
            if hole.span >= span and (found is None or hole.span < found.span):
                found = hole
        return found

    def free(self, block: MemoryBlock, after: Statement) -> None:
        """Free a live block."""
        assert block.freed is None
        block.freed = after
        self.live_bytes -= block.span
        hole = Hole(block.number, block.segment, block.start, block.span, [block])
        index = bisect_left(self._holes, (block.number, block.start), key=attrgetter("number", "start"))
        self._holes.insert(index, hole)
        self._join(index)
        self._join(index - 1)

    def _join(self, index: int) -> None:
        """Merge the holes at `index` and after it, if they are adjacent."""
        if not 0 <= index < len(self._holes) - 1:
            return
        hole, after = self._holes[index], self._holes[index + 1]
        if hole.number == after.number and hole.start + hole.span == after.start:
            hole.span += after.span
            hole.graves += after.graves
            del self._holes[index + 1]

    def _grow(self, span: int) -> Hole:
        segment = self.region.segment(max(_CHUNK, span + GUARD))
        self.bases.append(address_of(segment))
        self.raw.append(memoryview(segment))  # type: ignore[arg-type]
        hole = Hole(len(self.segments), segment, GUARD, len(segment) - GUARD)
        self.segments.append(segment)
        self._holes.append(hole)
        return hole


def _succeeds(block: MemoryBlock, grave: MemoryBlock) -> bool:
    """Whether a new block overlaps a freed one; if so, set the successor of the freed one."""
    if block.start >= grave.start + grave.span or grave.start >= block.start + block.span:
        return False
    grave.successor = block.owner
    grave.taken = grave.overlap(block.start, block.start + block.span)
    return True
