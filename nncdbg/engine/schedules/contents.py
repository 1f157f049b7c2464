"""What the memory of each value holds while launches run in some order, byte by byte.

The state follows from the order alone: no value is computed.  A read finds its value, or `Piece`s of other
values, and poison in the bytes that nothing has written or that were freed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nncdbg.engine.schedules.launches import Access, Memory
from nncdbg.ir.records import Array

_OUTSIDE, _FREED = -1, -2


class Piece(NamedTuple):
    """`size` bytes from byte `offset` of value `name`, at byte `start` of what is read."""

    name: str
    start: int
    offset: int
    size: int


class Contents:
    """The memory of the values of a block while it runs.

    `memory` is that of each value, `made` are the values that the block computes, and `owners` maps a value
    that shares the bytes of another one to it.  Values from outside the block are intact when it begins.
    """

    def __init__(
        self,
        memory: Mapping[str, Memory],
        made: set[str],
        owners: Mapping[str, str],
    ) -> None:
        self.memory, self.made, self.owners = memory, made, owners
        self._freed: set[str] = set()
        self._computed: set[str] = set()
        placed = [each for each in memory.values() if each.buffer == 0]
        bounds = sorted({bound for each in placed for bound in (each.begin, each.end)})
        self._place = {bound: at for at, bound in enumerate(bounds)}
        self._bounds = bounds
        self._writers = np.full(len(bounds), _OUTSIDE, np.int64)
        """The number of the value that has written each range of bytes."""
        self._written: list[str] = []
        self._seen: dict[str, Array] = {}
        """The writers of the bytes of each value when its statement ended."""

    def run(self, names: Sequence[str], accesses: Sequence[Access]) -> None:
        """Run a statement that computes these values with these accesses."""
        frees = [access.memory for access in accesses if access.frees]
        writes = {access.memory.name for access in accesses if access.writes and not access.frees}
        for name in names:
            memory = self.memory.get(name)
            if memory is None:
                continue
            self._computed.add(name)
            self._freed.discard(name)
            if memory.buffer == 0:
                if name in writes:
                    self._range(memory)[...] = len(self._written)
                    self._written.append(name)
                self._seen[name] = self._range(memory).copy()
        for memory in frees:
            if memory.buffer == 0:
                self._range(memory)[...] = _FREED
            else:
                self._freed.add(memory.name)

    def read(self, name: str) -> tuple[Piece, ...] | None:
        """Return what the memory of a value holds: None for the value itself."""
        memory = self.memory.get(name)
        if memory is None:
            return None
        if memory.buffer != 0:
            return None if self.computed(name) and name not in self._freed else ()
        now = self._range(memory)
        if name in self.made:
            seen = self._seen.get(name)
            if seen is not None and np.array_equal(seen, now):
                return None
        elif (now == _OUTSIDE).all():
            return None
        return self._pieces(name, memory, now)

    def computed(self, name: str) -> bool:
        """Return whether the statement of a value has run; True for values from outside the block."""
        return name in self._computed or name not in self.made

    def _range(self, memory: Memory) -> Array:
        return self._writers[self._place[memory.begin] : self._place[memory.end]]

    def _pieces(self, name: str, memory: Memory, writers: Array) -> tuple[Piece, ...]:
        """Return the parts of what is read, one per run of bytes with the same writer."""
        owner = self.owners.get(name, name)
        outside = owner if owner not in self.made else None
        first = self._place[memory.begin]
        found: list[Piece] = []
        for at, writer in enumerate(writers.tolist()):
            begin, end = self._bounds[first + at], self._bounds[first + at + 1]
            source = outside if writer == _OUTSIDE else None if writer == _FREED else self._written[writer]
            if source is None:
                continue
            start, offset = begin - memory.begin, begin - self.memory[source].begin
            last = found[-1] if found else None
            if last and last.name == source and last.start + last.size == start:
                found[-1] = last._replace(size=last.size + end - begin)
            else:
                found.append(Piece(source, start, offset, end - begin))
        return tuple(found)
