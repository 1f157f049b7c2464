"""The queue of waiting requests, with its limits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nncdbg.dap_server.messages import Request

MOST = 1000
"""Most waiting requests."""

MOST_BYTES = 32 << 20
"""Most bytes of arguments of waiting requests."""

STUCK = 0.5
"""Seconds without a served request after which waiting for room ends."""


class Backlog:
    """A bounded queue; callers hold `turn`.

    While requests are served, the reader waits for room, which slows down a client that is too fast.  If none
    is served for a while (a long op), the reader must continue, to receive `pause`, `cancel` and
    `disconnect`: then requests that find no room are refused.
    """

    def __init__(self, turn: threading.Condition) -> None:
        self._turn = turn
        self._requests: deque[Request] = deque()
        self._bytes = 0
        self._taken = 0
        self._stuck_at = -1

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def append(self, request: Request) -> bool:
        """Append a request, waiting for room as described above; return False if there is none."""
        size = len(request.arguments or b"")
        while self._full(size):
            taken = self._taken
            if taken == self._stuck_at:
                return False
            if not self._turn.wait_for(lambda taken=taken: self._taken != taken, STUCK):  # type: ignore[misc]
                self._stuck_at = taken
        self._requests.append(request)
        self._bytes += size
        self._turn.notify_all()
        return True

    def _full(self, size: int) -> bool:
        return len(self._requests) >= MOST or (bool(self._requests) and self._bytes + size > MOST_BYTES)

    def popleft(self) -> Request:
        """Remove and return the oldest request."""
        request = self._requests.popleft()
        self._bytes -= len(request.arguments or b"")
        self._taken += 1
        self._turn.notify_all()
        return request

    def take(self, number: int) -> Request | None:
        """Remove and return the request with this number; None if it does not wait."""
        request = next((each for each in self._requests if each.seq == number), None)
        if request is not None:
            self._requests.remove(request)
            self._bytes -= len(request.arguments or b"")
            self._taken += 1
            self._turn.notify_all()
        return request

    def clear(self) -> None:
        self._requests.clear()
        self._bytes = 0
        self._taken += 1
        self._turn.notify_all()
