"""Read the black box of an ended process.  Imports only the standard library, so that it loads quickly.

A box is a file of `SIZE` bytes: whether a kernel runs, whether a message is half sent, how many
messages were sent (8 bytes), the length of a record (4 bytes), and the record, which is JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

SIZE = 1 << 14
INSIDE = 0
SENDING = 1
SENT = 8
LENGTH = 16
RECORD = 20


@dataclass(frozen=True, slots=True)
class CrashReport:
    """The end of a process.  `record` is None if no kernel was running."""

    record: dict[str, Any] | None
    sending: bool
    sent: int


def read_box(path: str) -> CrashReport:
    """Return the content of a box; a corrupt box has no record.  Raises OSError if it cannot be read."""
    with open(path, "rb") as file:
        content = file.read(SIZE).ljust(SIZE, b"\0")
    length = int.from_bytes(content[LENGTH:RECORD], "little")
    record = _record(content[RECORD : RECORD + length]) if content[INSIDE] else None
    return CrashReport(record, bool(content[SENDING]), int.from_bytes(content[SENT:LENGTH], "little"))


def _record(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.keys() >= _FIELDS else None


_FIELDS = {"program", "line", "op", "value", "source", "iterations", "operands", "time", "pid"}


def sentence(record: dict[str, Any]) -> str:
    """Describe the place: ``inside MyOp at line 12 (%y, iteration 3; operands f32[4]; net.py:7)``."""
    line = f" at line {record['line']}" if record["line"] else ""
    iterations = record["iterations"]
    from nncdbg.text.lexemes import name_text

    where = [f"%{name_text(record['value'])}"] if record["value"] else []
    if iterations:
        where.append(f"iteration{'s' * (len(iterations) > 1)} {', '.join(map(str, iterations))}")
    details = [", ".join(where), f"operands {', '.join(record['operands']) or 'none'}", record["source"]]
    return f"inside {record['op']}{line} ({'; '.join(part for part in details if part)})"
