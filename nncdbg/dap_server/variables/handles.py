"""Reference numbers for places in a program that a client may request later.

The same place keeps its number throughout the session, so that expanded variables stay expanded from stop to
stop.  A number whose place is gone resolves to nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

FIRST = 1000
KEPT = 1 << 16
"""Stored places; beyond that the least recently used ones are dropped."""


class Handles:
    """Maps places to numbers and back.  A place is a hashable record from which it can be found again."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._places: dict[int, Any] = {}
        """In order of use, the latest at the end."""
        self._next = FIRST

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
