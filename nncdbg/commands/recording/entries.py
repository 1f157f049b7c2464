"""The file of a recorded session: JSON lines, a header and then entries in the order of events.

A command is written before it runs, its stops, results and errors after it.  A killed process loses at most
the last line.  The entry `end` shows that the session was closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from nncdbg.commands.recording.results import RecordedResult
from nncdbg.commands.recording.setup import Setup
from nncdbg.commands.recording.stops import RecordedStop
from nncdbg.errors import UsageError
from nncdbg.process.files import read_regular

FORMAT = 3
"""The version of the file format; version 1 was a file of commands with the setup in a comment."""

_READ = (2, FORMAT)
"""The versions that can be replayed; version 2 has no results."""

HEAD = b'{"entry":"session"'
"""The beginning of a recording."""

FIRST_FORMAT = "# nncdbg session"
"""The beginning of a recording of version 1, which is replayed as a file of commands."""


class Header(msgspec.Struct, frozen=True, tag_field="entry", tag="session"):
    """The first line; `started` is the time in UTC."""

    format: int
    setup: Setup
    started: str


class CommandEntry(msgspec.Struct, frozen=True, tag_field="entry", tag="command", omit_defaults=True):
    """A command as typed, `at` seconds after the start of the recording.

    `earlier`: it ran before the recording was started, so its stops are not in the file.  `results`: what it
    printed is in the file; an editor shows the results of its requests in other ways.
    """

    text: str
    at: float = 0.0
    earlier: bool = False
    results: bool = False


class ErrorEntry(msgspec.Struct, frozen=True, tag_field="entry", tag="error"):
    """The error of the last command."""

    message: str


class EndEntry(msgspec.Struct, frozen=True, tag_field="entry", tag="end"):
    """The last line of a recording that was closed."""


Event: TypeAlias = "RecordedStop | RecordedResult | ErrorEntry"

Entry: TypeAlias = "CommandEntry | Event | EndEntry"

_ENTRY: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(
    CommandEntry | RecordedStop | RecordedResult | ErrorEntry | EndEntry
)


@dataclass(slots=True)
class RecordedCommand:
    """A command with its stops, results and errors, in order."""

    command: CommandEntry
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """A recorded session.

    `first` has the events before the first recorded command: the stop where the recording begins.
    `closed`: the session was closed.  `torn`: the last line is incomplete, and is left out.
    """

    path: str
    setup: Setup
    first: Sequence[Event]
    commands: Sequence[RecordedCommand]
    closed: bool
    torn: bool


def is_recording(path: str) -> bool:
    """Return True for a recording, False for a file of commands. Raises UsageError for an unreadable file."""
    try:
        return read_regular(path, 1) == b"{"
    except OSError as error:
        raise UsageError(f"cannot read the recording {path}: {error.strerror}") from None


def read_recording(path: str) -> RecordedSession:
    """Return a recorded session.

    Raises UsageError for a file that cannot be read, is not a recording, has another version, or is damaged.
    """
    try:
        content = read_regular(path)
    except OSError as error:
        raise UsageError(f"cannot read the recording {path}: {error.strerror}") from None
    first, _, rest = content.partition(b"\n")
    setup = _header(path, first).setup
    lines = rest.splitlines(keepends=True)
    torn = bool(lines) and not lines[-1].endswith(b"\n")
    before: list[Event] = []
    commands: list[RecordedCommand] = []
    closed = False
    for number, line in enumerate(lines[: len(lines) - torn], 2):
        if closed:
            raise _damaged(path, number, "the recording has ended before")
        entry = _entry(path, number, line)
        if isinstance(entry, CommandEntry):
            commands.append(RecordedCommand(entry))
        elif isinstance(entry, EndEntry):
            closed = True
        else:
            _events(before, commands).append(entry)
    return RecordedSession(path, setup, before, commands, closed, torn)


def _events(before: list[Event], commands: list[RecordedCommand]) -> list[Event]:
    """Return the list for the next event: that of the last command, unless it ran before the recording."""
    return commands[-1].events if commands and not commands[-1].command.earlier else before


def _header(path: str, line: bytes) -> Header:
    if not line.startswith(b"{"):
        raise UsageError(
            f"{path} is {'empty' if not line else 'not a recorded session'}",
            hint="record a session with `record FILE`; `nncdbg MODEL --replay FILE` runs a file of commands",
        )
    try:
        version = msgspec.json.decode(line, type=dict[str, msgspec.Raw]).get("format")
        if version is None or bytes(version) not in (b"%d" % known for known in _READ):
            words = bytes(version or b"none").decode()
            raise UsageError(
                f"{path} has the format {words}; this version of nncdbg reads the formats "
                f"{' and '.join(map(str, _READ))}",
                hint="replay it with the version of nncdbg that recorded it",
            )
        return msgspec.json.decode(line, type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, 1, str(error)) from None


def _entry(path: str, number: int, line: bytes) -> Entry:
    try:
        return _ENTRY.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, number, str(error)) from None


def _damaged(path: str, number: int, why: str) -> UsageError:
    return UsageError(f"line {number} of the recording {path} is damaged: {why}")
