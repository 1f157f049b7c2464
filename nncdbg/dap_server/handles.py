"""Numbers that a client may send back later: of places in a program, and addresses of statements.

The same place keeps its number throughout the session, so that expanded variables stay expanded from stop to
stop.  A number whose place is gone resolves to nothing.

An address is the number of a block, and the statement's index in it.  A block is a graph, a branch or a loop,
of the program or of a micro program.  Its statements are the protocol's instructions; the block's last line
is the last of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from nncdbg.ir.records import Path

if TYPE_CHECKING:
    from nncdbg.target.records import Place
    from nncdbg.target.target import Target

FIRST_PLACE = 1000
KEPT = 1 << 16
"""Stored places; beyond that the least recently used ones are dropped."""


class Handles:
    """Maps places to numbers and back.  A place is a hashable record from which it can be found again."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._places: dict[int, Any] = {}
        """In order of use, the latest at the end."""
        self._next = FIRST_PLACE

    def __len__(self) -> int:
        return len(self._places)

    def number(self, place: Hashable) -> int:
        """The number of a place, from 1000 up."""
        number = self._numbers.get(place)
        if number is not None:
            self._places[number] = self._places.pop(number)
            return number
        number = self._numbers[place] = self._next
        self._next += 1
        self._places[number] = place
        if len(self._places) > KEPT:
            oldest = next(iter(self._places))
            del self._numbers[self._places.pop(oldest)]
        return number

    def place(self, number: int) -> Any | None:
        """The place with a number; None if there is none."""
        place = self._places.pop(number, None)
        if place is not None:
            self._places[number] = place
        return place

    def refresh(self, numbers: Iterable[int]) -> bool:
        """Return whether all of these are still numbers of places; this counts as a use."""
        places = self._places
        for number in numbers:
            place = places.pop(number, None)
            if place is None:
                return False
            places[number] = place
        return True


BITS = 20
"""Address bits for the statement's index in the block; a longer block takes several numbers."""

FIRST_BLOCK = 1 << 12
"""The first block's number: high enough that a 31-bit offset never leads below 0."""

Key: TypeAlias = "tuple[int, Path, int]"
"""(run of the program, or 0 for all of them; path; index among the blocks there)."""


@dataclass(eq=False)
class BlockAddresses:
    """The blocks that were requested, numbered one after the other.

    A block of the program keeps its number when the program is restarted.  A block of a micro program does
    not: it does not identify the statement that it was entered from.
    """

    _numbers: dict[Key, int] = field(default_factory=dict)
    _firsts: list[int] = field(default_factory=list)
    _keys: list[Key] = field(default_factory=list)
    _next: int = FIRST_BLOCK
    _runs: int = 0
    _target: Target | None = None
    _key_of: dict[int, Key] = field(default_factory=dict)
    """By `Place.block`."""
    _block_of: dict[Key, Place] = field(default_factory=dict)
    _alike: Counter[Path] = field(default_factory=Counter)

    def number(self, target: Target, place: Place) -> int:
        """The number of the block of a place in a program."""
        self._add_compiled(target)
        key = self._key_of[place.block]
        if key not in self._numbers:
            self._numbers[key] = self._next
            self._firsts.append(self._next)
            self._keys.append(key)
            self._next += 1 + (len(place.graph.nodes) >> BITS)
        return self._numbers[key]

    def at(self, target: Target, address: int) -> Place | None:
        """The statement at an address; None if this program has none there yet."""
        self._add_compiled(target)
        number = bisect_right(self._firsts, address >> BITS) - 1
        block = self._block_of.get(self._keys[number]) if number >= 0 else None
        if block is None:
            return None
        pc = address - (self._firsts[number] << BITS)
        return block.at(pc) if pc <= len(block.graph.nodes) else None

    def _add_compiled(self, target: Target) -> None:
        """Add the blocks compiled since the last call."""
        if target is not self._target:
            if target != self._target:
                self._runs += 1
            self._target = target
            self._key_of.clear()
            self._block_of.clear()
            self._alike.clear()
        for number, block in enumerate(target.blocks(len(self._key_of)), len(self._key_of)):
            if block.micro is None:
                # A graph has one block for each combination of element types of its inputs.
                key: Key = (0, block.path, self._alike[block.path])
                self._alike[block.path] += 1
            else:
                key = (self._runs, block.path, number)
            self._key_of[block.block] = key
            self._block_of[key] = block
