"""Progress of a run: Ctrl-C pauses it, and a terminal shows a status line."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nncdbg.process.threads import BackgroundThread
from nncdbg.stats import prepare
from nncdbg.target.program import ProgramTarget

if TYPE_CHECKING:
    from nncdbg.comparison.report import DiffReport
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.divergence.lockstep import Lockstep
    from nncdbg.engine.divergence.verification import DeterminismVerification, Verification
    from nncdbg.engine.execution.linking import Allocation
    from nncdbg.engine.stopping.stops import Stop
    from nncdbg.opening.programs import OpenedProgram
    from nncdbg.presentation.screen import Screen
    from nncdbg.target.target import Target

_PATIENCE = 0.5
"""Seconds before a run shows a status line."""
_PACE = 0.2
"""Seconds between two updates."""


@contextmanager
def under_way(
    target: Target,
    screen: Screen,
    pause: Callable[[], None] | None = None,
    activity: str = "running",
) -> Iterator[None]:
    """Pause the run within one op on Ctrl-C, and show its progress on a terminal, after the word `activity`.

    With `pause`, Ctrl-C calls that instead. Logpoint messages are printed as they arrive, or at the end.
    """
    progress = _Progress(target, screen, activity)
    with hearing(signal.SIGINT, pause or target.pause):
        progress.start()
        try:
            yield
        finally:
            progress.stop()
            print_messages(target, screen)


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


def print_messages(target: Target, screen: Screen) -> None:
    """Print the logpoint messages since the last call."""
    for message in target.messages():
        screen.put(message)


def note_messages(target: Target, screen: Screen, side: str = "") -> None:
    """Print messages as notes on standard error, for a command with a result on standard output."""
    target.listen(lambda message: screen.note(f"{side}{message.text}"))


def print_notes(target: Target, screen: Screen) -> None:
    """Print the notes on the inputs on standard error."""
    for note in target.setup.notes:
        screen.note(note)


def verify_observers(opened: OpenedProgram, screen: Screen) -> Verification:
    """Compare the outputs with and without observers."""
    from nncdbg.engine.divergence.verification import verify_observers

    def make(allocator: str | Allocation, statistics: bool, checks: bool) -> Debugger:
        check = opened.configuration.check if checks else None
        return opened.debugger(allocator=allocator, statistics=statistics, check=check)

    def move(debugger: Debugger) -> Stop:
        target = ProgramTarget(debugger)
        note_messages(target, screen)
        with under_way(target, screen):
            return debugger.run(heed=False)

    return verify_observers(make, move, opened.configuration.allocator)


def verify_determinism(opened: OpenedProgram, screen: Screen, *, recorded: bool) -> DeterminismVerification:
    """Compare two runs, and if `recorded`, the outputs with those of the recorded step."""
    from nncdbg.engine.divergence.verification import verify_determinism

    def run(lockstep: Lockstep) -> DiffReport:
        for side in (lockstep.a, lockstep.b):
            note_messages(ProgramTarget(side.debugger), screen)
        with under_way(ProgramTarget(lockstep.a.debugger), screen, lockstep.pause):
            return lockstep.run()

    checksums = opened.program.saved.checksums if recorded else {}
    return verify_determinism(lambda: opened.debugger(statistics=False), checksums, run)


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

    def __init__(self, target: Target, screen: Screen, activity: str) -> None:
        self.target = target
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
            print_messages(self.target, self.screen)
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
        status = f"{self.activity}, statement {self.target.now.tick:,}; Ctrl-C stops"
        return status[: console.width - 1]

    def _write(self, status: str) -> None:
        if status:
            self.screen.err.file.write("\r" + status)
            self.screen.err.file.flush()
