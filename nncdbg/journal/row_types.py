"""The columns of the tables of a journal, with the types and bounds of their values.

A checksum proves that a row is the one that was written, not that nncdbg wrote it.  So each row is checked
against these types after its checksum.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

Row = tuple[Any, ...]

LARGEST = 1 << 53

Count = Annotated[int, Meta(ge=0, lt=LARGEST)]
"""A number of a row, a step or an epoch, or a size in bytes."""

_Seconds = Annotated[float, Meta(ge=-1e12, le=1e12)]
_Time = Annotated[float, Meta(ge=0, le=2.5e11)]
"""Seconds since 1970, before the year 9892: Python has no later dates than those of 9999."""
_Process = Annotated[int, Meta(gt=0, lt=1 << 31)]
_Error = Annotated[float, Meta(ge=0)]
_Hash = Annotated[bytes, Meta(min_length=16, max_length=16)]

TYPES: dict[str, dict[str, Any]] = {
    "runs": {
        "run": Annotated[int, Meta(gt=0, lt=LARGEST)],
        "parent": Count | None,
        "parent_step": Count | None,
        "kind": str,
        "name": str,
        "status": str,
        "started": _Time,
        "ended": _Time | None,
        "steps": Count,
        "epochs": Count,
        "seed": int | None,
        "configuration": str,
        "versions": str,
        "command": str,
        "program": str | None,
        "host": str,
        "boot": str,
        "process": _Process,
        "process_started": str,
    },
    "programs": {"hash": str, "text": str},
    "steps": {"run": Count, "step": Count, "epoch": Count | None, "seconds": _Seconds | None},
    "tracks": {"track": Count, "run": Count, "name": str, "part": str},
    "points": {"track": Count, "step": Count, "value": float | None},
    "checkpoints": {
        "checkpoint": Count,
        "run": Count,
        "step": Count,
        "epoch": Count | None,
        "seconds": _Seconds,
        "bytes": Count,
        "position": str,
    },
    "checkpoint_tensors": {"checkpoint": Count, "name": str, "hash": _Hash},
    "kept_values": {
        "step": Count,
        "run": Count,
        "name": str,
        "codec": str,
        "dtype": str,
        "shape": str,
        "bytes": Count,
        "absolute": _Error,
        "relative": _Error,
        "rms": _Error,
        "hash": _Hash,
    },
    "blobs": {"blob": Count, "hash": _Hash, "bytes": Count, "codec": str, "head": bytes},
    "entries": {
        "entry": Count,
        "run": Count,
        "kind": str,
        "step": Count | None,
        "time": _Time,
        "name": str | None,
        "text": str,
    },
    "measured": {"measured": Count, "run": Count, "name": str},
    "statistics_chunks": {
        "chunk": Count,
        "measured": Count,
        "first": int,
        "last": int,
        "ordinal": Count,
        "level": Annotated[int, Meta(ge=0, lt=64)],
        "rows": Annotated[int, Meta(gt=0, le=1 << 20)],
        "data": bytes,
    },
    "recent_statistics": {"batch": Count, "run": Count, "rows": Count, "data": bytes},
}
"""The tables with checksums: the names and types of their columns, in the order of the rows."""

COLUMNS: dict[str, tuple[str, ...]] = {table: tuple(columns) for table, columns in TYPES.items()}

_ROWS: dict[str, Any] = {table: list[tuple[*columns.values()]] for table, columns in TYPES.items()}  # type: ignore[misc]


def typed(table: str, rows: list[Row]) -> list[Row]:
    """Return rows of a table with the types of its columns.

    Raises msgspec.ValidationError for a value of another type, or beyond its bounds.
    """
    found: list[Row] = msgspec.convert(rows, _ROWS[table])
    return found
