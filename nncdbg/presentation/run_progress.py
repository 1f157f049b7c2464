"""Progress of a run: Ctrl-C pauses it, and a terminal shows a status line."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from nncdbg.process.threads import BackgroundThread
from nncdbg.stats import prepare

if TYPE_CHECKING:
    from nncdbg.opening.progress import Around, RunInProgress, RunningProgram
    from nncdbg.presentation.screen import Screen

_PATIENCE = 0.5
"""Seconds before a run shows a status line."""
_PACE = 0.2
"""Seconds between two updates."""


@contextmanager
def under_way(
    run: RunInProgress, screen: Screen, pause: Callable[[], None] | None = None, activity: str = "running"
) -> Iterator[None]:
    """Pause the run within one op on Ctrl-C, and show its progress on a terminal, after the word `activity`.

    With `pause`, Ctrl-C calls that instead. Logpoint messages are printed as they arrive, or at the end.
    """
    progress = _Progress(run, screen, activity)
    with hearing(signal.SIGINT, pause or run.pause):
        progress.start()
        try:
            yield
        finally:
            progress.stop()
            print_messages(run, screen)


def shown(screen: Screen, activity: str = "running", *, notes: bool = True) -> Around:
    """Return what shows a run: its progress, its messages as notes, and at its first call those on inputs."""
    new = notes

    def around(run: RunningProgram) -> AbstractContextManager[None]:
        nonlocal new
        if new:
            print_notes(run.notes, screen)
            new = False
        note_messages(run, screen)
        return under_way(run, screen, activity=activity)

    return around


@contextmanager
def case_progress(screen: Screen) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal while cases run; yields a function of the finished and all cases."""
    if not screen.err.is_terminal or screen.err.is_dumb_terminal:
        yield lambda done, total: None
        return
    from rich.progress import Progress

    with Progress(console=screen.err, transient=True) as bar:
        task = bar.add_task("cases", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_messages(run: RunInProgress, screen: Screen) -> None:
    """Print the logpoint messages since the last call."""
    for message in run.messages():
        screen.put(message)


def note_messages(run: RunningProgram, screen: Screen, side: str = "") -> None:
    """Print messages as notes on standard error, for a command with a result on standard output."""
    run.hear(lambda message: screen.note(f"{side}{message}"))


def print_notes(notes: Iterable[object], screen: Screen) -> None:
    """Print the notes on the inputs on standard error."""
    for note in notes:
        screen.note(str(note))


@contextmanager
def hearing(number: signal.Signals, action: Callable[[], None]) -> Iterator[None]:
    """Call `action` on a signal. Outside the main thread, which cannot set handlers, does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, lambda number, frame: action())
    try:
        yield
    finally:
        signal.signal(number, before)


class _Progress:
    """Prints messages and, on a terminal, a delayed status line; only reads the tick of the machine."""

    def __init__(self, run: RunInProgress, screen: Screen, activity: str) -> None:
        self.run = run
        self.screen = screen
        self.activity = activity
        self.done = threading.Event()
        self.thread = BackgroundThread(target=self._watch, name="nncdbg-progress")

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.done.set()
        self.thread.join()

    def _watch(self) -> None:
        if self.done.wait(_PATIENCE):
            return
        # A run this long benefits from compiled statistics; a short script would only wait for them.
        prepare()
        while True:
            print_messages(self.run, self.screen)
            status = self._status()
            self._write(status)
            ended = self.done.wait(_PACE)
            self._write(" " * len(status) + "\r" if status else "")
            if ended:
                return

    def _status(self) -> str:
        console = self.screen.err
        if not console.is_terminal or console.is_dumb_terminal:
            return ""
        status = f"{self.activity}, statement {self.run.now.tick:,}; Ctrl-C stops"
        return status[: console.width - 1]

    def _write(self, status: str) -> None:
        if status:
            self.screen.err.file.write("\r" + status)
            self.screen.err.file.flush()
