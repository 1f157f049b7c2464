"""The records of a schedule log, in the order in which the host issued them.

All readers produce these records.  As lines of JSON they are a file format of nncdbg, an access log: first
`LogHeader`, then one record per line with its name in ``kind``::

    {"kind":"header","nncdbg_accesses":1,"source":"torch 2.13.0"}
    {"kind":"launch","name":"aten.mm.default","stream":0,"writes":[{"begin":4096,"end":4160,"type":["f32",[4,4]]}]}
    {"kind":"record","event":1,"stream":0}
    {"kind":"wait","event":1,"stream":7}

Streams and events are named by numbers that are unique in the log, such as handles.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

VERSION = 1


class LogHeader(msgspec.Struct, frozen=True, tag="header", tag_field="kind"):
    """The first record of an access log: the version of the format, and what wrote it."""

    nncdbg_accesses: int
    source: str = ""


class ByteRange(msgspec.Struct, frozen=True, omit_defaults=True):
    """The bytes at addresses `begin` to `end` that a launch reads or writes.

    `type` is the dtype and shape of the tensor there, `name` its name in the user's program.
    """

    begin: int
    end: int
    type: tuple[str, tuple[int, ...]] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.end:
            raise ValueError(f"bytes {self.begin} to {self.end} are not a range")


class LoggedLaunch(msgspec.Struct, frozen=True, omit_defaults=True, tag="launch", tag_field="kind"):
    """A kernel, copy or fill on a stream; `stream` None: the log does not say which.

    `reads` and `writes` are None if the log does not contain accesses.  `start` and `duration` are in
    microseconds.  `file` and `line` are the user's source line.
    """

    name: str
    stream: int | None
    device: str = ""
    reads: tuple[ByteRange, ...] | None = None
    writes: tuple[ByteRange, ...] | None = None
    start: float | None = None
    duration: float | None = None
    file: str | None = None
    line: int | None = None


class EventCreation(msgspec.Struct, frozen=True, tag="create", tag_field="kind"):
    """The creation of an event, so that all its records are in the log; a later event may have its number."""

    event: int


class EventRecord(msgspec.Struct, frozen=True, tag="record", tag_field="kind"):
    """An event is reached when all that the stream has been given so far ends."""

    event: int
    stream: int


class EventWait(msgspec.Struct, frozen=True, tag="wait", tag_field="kind"):
    """What the stream is given from here on runs after the latest record of the event."""

    event: int
    stream: int


class HostWait(msgspec.Struct, frozen=True, tag="synchronize", tag_field="kind"):
    """The host waits for an event, or a stream, or without both for all streams."""

    event: int | None = None
    stream: int | None = None


LogRecord: TypeAlias = "LoggedLaunch | EventCreation | EventRecord | EventWait | HostWait"
