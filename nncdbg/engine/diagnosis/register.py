"""Which tensors that stand somewhere are not what they should be, and where that came from."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, TypeAlias
from weakref import ref

Origins: TypeAlias = "frozenset[int]"
"""Numbers of sightings."""

NONE: Origins = frozenset()

MEMORY = "memory"
"""The kind of trouble that explains every other: nobody wrote this memory."""


class Register:
    """Tensors by identity, each with the origins of its trouble, per kind; none is kept alive by it.

    A list stands for what it holds.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[Any, dict[str, Origins]]] = {}

    def __bool__(self) -> bool:
        return bool(self._entries)

    def mark(self, value: Any, kind: str, origins: Origins) -> None:
        """Note trouble of a kind; without an origin there is none."""
        if value is None or not origins or isinstance(value, (list, tuple)):
            return
        known = self._of(value)
        if known is None:
            known = {}
            self._entries[id(value)] = (self._reference(value), known)
        known[kind] = origins

    def knows(self, value: Any) -> bool:
        """Whether any trouble of a tensor is noted."""
        return self._of(value) is not None

    def origins(self, value: Any, kind: str) -> Origins:
        """Where the trouble of a kind in a value came from, as far as it is noted."""
        if isinstance(value, (list, tuple)):
            return self.union(value, kind)
        known = self._of(value)
        return NONE if known is None else known.get(kind) or known.get(MEMORY, NONE)

    def union(self, values: Iterable[Any], kind: str) -> Origins:
        """The origins of several values."""
        return NONE.union(*(self.origins(value, kind) for value in values))

    def _of(self, value: Any) -> dict[str, Origins] | None:
        reference, known = self._entries.get(id(value), (None, {}))
        return known if reference is not None and reference() is value else None

    def _reference(self, value: Any) -> Any:
        """A way to a tensor that does not keep it; an element, which cannot be referred to so, is kept."""
        try:
            return ref(value, partial(self._entries.pop, id(value)))
        except TypeError:
            return lambda: value
