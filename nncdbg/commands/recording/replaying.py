"""Replay of a recorded session: run its commands, and compare each stop with the recorded one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from nncdbg.commands.recording.entries import ErrorEntry, Event, RecordedCommand, RecordedSession
from nncdbg.commands.recording.setup import changes
from nncdbg.commands.recording.stops import RecordedStop, differences, recorded_stop
from nncdbg.engine.errors import UsageError
from nncdbg.engine.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession


@dataclass(frozen=True, slots=True)
class ReplayDifference:
    """The first difference of a replay: `where` it is, and both sides of each pair that differs."""

    where: str
    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Replay:
    """The result: the number of replayed commands and of equal stops, and the first difference."""

    commands: int
    stops: int
    difference: ReplayDifference | None

    def __str__(self) -> str:
        stops = "1 stop is" if self.stops == 1 else f"{self.stops} stops are"
        return f"replayed {counted(self.commands, 'command')}: {stops} the same"


def replay(session: CommandSession, recording: RecordedSession, *, count: int | None = None) -> Replay:
    """Replay the first `count` commands (None: all) up to the first difference, and print it.

    First, report differences from the recorded setup.  Raises UsageError if the user interrupts the replay.
    """
    for words in changes(recording.setup, session.debugger, session.title):
        session.screen.note(words)
    commands = recording.commands if count is None else recording.commands[:count]
    found = _replayed(session, recording, commands)
    if found.difference is not None:
        _print(session, found.difference)
    else:
        for words in _incomplete(recording, len(commands)):
            session.screen.note(words)
    session.screen.put(str(found))
    return found


def _replayed(
    session: CommandSession, recording: RecordedSession, commands: Sequence[RecordedCommand]
) -> Replay:
    whole = len(recording.commands)
    stops = 0
    earlier = sum(each.command.earlier for each in commands)
    for number, each in enumerate(commands, 1):
        if session.over:
            return Replay(number - 1, stops, None)
        if number == earlier + 1:
            # All commands before the recording have run.
            pairs, same = _start(session, recording)
            if pairs:
                return Replay(number - 1, stops, ReplayDifference("the start", pairs))
            stops += same
        events = _run(session, each)
        if each.command.earlier:
            continue
        open_end = number == whole and not recording.closed
        pairs = _compared(each.events, events, open_end=open_end)
        if pairs:
            where = f"command {number} of {whole}, `{each.command.text.strip()}`"
            return Replay(number, stops, ReplayDifference(where, pairs))
        stops += sum(isinstance(event, RecordedStop) for event in each.events)
    return Replay(len(commands), stops, None)


def _start(session: CommandSession, recording: RecordedSession) -> tuple[list[tuple[str, str]], int]:
    """Compare the place where the recording begins with the present one."""
    before = [event for event in recording.first if isinstance(event, RecordedStop)]
    if not before:
        return [], 0
    now = recorded_stop(session.debugger, session.debugger.stop)
    return differences(before[-1], now, only_place=True), 1


def _run(session: CommandSession, recorded: RecordedCommand) -> list[Event]:
    """Run a command as if typed, and return its stops and errors.

    A command that the user interrupted goes to the place of the pause instead.
    """
    text = recorded.command.text
    session.screen.put(f"{session.prompt}{text}")
    pause = next((each for each in recorded.events if isinstance(each, RecordedStop) and each.is_pause), None)
    if pause is not None:
        text = f"goto {pause.statements}"
        session.screen.note(f"the session was paused here: replayed as `{text}`")
    return session.observed(text)


def _compared(
    recorded: Sequence[Event], replayed: Sequence[Event], *, open_end: bool
) -> list[tuple[str, str]]:
    """Return both sides of what differs first in the events of a command.

    `open_end`: the recording ends in this command, so that its last events may be missing.
    """
    for before, now in zip_longest(recorded, replayed):
        if before is None and open_end:
            return []
        if isinstance(before, RecordedStop) and isinstance(now, RecordedStop):
            if pairs := differences(before, now):
                return pairs
        elif before != now:
            return [(_event_text(before), _event_text(now))]
    return []


def _event_text(event: Event | None) -> str:
    if event is None:
        return "no stop"
    return f"error: {event.message}" if isinstance(event, ErrorEntry) else str(event)


def _print(session: CommandSession, difference: ReplayDifference) -> None:
    session.screen.put(f"the replay differs at {difference.where}:")
    for before, now in difference.pairs:
        session.screen.put(f"  recorded: {before}")
        session.screen.put(f"  replayed: {now}")


def _incomplete(recording: RecordedSession, replayed: int) -> list[str]:
    """Describe a recording that was not closed, once it is replayed to its end."""
    if recording.closed or replayed < len(recording.commands):
        return []
    last = f" in `{recording.commands[-1].command.text}`" if recording.commands else ""
    torn = "; its last line is incomplete and was skipped" if recording.torn else ""
    return [f"the recording was not closed: the session ended{last}{torn}"]


def check_count(count: int | None, recording: RecordedSession) -> None:
    """Raise UsageError if a recording has fewer commands than `count`."""
    if count is not None and not 0 <= count <= len(recording.commands):
        raise UsageError(
            f"--to {count}: {recording.path} has {counted(len(recording.commands), 'command')}",
            hint=f"use a number from 0 to {len(recording.commands)}",
        )
