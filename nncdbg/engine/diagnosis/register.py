"""Records of tensors by identity; a record does not keep its tensor in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from nncdbg.by_identity import ByIdentity

Origins: TypeAlias = "frozenset[int]"
"""Numbers of recorded findings."""

NONE: Origins = frozenset()


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
