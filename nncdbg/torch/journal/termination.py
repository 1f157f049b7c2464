"""Do something before SIGTERM ends the process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType


class Terminated(BaseException):
    """SIGTERM has come.  No `except Exception` of a user stops it, so blocks of the training end."""


class TerminationHandler:
    """Calls `terminated` when SIGTERM comes, before the handler that the script has.

    Without a handler of the script, Terminated is raised where the training is, so that the recorder can
    record the step; `finish` then ends the process as SIGTERM does.  Only the main thread can have handlers:
    on another one, this does nothing.  `when_free` calls a function as soon as the journal can be written.
    """

    def __init__(
        self, terminated: Callable[[], None], when_free: Callable[[Callable[[], None]], None]
    ) -> None:
        self._terminated = terminated
        self._when_free = when_free
        self._before: object = None
        self._installed = False
        self._process = os.getpid()

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._before = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, self._handle)
        self._installed = True

    def remove(self) -> None:
        """Restore the handler of the script, unless it has installed another one meanwhile."""
        if self._installed and signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._previous())
        self._installed = False

    def finish(self) -> None:
        """End the process by SIGTERM, or call the handler that the script has."""
        self.remove()
        signal.raise_signal(signal.SIGTERM)

    def _previous(self) -> signal.Handlers:
        """Return the handler of the script; one that was not installed from Python counts as the default."""
        return signal.SIG_DFL if self._before is None else self._before  # type: ignore[return-value]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            self.finish()
        else:
            self._when_free(partial(self._end, number, frame))

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._terminated()
        before = self._before
        if callable(before):
            before(number, frame)
        elif before != signal.SIG_IGN:
            raise Terminated


@contextmanager
def deferred_termination() -> Iterator[Callable[[], bool]]:
    """Let SIGTERM wait for the end of the block; yield a function that returns whether it has come.

    Only the main thread can have handlers: on another one, this does nothing.
    """
    came = False

    def defer(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, defer)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
        if came:
            signal.raise_signal(signal.SIGTERM)
