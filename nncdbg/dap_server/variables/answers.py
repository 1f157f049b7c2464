"""Cache of answers computed from arrays: a pinned view requests the same at every stop."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import count
from typing import Any, TypeVar

import numpy as np

from nncdbg.by_identity import ByIdentity

MOST = 8
"""Cached answers; each has a few MiB at most."""

Answer = TypeVar("Answer")


class Answers:
    """The latest answers, valid while arrays keep their content (as the given predicate returns)."""

    def __init__(self, keeps_content: Callable[[], bool]) -> None:
        self._keeps_content = keeps_content
        self._known: dict[tuple[int, Hashable], Any] = {}
        """By the version of the array, and the question."""
        self._versions: ByIdentity[int] = ByIdentity()
        self._next = count(1).__next__

    def version(self, content: Any) -> int | None:
        """The unique version number of an array; None if its content may change."""
        if not isinstance(content, np.ndarray) or not self._keeps_content():
            return None
        known = self._versions.get(content)
        if known is None:
            known = self._next()
            self._versions.set(content, known)
        return known

    def once(self, content: Any, question: Hashable, compute: Callable[[], Answer]) -> Answer:
        """Return the answer to a question about an array, computed once for this very array."""
        version = self.version(content)
        if version is None:
            return compute()
        key = version, question
        answer: Answer = self._known.pop(key) if key in self._known else compute()
        self._known[key] = answer
        if len(self._known) > MOST:
            del self._known[next(iter(self._known))]
        return answer
