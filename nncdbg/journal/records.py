"""The records of a journal as plain data, and the columns of its tables."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from nncdbg.ir.records import Array
from nncdbg.journal.codecs import CodecError
from nncdbg.representation import RichOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """What is known when a run starts.

    `kind` is "graph" or "torch"; `program` is graph text; `configuration` and `versions` are JSON objects.
    With `parent`, the run is a fork: it begins at the start of step `parent_step` of that run.
    """

    kind: str
    name: str
    program: str | None = None
    configuration: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    command: list[str] = field(default_factory=list)
    parent: int | None = None
    parent_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(RichOutput):
    """One training.

    `status` is "running", "ended", "failed", "interrupted", or "lost" if its process is gone without an end.
    `steps` is the number of the last step plus 1, steps of the parents before the fork included; `epochs`
    counts in the same way.  Times are local.
    """

    number: int
    parent: int | None
    parent_step: int | None
    kind: str
    name: str
    status: str
    started: datetime
    ended: datetime | None
    steps: int
    epochs: int
    seed: int | None
    configuration: dict[str, Any]
    versions: dict[str, str]
    command: list[str]


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A checkpoint: the state before `step` ran.

    `seconds` have passed since the start of the run; `bytes` are those of its tensors, stored or shared.
    """

    number: int
    run: int
    step: int
    epoch: int | None
    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class KeptValue:
    """A value of a step that is kept for history: its name, type and shape.

    `codec` is "exact", "f16" or "blocks"; `bytes` is the size in the file, and `error` is the one that was
    measured when the value was encoded.
    """

    run: int
    step: int
    name: str
    codec: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    error: CodecError


@dataclass(frozen=True, slots=True)
class _Remark:
    """Something about a run; `step` is None if it is about the whole run."""

    run: int
    step: int | None
    time: datetime


@dataclass(frozen=True, slots=True)
class RunNote(_Remark):
    """A remark of the user."""

    text: str


@dataclass(frozen=True, slots=True)
class RunCommand(_Remark):
    """A command that was executed at a stop."""

    text: str


@dataclass(frozen=True, slots=True)
class RunEdit(_Remark):
    """A value that was changed by `set`: its name, and the text of the new value."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class RunEvent(_Remark):
    """Something that happened in a run.

    `kind` is "nan", "inf" (without a NaN), "received", "spike", "exception", "signal" or another word.
    """

    kind: str
    message: str


Row = tuple[Any, ...]

LARGEST = 1 << 53
"""The bound of numbers: a checksum proves that a row is the one that was written, not who wrote it."""

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


class StoredTensors(Mapping[str, Array]):
    """The tensors of a checkpoint by name, read-only arrays in native byte order.

    Each access reads the tensor from the file and verifies its content hash.  Raises KeyError for an unknown
    name, LoadError for a damaged tensor.
    """

    def __init__(self, hashes: Mapping[str, bytes], read: Callable[[str, bytes], Array]) -> None:
        self.hashes = dict(hashes)
        """The content hash of each tensor: equal tensors have the same hash."""
        self._read = read

    def __getitem__(self, name: str) -> Array:
        return self._read(name, self.hashes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.hashes)

    def __len__(self) -> int:
        return len(self.hashes)

    def __contains__(self, name: object) -> bool:
        return name in self.hashes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state before `step` ran: the position as a JSON object, and the tensors by name."""

    step: int
    epoch: int | None
    position: dict[str, Any]
    tensors: StoredTensors


@dataclass(frozen=True, slots=True)
class Writer:
    """A process: its host, the boot of that host, its number, and when it started ("" if not known).

    The start distinguishes a process from a later one with the same number.
    """

    host: str
    boot: str
    process: int
    started: str

    @property
    def gone(self) -> bool:
        """Whether the process has ended; False if it runs on another host, where this is not known."""
        if self.host != socket.gethostname():
            return False
        if self.boot != _boot():
            return True
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return self.started != _started(self.process)


def this_process() -> Writer:
    """Return the record of the current process."""
    number = os.getpid()
    return Writer(socket.gethostname(), _boot(), number, _started(number))


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(process: int) -> str:
    """Return the start of a process in clock ticks since the boot; "Z" for one that has ended."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    # The name of the program, in parentheses, may have spaces.
    fields = status[status.rindex(")") + 2 :].split()
    return "Z" if fields[0] == "Z" else fields[19]
