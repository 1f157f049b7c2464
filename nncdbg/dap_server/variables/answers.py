"""Cache of answers computed from arrays: a pinned view requests the same at every stop."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from functools import partial
from itertools import count
from typing import Any, TypeVar

import numpy as np

MOST = 8
"""Cached answers; each has a few MiB at most."""

Answer = TypeVar("Answer")


class Answers:
    """The latest answers, valid while arrays keep their content (as the given predicate returns)."""

    def __init__(self, stands: Callable[[], bool]) -> None:
        self._stands = stands
        self._known: dict[tuple[int, Hashable], tuple[weakref.ref[Any], Any]] = {}
        self._versions: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._next = count(1).__next__

    def version(self, content: Any) -> int | None:
        """The unique version number of an array; None if its content may change."""
        if not isinstance(content, np.ndarray) or not self._stands():
            return None
        known = self._versions.get(id(content))
        if known is None or known[0]() is not content:
            # When the array is freed, its entry is removed; `pop` takes the dead reference as its default.
            gone = partial(self._versions.pop, id(content))
            known = self._versions[id(content)] = weakref.ref(content, gone), self._next()
        return known[1]

    def once(self, content: Any, question: Hashable, compute: Callable[[], Answer]) -> Answer:
        """Return the answer to a question about an array, computed once for this very array."""
        if not isinstance(content, np.ndarray) or not self._stands():
            return compute()
        key = id(content), question
        known = self._known.pop(key, None)
        answer: Answer = compute() if known is None or known[0]() is not content else known[1]
        self._known[key] = weakref.ref(content), answer
        if len(self._known) > MOST:
            del self._known[next(iter(self._known))]
        return answer
