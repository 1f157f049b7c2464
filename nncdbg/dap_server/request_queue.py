"""The client's requests in order: the waiting ones, the current one, and whether the program moves."""

from __future__ import annotations

import threading

from nncdbg.dap_server.messages import Request
from nncdbg.dap_server.registry import HANDLERS
from nncdbg.dap_server.transport.backlog import Backlog
from nncdbg.engine.errors import NncdbgError


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
        self.reading = False
        self.serving = False
        self.closing = False
        self.at_hand: Request | None = None

    # -- for callers that hold `turn` ----------------------------------------------------------

    def due(self) -> bool:
        """Return whether a free thread must serve a request now."""
        return bool(self.waiting) and not self.moving and not self.serving

    def next_due(self) -> Request | None:
        """Take the request that is due, if one is; the caller is the server then."""
        if not self.due():
            return None
        self.serving = True
        return self.take()

    def take(self) -> Request:
        """Take the next request; from then on, without a gap, `cancel` finds it as the current one."""
        self.at_hand = self.waiting.popleft()
        return self.at_hand

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
            return self.take() if self.waiting and not self.closing else None

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
            waiting = self.waiting.take(number)
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
