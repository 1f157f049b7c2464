"""Numbers for places in a program that a client may ask about later.

The same place has the same number as long as the session lasts, so that what a person has
expanded stays expanded from stop to stop.  A number whose place is gone resolves to nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

FIRST = 1000
KEPT = 1 << 16
"""Places remembered; beyond that the ones not asked for longest are forgotten."""


class Handles:
    """Places to numbers and back.  A place is a hashable record that says how to find it anew."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._places: dict[int, Any] = {}
        self._next = FIRST

    def __len__(self) -> int:
        return len(self._places)

    def number(self, place: Hashable) -> int:
        """The number of a place, from 1000 up."""
        number = self._numbers.pop(place, None)
        if number is None:
            number = self._next
            self._next += 1
            self._places[number] = place
            if len(self._places) > KEPT:
                oldest = next(iter(self._numbers))
                del self._places[self._numbers.pop(oldest)]
        # The last one of the dictionary is the one asked for last.
        self._numbers[place] = number
        return number

    def place(self, number: int) -> Any | None:
        """The place with a number; None if there is none."""
        place = self._places.get(number)
        if place is not None:
            self._numbers[place] = self._numbers.pop(place)
        return place
