"""Writes the access log of a run: the statements that it issued to streams, and the bytes that they use."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

import msgspec
import numpy as np

from nncdbg.dtypes import name_of
from nncdbg.errors import UsageError
from nncdbg.opening.schedule_logs.programs import (
    VERSION,
    ByteRange,
    EventRecord,
    EventWait,
    HostWait,
    LoggedLaunch,
    LogHeader,
    LogRecord,
)

if TYPE_CHECKING:
    from nncdbg.engine.backends.cupy_streams import DeviceRange
    from nncdbg.engine.debugger import Debugger

HOST_STREAM = 1_000_000
"""The stream of what the host executes itself, after the numbers of other streams."""

_BEGINS = 1_000_000
"""Events of `begin`, which have no number in the margins, get numbers from here on."""


class AccessLogWriter:
    """An `AccessReport` that writes lines of JSON."""

    def __init__(self, file: BinaryIO, source: str) -> None:
        self._file = file
        self._write(LogHeader(VERSION, source))

    def launch(
        self,
        op: str,
        stream: int | None,
        device: str,
        reads: Sequence[DeviceRange],
        writes: Sequence[DeviceRange],
    ) -> None:
        number = HOST_STREAM if stream is None else stream
        if reads or writes:
            self._write(LoggedLaunch(op, number, device, _ranges(reads), _ranges(writes)))
        if stream is None:
            self._write(HostWait(stream=HOST_STREAM))

    def record(self, event: int, stream: int | None) -> None:
        self._write(EventRecord(_event(event), HOST_STREAM if stream is None else stream))

    def wait(self, event: int, stream: int) -> None:
        self._write(EventWait(_event(event), stream))

    def host_wait(self, event: int | None) -> None:
        self._write(HostWait(event=event))

    def _write(self, record: LogRecord | LogHeader) -> None:
        self._file.write(msgspec.json.encode(record) + b"\n")


@contextmanager
def recorded_accesses(debugger: Debugger, path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Write the access log of what a debugger runs in the block, for ``nncdbg races PATH``; None: no log.

    Raises UsageError for a program without a schedule or another backend than cupy, and if the log cannot be
    written.
    """
    if path is None:
        yield
        return
    issue = debugger.loaded.linker.issue
    if issue is None:
        raise UsageError(
            "an access log needs a scheduled program on the backend cupy, whose streams it records",
            hint="add --backend cupy; `nncdbg print MODEL --streams 4` makes a schedule",
        )
    try:
        with open(path, "wb") as file:
            issue.streams.report = AccessLogWriter(file, f"nncdbg, backend {debugger.backend.name}")
            try:
                yield
            finally:
                issue.streams.report = None
    except OSError as error:
        raise UsageError(
            f"cannot write the access log {os.fspath(path)}: {error.strerror}",
            hint="use a file in a writable folder",
        ) from None


def _ranges(ranges: Sequence[DeviceRange]) -> tuple[ByteRange, ...]:
    return tuple(
        ByteRange(each.begin, each.end, (name_of(np.dtype(each.dtype)), each.shape), each.name)
        for each in ranges
    )


def _event(number: int) -> int:
    return number if number >= 0 else _BEGINS - number
