"""While the program runs: Ctrl-C pauses it, and a terminal shows how far it has come."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nncdbg.engine.session import Debugger
    from nncdbg.terminal.screen import Screen

_PATIENCE = 0.5
"""Seconds before a run is worth a word."""
_PACE = 0.2
"""Seconds between two looks."""


@contextmanager
def under_way(debugger: Debugger, screen: Screen) -> Iterator[None]:
    """The time of a run: Ctrl-C stops it within one op, its progress shows on a terminal."""
    shown = screen.is_terminal and not screen.out.is_dumb_terminal
    progress = _Progress(debugger, screen) if shown else None
    with _interrupt_calls(debugger.pause):
        if progress is not None:
            progress.start()
        try:
            yield
        finally:
            if progress is not None:
                progress.stop()


@contextmanager
def _interrupt_calls(pause: Callable[[], None]) -> Iterator[None]:
    """SIGINT calls `pause`.  Only the main thread can say so; elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: pause())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Progress:
    """A status line that comes after a while and goes at the end; it only reads the machine's tick."""

    def __init__(self, debugger: Debugger, screen: Screen) -> None:
        self.debugger = debugger
        self.screen = screen
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="nncdbg-progress", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.done.set()
        self.thread.join()

    def _watch(self) -> None:
        if self.done.wait(_PATIENCE):
            return
        file = self.screen.out.file
        while True:
            line = f"running, statement {self.debugger.machine.tick}; Ctrl-C stops"
            file.write("\r" + line[: self.screen.out.width - 1])
            file.flush()
            ended = self.done.wait(_PACE)
            file.write("\r" + " " * min(len(line), self.screen.out.width - 1) + "\r")
            file.flush()
            if ended:
                return
