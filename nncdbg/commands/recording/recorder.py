"""The recorder of a session: the commands so far, the open file, and the stops as they occur."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

import msgspec

from nncdbg.commands.recording.entries import (
    FORMAT,
    HEAD,
    CommandEntry,
    EndEntry,
    Entry,
    ErrorEntry,
    Event,
    Header,
)
from nncdbg.commands.recording.results import ShownText
from nncdbg.commands.recording.setup import Confirm, Setup
from nncdbg.commands.recording.stops import RecordedStop, recorded_stop
from nncdbg.errors import NncdbgError, UsageError

if TYPE_CHECKING:
    from nncdbg.presentation.screen import Screen, ScreenShape
    from nncdbg.target.records import Stop
    from nncdbg.target.target import Target

Complain: TypeAlias = Callable[[NncdbgError], None]

_NOT_RECORDED = ("record", "rec")


class SessionRecorder:
    """Records one session.

    Keeps the commands even while no file is open, so that a recording that is started later is complete.
    `complain` reports a file that can no longer be written; the recording is then off.
    """

    def __init__(self, complain: Complain) -> None:
        self.listener: Callable[[Event], None] | None = None
        """Receives each stop, result and error, while a recording is replayed."""
        self.shapes: Sequence[ScreenShape] = ()
        """The shapes of the screen for the next results, while a recording is replayed."""
        self._complain = complain
        self._commands: list[str] = []
        self._file: BinaryIO | None = None
        self._writing = RLock()
        """Held while the file is written or closed: a client may end the session while a script runs on."""
        self._process = 0
        """The process that records; one that it forks does not."""
        self._begun = 0.0
        self._last: Stop | None = None
        """The latest stop; it is recorded once, even if it is shown again."""

    @property
    def path(self) -> str | None:
        """Return the path of the file; None while nothing is recorded."""
        return None if self._file is None else self._file.name

    def start(
        self,
        path: str,
        setup: Setup,
        target: Target,
        *,
        force: bool = False,
        confirm: Confirm | None = None,
    ) -> None:
        """Record in a new file: the setup, the commands so far, and the current stop.

        Overwrites an existing recording with `force`, or if `confirm` returns True.  Raises UsageError if
        neither is the case, if the file is not a recording, or if it cannot be written; an earlier recording
        then continues.
        """
        try:
            _check_free(Path(path), force, confirm)
            if self._file is not None and Path(path).exists() and Path(path).samefile(self._file.name):
                self.stop()
            file = _emptied(path)
        except OSError as error:
            raise UsageError(f"cannot record to {path}: {error.strerror}") from None
        self.stop()
        self._file, self._begun = file, time.monotonic()
        self._process = os.getpid()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        header = Header(FORMAT, setup, now)
        earlier = [CommandEntry(text, earlier=True) for text in self._commands]
        entries: list[Header | Entry] = [header, *earlier, recorded_stop(target, target.stop)]
        for entry in entries:
            self._write(entry)
        self._last = target.stop

    def stop(self) -> None:
        """Close the file, if one is open."""
        if os.getpid() != self._process:
            return
        with self._writing:
            self._append(EndEntry())
            self._close()

    def command(self, text: str, *, results: bool = True) -> None:
        """Record a command before it runs; without `results` if what it prints is not shown."""
        if text.split(maxsplit=1)[:1] in ([name] for name in _NOT_RECORDED):
            return
        self._commands.append(text)
        if self._file is not None:
            self._append(CommandEntry(text, round(time.monotonic() - self._begun, 3), results=results))

    @contextmanager
    def errors_of(self, text: str) -> Iterator[None]:
        """Record a command, and its error if the body raises one."""
        self.command(text)
        try:
            yield
        except NncdbgError as error:
            self.failed(error.message)
            raise

    def stopped(self, target: Target, stop: Stop) -> None:
        """Record a stop."""
        before, self._last = self._last, stop
        if stop is not before and self.observes:
            self.event(self.recorded(target, stop))

    def recorded(self, target: Target, stop: Stop) -> RecordedStop:
        """Return a stop as it is recorded."""
        return recorded_stop(target, stop)

    def shown(self, stop: Stop) -> None:
        """Take a stop as recorded: the program has not moved since the last one."""
        self._last = stop

    @property
    def observes(self) -> bool:
        """Return whether stops and results are recorded, or compared with recorded ones."""
        return self._file is not None or self.listener is not None

    @contextmanager
    def result(self, screen: Screen) -> Iterator[None]:
        """Record what the body prints, also if it fails.

        A replay prints it in the shape of the recorded screen.
        """
        if not self.observes:
            yield
            return
        with screen.reproducing(self.shapes[0] if self.shapes else None):
            shown = ShownText(screen.shape)
            try:
                with screen.copied(shown.add):
                    yield
            except KeyboardInterrupt:
                shown.interrupted = True
                raise
            finally:
                if shown:
                    self.shapes = self.shapes[1:]
                    self.event(shown.recorded())

    def failed(self, message: str) -> None:
        """Record the error of a command."""
        self.event(ErrorEntry(message))

    def event(self, event: Event) -> None:
        """Record a stop, a result or an error."""
        if self.listener is not None:
            self.listener(event)
        if self._file is not None:
            self._append(event)

    def _append(self, entry: Entry) -> None:
        with self._writing:
            if self._file is None:
                return
            try:
                self._write(entry)
            except UsageError as error:
                self._complain(error)

    def _write(self, entry: Entry | Header) -> None:
        """Append a line.  If it cannot be written, closes the file and raises UsageError."""
        assert self._file is not None
        try:
            self._file.write(msgspec.json.encode(entry) + b"\n")
            self._file.flush()
        except OSError as error:
            path = self._file.name
            self._close()
            raise UsageError(
                f"cannot record to {path}: {error.strerror}",
                hint="recording is off; use `record` with another file",
            ) from None

    def _close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                # Closing retries the failed write, which was reported.
                self._file.close()
            self._file = None


def _emptied(path: str) -> BinaryIO:
    """Open and empty a file for the recording of one session, until it is closed or the process ends.

    Raises UsageError if another session records there, OSError for a file that cannot be written.
    """
    file = open(path, "ab")  # noqa: SIM115  it stays open for the session
    try:
        _lock(file)
        if os.fstat(file.fileno()).st_size:
            # A device cannot be emptied.
            file.truncate(0)
    except BlockingIOError:
        file.close()
        raise UsageError(
            f"another session records to {path}, which was not changed", hint="choose another name"
        ) from None
    return file


def _lock(file: BinaryIO) -> None:
    """Lock a file until it is closed or the process ends. Raises BlockingIOError if it is locked."""
    try:
        import fcntl
    except ImportError:
        # Windows has no such locks.
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _check_free(path: Path, force: bool, confirm: Confirm | None) -> None:
    if not path.is_file() or path.stat().st_size == 0:
        return
    with path.open("rb") as file:
        ours = file.read(len(HEAD)) == HEAD
    if not ours:
        raise UsageError(f"{path} is not a recorded session, and was not changed", hint="choose another name")
    if not force and (confirm is None or not confirm(f"overwrite the recording {path}?")):
        raise UsageError(
            f"the recording {path} already exists, and was not changed",
            hint="choose another name, or overwrite the recording with --force",
        )
