"""Records of tensors by identity; a record does not keep its tensor in memory."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import ref

Origins: TypeAlias = "frozenset[int]"
"""Numbers of recorded findings."""

NONE: Origins = frozenset()

Known = TypeVar("Known")


class ByIdentity(Generic[Known]):
    """A record per tensor, which is dropped with the tensor."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[Any, Known]] = {}

    def __bool__(self) -> bool:
        return bool(self._entries)

    def get(self, value: Any) -> Known | None:
        """Return the record of a tensor; None if there is none."""
        entry = self._entries.get(id(value))
        return entry[1] if entry is not None and entry[0]() is value else None

    def set(self, value: Any, known: Known) -> None:
        self._entries[id(value)] = (self._reference(value), known)

    def _reference(self, value: Any) -> Any:
        """Return a weak reference; NumPy scalars do not support one and are kept."""
        try:
            return ref(value, partial(self._entries.pop, id(value)))
        except TypeError:
            return lambda: value


class Register:
    """The origins of bad values in tensors, per kind; a list has the origins of its items."""

    def __init__(self) -> None:
        self._entries: ByIdentity[dict[str, Origins]] = ByIdentity()

    def mark(self, value: Any, kind: str, origins: Origins) -> None:
        """Set the origins of a kind; no origins means none."""
        if value is None or not origins or isinstance(value, (list, tuple)):
            return
        known = self._entries.get(value)
        if known is None:
            known = {}
            self._entries.set(value, known)
        known[kind] = origins

    def origins(self, value: Any, kind: str) -> Origins:
        """Return the recorded origins of a kind in a value."""
        if isinstance(value, (list, tuple)):
            return self.union(value, kind)
        known = self._entries.get(value)
        return NONE if known is None else known.get(kind, NONE)

    def union(self, values: Iterable[Any], kind: str) -> Origins:
        """Return the origins of several values."""
        return NONE.union(*(self.origins(value, kind) for value in values))
