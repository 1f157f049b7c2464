"""Entries of values by identity: arrays are not hashable, and equal arrays have separate entries."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import ref

Entry = TypeVar("Entry")


class ByIdentity(Generic[Entry]):
    """A dict with values as keys, compared by `is`.

    A value is referenced weakly, and its entry is removed with it. Values without weak references (NumPy
    scalars, sequences) are kept in memory until their entry is removed; with `weak_only` they get no entry.
    An entry is never found by another value with a reused id.

    `by_id` maps ids to (reference, entry), for loops that cannot afford the calls. A live value whose id is
    in `by_id` has that entry.
    """

    __slots__ = ("by_id", "_weak_only")

    def __init__(self, *, weak_only: bool = False) -> None:
        self.by_id: dict[int, tuple[Callable[[], Any], Entry]] = {}
        self._weak_only = weak_only

    def __len__(self) -> int:
        return len(self.by_id)

    def __contains__(self, value: Any) -> bool:
        return id(value) in self.by_id

    def get(self, value: Any) -> Entry | None:
        """Return the entry of a value, or None."""
        found = self.by_id.get(id(value))
        return found[1] if found is not None and found[0]() is value else None

    def set(self, value: Any, entry: Entry) -> None:
        """Set the entry of a value."""
        by_id, key = self.by_id, id(value)
        try:
            # `pop` receives the dead reference as its default.
            by_id[key] = ref(value, partial(by_id.pop, key)), entry
        except TypeError:
            if not self._weak_only:
                by_id[key] = lambda: value, entry

    def pop(self, value: Any) -> Entry | None:
        """Remove the entry of a value and return it; return None without one."""
        found = self.by_id.pop(id(value), None)
        return None if found is None else found[1]

    def clear(self) -> None:
        """Remove all entries."""
        self.by_id.clear()
