"""The end of a server's process on a signal."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from nncdbg.engine.process.threads import BackgroundThread

GRACE = 2.0
"""Seconds within which an op may finish after the signal; then the process ends without it."""

_ENDING = (signal.SIGINT, signal.SIGTERM)
_OVER = 0
"""Written in place of a signal: there is no signal to wait for any more."""


@contextlib.contextmanager
def ending_on_signals(end: Callable[[int], None]) -> Iterator[list[int]]:
    """Call `end` with the exit code on SIGINT or SIGTERM, even while an op blocks the main thread.

    Yields the list of received signals.  A process that has not ended within `GRACE` is ended.  A thread
    receives the first signal through the descriptor to which Python writes signals.
    """
    caught: list[int] = []
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    over = threading.Event()

    def watch() -> None:
        while (number := os.read(readable, 1)[0]) not in ends:
            pass
        if number == _OVER:
            return
        caught.append(number)
        BackgroundThread(target=end, args=(128 + number,), name="nncdbg-dap-end").start()
        if not over.wait(GRACE):
            os._exit(128 + number)

    def nothing(number: int, frame: FrameType | None) -> None:
        """Do nothing: Python writes a signal to the descriptor only if it has a handler."""

    ends = (_OVER, *_ENDING)
    before = {number: signal.signal(number, nothing) for number in _ENDING}
    descriptor = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    watcher = BackgroundThread(target=watch, name="nncdbg-dap-signals")
    watcher.start()
    try:
        yield caught
    finally:
        over.set()
        signal.set_wakeup_fd(descriptor)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.write(writable, bytes([_OVER]))
        watcher.join()
        os.close(readable)
        os.close(writable)
