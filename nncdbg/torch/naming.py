"""FreeNames of values and graphs in a recorded program."""

from __future__ import annotations


class FreeNames:
    """Free names: the wanted one, or with the first free number: ``mm``, ``mm.1``, ``mm.2``."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def fresh(self, wanted: str) -> str:
        """Return a name that was not returned before."""
        name, number = wanted, self._next.get(wanted, 0)
        while name in self._taken:
            number += 1
            name = f"{wanted}.{number}"
        self._next[wanted] = number
        self._taken.add(name)
        return name

    def take(self, wanted: str) -> bool:
        """Take a name; return False if it is taken already."""
        if wanted in self._taken:
            return False
        self._taken.add(wanted)
        return True

    def next_version(self, name: str) -> str:
        """Return the name of the next value of what `name` is a value of: ``w.2`` after ``w.1``."""
        base, dot, number = name.rpartition(".")
        known = dot and number.isdigit() and base in self._next and int(number) <= self._next[base]
        return self.fresh(base if known else name)
