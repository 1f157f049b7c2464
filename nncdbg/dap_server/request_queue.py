"""The client's requests in order: the waiting ones with their limits, and the current one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

from nncdbg.dap_server.messages import Request
from nncdbg.dap_server.registry import HANDLERS
from nncdbg.errors import NncdbgError

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

    def take(self, wanted: Callable[[Request], bool]) -> Request | None:
        """Remove and return the oldest request that is `wanted`; None if there is none."""
        for index, request in enumerate(self._requests):
            if wanted(request):
                del self._requests[index]
                self._bytes -= len(request.arguments or b"")
                self._taken += 1
                self._turn.notify_all()
                return request
        return None

    def clear(self) -> None:
        self._requests.clear()
        self._bytes = 0
        self._taken += 1
        self._turn.notify_all()


def moves(request: Request) -> bool:
    """Return whether a request moves the program."""
    handler = HANDLERS.get(request.command)
    return handler is not None and handler.moves


class Cancelled(NncdbgError):
    """The client has cancelled the request."""


class RequestQueue:
    """Queue of one session's requests.

    `turn` guards all of it.  `closing` is set when the session is over.
    """

    def __init__(self) -> None:
        self.turn = threading.Condition()
        self.waiting = Backlog(self.turn)
        self.moving = False
        """Whether the program moves."""
        self.stepping = False
        """Whether it makes a step: requests that move it wait for the next stop, as keys are faster."""
        self.reading = False
        self.serving = False
        self.closing = False
        self.at_hand: Request | None = None

    # -- for callers that hold `turn` ----------------------------------------------------------

    def due(self) -> bool:
        """Return whether a free thread must serve a request now."""
        return any(map(self._fits, self.waiting)) and not self.moving and not self.serving

    def _fits(self, request: Request) -> bool:
        return not (self.stepping and moves(request))

    def next_due(self) -> Request | None:
        """Take the request that is due, if one is; the caller is the server then."""
        if not self.due():
            return None
        self.serving = True
        return self._take()

    def _take(self) -> Request | None:
        """Take the next request; from then on, without a gap, `cancel` finds it as the current one."""
        request = self.waiting.take(self._fits)
        self.at_hand = request or self.at_hand
        return request

    def cancel_reads(self) -> None:
        """Cancel requests that read values of the place that the program leaves."""
        for each in (*self.waiting, *filter(None, [self.at_hand])):
            handler = HANDLERS.get(each.command)
            if handler is not None and handler.is_read(each.arguments):
                each.cancelled = True

    # -- for callers that do not hold `turn` -------------------------------------------------------

    def take_waiting(self) -> Request | None:
        """Take the next request, whether the program moves or not; None if none waits."""
        with self.turn:
            return None if self.closing else self._take()

    def take_moves(self) -> Iterator[Request]:
        """Take the waiting requests that move the program."""
        with self.turn:
            while (request := self.waiting.take(moves)) is not None:
                yield request

    def put_down(self, request: Request) -> None:
        """Note that a request is served; another thread may have taken the next one by now."""
        with self.turn:
            if self.at_hand is request:
                self.at_hand = None

    def next_after(self, request: Request) -> Request | None:
        """Note that the server has served a request; return the next one that is due."""
        with self.turn:
            self.serving = False
            self.put_down(request)
            self.turn.notify_all()
            return None if self.closing else self.next_due()

    def cancel(self, number: int) -> Request | None:
        """Cancel a request; return it if it was waiting, and so has no response yet."""
        with self.turn:
            waiting = self.waiting.take(lambda request: request.seq == number)
            if waiting is None and self.at_hand is not None and self.at_hand.seq == number:
                self.at_hand.cancelled = True
        return waiting

    def check_cancelled(self, request: Request | None = None) -> None:
        """Raise Cancelled if the current request is cancelled.  Long reads call it repeatedly."""
        request = request or self.at_hand
        if request is not None and request.cancelled:
            raise Cancelled("cancelled")

    def ended(self, timeout: float | None) -> bool:
        """Return whether the session ends within `timeout` seconds; None waits for its end."""
        with self.turn:
            return self.turn.wait_for(lambda: self.closing, timeout)

    def close(self) -> bool:
        """Drop waiting requests; return False if it was closed before."""
        with self.turn:
            if self.closing:
                return False
            self.closing = True
            self.waiting.clear()
            if self.at_hand is not None:
                self.at_hand.cancelled = True
            self.turn.notify_all()
        return True
