"""Which launch wrote the bytes that another one reads.

Each write makes a value with its bytes.  A read of bytes that no launch of the log has written reads a value
from before the log.  A value of which launches read or overwrite parts is divided into pieces, so that each
access concerns exactly the bytes that it uses.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from nncdbg.opening.schedule_logs.records import ByteRange


@dataclass(eq=False)
class WrittenBytes:
    """The bytes of a write, or of a value from before the log; `cuts` are the bounds of its pieces."""

    bytes: ByteRange
    cuts: set[int] = field(default_factory=set)

    @cached_property
    def bounds(self) -> list[int]:
        """The first byte of each piece, and the end of the last one, once all reads have divided it."""
        return [self.bytes.begin, *sorted(self.cuts), self.bytes.end]

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the first byte and the end of each piece between two bounds."""
        first, last = bisect_left(self.bounds, begin), bisect_left(self.bounds, end)
        return pairwise(self.bounds[first : last + 1])


class ReadPart(NamedTuple):
    """The bytes `begin` to `end` of a write that a launch reads."""

    source: WrittenBytes
    begin: int
    end: int


class ByteMap:
    """The latest write of each byte."""

    def __init__(self) -> None:
        self.before: list[WrittenBytes] = []
        """The values from before the log, in the order of their first use."""
        self._begins: list[int] = []
        self._parts: list[ReadPart] = []

    def read(self, read: ByteRange) -> list[ReadPart]:
        """Return what a read reads, and divide the values at its ends."""
        found = []
        at = read.begin
        for part in self._overlapping(read):
            if at < part.begin:
                found.append(self._enter_before(read, at, part.begin))
            found.append(ReadPart(part.source, max(part.begin, read.begin), min(part.end, read.end)))
            at = part.end
        if at < read.end:
            found.append(self._enter_before(read, at, read.end))
        for source, begin, end in found:
            source.cuts |= {begin, end} - {source.bytes.begin, source.bytes.end}
        return found

    def write(self, written: ByteRange) -> WrittenBytes:
        """Enter a write as the latest of its bytes."""
        source = WrittenBytes(written)
        self._enter(ReadPart(source, written.begin, written.end))
        return source

    def _enter_before(self, read: ByteRange, begin: int, end: int) -> ReadPart:
        whole = (begin, end) == (read.begin, read.end)
        source = WrittenBytes(ByteRange(begin, end, read.type if whole else None, read.name))
        self.before.append(source)
        part = ReadPart(source, begin, end)
        self._enter(part)
        return part

    def _enter(self, new: ReadPart) -> None:
        old = self._overlapping(new)
        kept = [new]
        if old and old[0].begin < new.begin:
            kept.insert(0, old[0]._replace(end=new.begin))
        if old and old[-1].end > new.end:
            kept.append(old[-1]._replace(begin=new.end))
        at = bisect_left(self._begins, old[0].begin if old else new.begin)
        self._begins[at : at + len(old)] = [part.begin for part in kept]
        self._parts[at : at + len(old)] = kept

    def _overlapping(self, bytes: ByteRange | ReadPart) -> Sequence[ReadPart]:
        first = bisect_right(self._begins, bytes.begin) - 1
        if first < 0 or self._parts[first].end <= bytes.begin:
            first += 1
        return self._parts[first : bisect_left(self._begins, bytes.end, first)]
