"""Access logs: the records of `records` as lines of JSON, written by `nncdbg.torch.record_accesses`."""

from __future__ import annotations

import msgspec

from nncdbg.engine.errors import LoadError
from nncdbg.opening.schedule_logs.programs import ScheduleLog, program_of
from nncdbg.opening.schedule_logs.records import (
    VERSION,
    EventCreation,
    EventRecord,
    EventWait,
    HostWait,
    LoggedLaunch,
    LogHeader,
    LogRecord,
)

_Line = LogHeader | LoggedLaunch | EventCreation | EventRecord | EventWait | HostWait


def is_access_log(content: bytes) -> bool:
    """Return whether a file begins as an access log does."""
    return content.lstrip()[:1] == b"{" and b'"nncdbg_accesses"' in content.partition(b"\n")[0]


def read_access_log(content: bytes, source: str) -> ScheduleLog:
    """Return the program of an access log; an incomplete last line, as after a crash, is left out and noted.

    Raises LoadError for lines that are not records of this version.
    """
    lines = content.splitlines()
    notes: list[str] = []
    if not content.endswith(b"\n") and len(lines) > 1:
        lines.pop()
        notes.append("the last line of the log is incomplete: left out")
    decoder = msgspec.json.Decoder(_Line)
    records: list[LogRecord] = []
    for number, line in enumerate(lines, 1):
        try:
            record = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise LoadError(
                f"{source}: line {number} is not a record of an access log: {error}",
                hint="write the log with nncdbg.torch.record_accesses",
            ) from None
        if not isinstance(record, LogHeader):
            records.append(record)
        elif record.nncdbg_accesses != VERSION:
            raise LoadError(
                f"{source} has unsupported access log version {record.nncdbg_accesses}",
                hint=f"use version {VERSION}",
            )
    return program_of(records, source=source, notes=notes)
