"""Replay of a recorded session: run its commands, and compare each stop and result with the recorded one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from nncdbg.commands.recording.entries import ErrorEntry, Event, RecordedCommand, RecordedSession
from nncdbg.commands.recording.results import RecordedResult, result_differences
from nncdbg.commands.recording.setup import changes
from nncdbg.commands.recording.stops import INTERRUPT, RecordedStop, differences, recorded_stop
from nncdbg.errors import UsageError
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession
    from nncdbg.presentation.screen import Screen


@dataclass(frozen=True, slots=True)
class ReplayDifference:
    """The first difference of a replay: `where` it is, and lines that show both sides."""

    where: str
    lines: Sequence[str]


class Replay:
    """A replay: the next command, the events of the latest one, and the first difference.

    `stops` and `results` count those that are the same as recorded.
    """

    def __init__(self, recording: RecordedSession, count: int | None = None) -> None:
        self.recording = recording
        self.commands = recording.commands if count is None else recording.commands[:count]
        self.replayed = 0
        self.stops = 0
        self.results = 0
        self.difference: ReplayDifference | None = None
        self._interrupted: str | None = None
        """The command during which the user interrupted the script, at which the replay ends."""
        self._compared = 0
        """The number of commands whose events were compared."""
        self._events: list[Event] = []
        self._earlier = sum(each.command.earlier for each in self.commands)

    def __str__(self) -> str:
        parts = ["1 stop" if self.stops == 1 else f"{self.stops} stops"]
        parts += [counted(self.results, "result")] if self.results else []
        verb = "is" if self.stops + self.results == 1 else "are"
        return f"replayed {counted(self.replayed, 'command')}: {' and '.join(parts)} {verb} the same"

    @contextmanager
    def listening(self, session: CommandSession) -> Iterator[None]:
        """Receive the events of a session, as does a replay that contains this one."""
        recorder = session.recorder
        outer, shapes = recorder.listener, recorder.shapes

        def receive(event: Event) -> None:
            self._events.append(event)
            if outer is not None:
                outer(event)

        recorder.listener = receive
        try:
            yield
        finally:
            recorder.listener, recorder.shapes = outer, shapes

    def next_line(self, session: CommandSession) -> str | None:
        """Compare the events of the latest command, and return the next one; None after the last one.

        Returns None after a difference too, and once the session is over.
        """
        self.compare_latest()
        if self.difference is not None or session.over or self.replayed == len(self.commands):
            return None
        if self.replayed == self._earlier and not self._same_start(session):
            return None
        self._events.clear()
        recorded = self.commands[self.replayed]
        if any(event.is_interrupt for event in recorded.events if isinstance(event, RecordedStop)):
            self._interrupted = recorded.command.text
            return None
        self.replayed += 1
        session.recorder.shapes = [each.shape for each in recorded.events if isinstance(each, RecordedResult)]
        return _line(session, recorded)

    def compare_latest(self) -> None:
        """Compare the events of the latest command, once it has ended."""
        if self._compared == self.replayed or self.difference is not None:
            return
        self._compared = self.replayed
        latest = self.commands[self.replayed - 1]
        events, self._events[:] = [*self._events], []
        if latest.command.earlier:
            return
        whole = len(self.recording.commands)
        open_end = self.replayed == whole and not self.recording.closed
        if lines := _compared(latest, events, open_end=open_end):
            where = f"command {self.replayed} of {whole}, `{latest.command.text.strip()}`"
            self.difference = ReplayDifference(where, lines)
            return
        self.stops += sum(isinstance(event, RecordedStop) for event in latest.events)
        self.results += sum(isinstance(event, RecordedResult) for event in latest.events)

    def end_of_script(self) -> None:
        """Compare the last events of a script, and report commands for which it opened no prompt."""
        self.compare_latest()
        whole = len(self.commands)
        if self.difference is None and self._interrupted is None and self.replayed < whole:
            words = f"the script ended after {self.replayed} of {counted(whole, 'command')}"
            self.difference = ReplayDifference("the end of the script", [words])

    def _same_start(self, session: CommandSession) -> bool:
        """Compare the place where the recording begins with the present one."""
        before = [event for event in self.recording.first if isinstance(event, RecordedStop)]
        if before:
            now = recorded_stop(session.target, session.target.stop)
            if pairs := differences(before[-1], now, only_place=True):
                self.difference = ReplayDifference("the start", [*_paired(pairs)])
                return False
            self.stops += 1
        return True

    def report(self, screen: Screen) -> None:
        """Print the first difference, and what was replayed."""
        if self.difference is not None:
            screen.put(f"the replay differs at {self.difference.where}:")
            for line in self.difference.lines:
                screen.put(f"  {line}")
        else:
            for words in self._incomplete():
                screen.note(words)
        screen.put(str(self))

    def _incomplete(self) -> Iterator[str]:
        """Describe a recording that was not closed, or cannot be replayed to its end."""
        recording = self.recording
        if self._interrupted is not None:
            yield (
                f"the script was interrupted with {INTERRUPT} in `{self._interrupted}`: "
                "a replay cannot stop it at the same operator"
            )
            return
        if recording.closed or len(self.commands) < len(recording.commands):
            return
        last = f" in `{recording.commands[-1].command.text}`" if recording.commands else ""
        torn = "; its last line is incomplete and was skipped" if recording.torn else ""
        yield f"the recording was not closed: the session ended{last}{torn}"


def replay(session: CommandSession, recording: RecordedSession, *, count: int | None = None) -> Replay:
    """Replay the first `count` commands (None: all) up to the first difference, and print it.

    First, report differences from the recorded setup.  Raises UsageError if the user interrupts the replay.
    """
    for words in changes(recording.setup, session.target, session.title):
        session.screen.note(words)
    found = Replay(recording, count)
    with found.listening(session):
        while (line := found.next_line(session)) is not None:
            session.execute_recorded(line)
    found.report(session.screen)
    return found


def _line(session: CommandSession, recorded: RecordedCommand) -> str:
    """Print a command as if typed, and return it.

    A command that the user interrupted goes to the place of the pause instead.
    """
    text = recorded.command.text
    session.echo(text)
    pause = next((each for each in recorded.events if isinstance(each, RecordedStop) and each.is_pause), None)
    if pause is None:
        return text
    text = f"goto :{pause.statements}"
    session.screen.note(f"the session was paused here: replayed as `{text}`")
    return text


def _compared(recorded: RecordedCommand, replayed: Sequence[Event], *, open_end: bool) -> list[str]:
    """Return lines that show what differs first in the events of a command.

    `open_end`: the recording ends in this command, so that its last events may be missing.
    """
    if not recorded.command.results:
        replayed = [event for event in replayed if not isinstance(event, RecordedResult)]
    for before, now in zip_longest(recorded.events, replayed):
        if before is None and open_end:
            return []
        if isinstance(before, RecordedStop) and isinstance(now, RecordedStop):
            if pairs := differences(before, now):
                return [*_paired(pairs)]
        elif isinstance(before, RecordedResult) and before.interrupted:
            # How much of it was printed depends on time.
            return []
        elif isinstance(before, RecordedResult) and isinstance(now, RecordedResult):
            if lines := result_differences(before, now):
                return lines
        elif before != now:
            missing = "result" if isinstance(before or now, RecordedResult) else "stop"
            return [*_paired([(_event_text(before, missing), _event_text(now, missing))])]
    return []


def _paired(pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    for before, now in pairs:
        yield f"recorded: {before}"
        yield f"replayed: {now}"


def _event_text(event: Event | None, missing: str) -> str:
    if event is None:
        return f"no {missing}"
    if isinstance(event, RecordedResult):
        return f"result: {event}"
    return f"error: {event.message}" if isinstance(event, ErrorEntry) else str(event)


def check_count(count: int | None, recording: RecordedSession) -> None:
    """Raise UsageError if a recording has fewer commands than `count`."""
    if count is not None and not 0 <= count <= len(recording.commands):
        raise UsageError(
            f"--to {count}: {recording.path} has {counted(len(recording.commands), 'command')}",
            hint=f"use a number from 0 to {len(recording.commands)}",
        )
