"""What is known of tensors, by their identity; no tensor is kept alive by it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import ref

Origins: TypeAlias = "frozenset[int]"
"""Numbers of sightings."""

NONE: Origins = frozenset()

Known = TypeVar("Known")


class ByIdentity(Generic[Known]):
    """A record per tensor, which is dropped with the tensor."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[Any, Known]] = {}

    def __bool__(self) -> bool:
        return bool(self._entries)

    def get(self, value: Any) -> Known | None:
        """The record of a tensor; None if there is none."""
        entry = self._entries.get(id(value))
        return entry[1] if entry is not None and entry[0]() is value else None

    def set(self, value: Any, known: Known) -> None:
        self._entries[id(value)] = (self._reference(value), known)

    def _reference(self, value: Any) -> Any:
        """A weak reference; an element, which cannot be referred to so, is kept."""
        try:
            return ref(value, partial(self._entries.pop, id(value)))
        except TypeError:
            return lambda: value


class Register:
    """The origins of the trouble in tensors, per kind.  A list means what it holds."""

    def __init__(self) -> None:
        self._entries: ByIdentity[dict[str, Origins]] = ByIdentity()

    def mark(self, value: Any, kind: str, origins: Origins) -> None:
        """Note trouble of a kind; without an origin there is none."""
        if value is None or not origins or isinstance(value, (list, tuple)):
            return
        known = self._entries.get(value)
        if known is None:
            known = {}
            self._entries.set(value, known)
        known[kind] = origins

    def origins(self, value: Any, kind: str) -> Origins:
        """The origins of the trouble of a kind in a value, as far as it is noted."""
        if isinstance(value, (list, tuple)):
            return self.union(value, kind)
        known = self._entries.get(value)
        return NONE if known is None else known.get(kind, NONE)

    def union(self, values: Iterable[Any], kind: str) -> Origins:
        """The origins of several values."""
        return NONE.union(*(self.origins(value, kind) for value in values))
