"""The records of a journal, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

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
class RunNote:
    """A remark of the user; `step` is None if it is about the whole run."""

    run: int
    step: int | None
    time: datetime
    text: str


@dataclass(frozen=True, slots=True)
class RunCommand:
    """A command that was executed at a stop."""

    run: int
    step: int | None
    time: datetime
    text: str


@dataclass(frozen=True, slots=True)
class RunEdit:
    """A value that was changed by `set`: its name, and the text of the new value."""

    run: int
    step: int | None
    time: datetime
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened in a run.

    `kind` is "nan", "inf" (without a NaN), "received", "spike", "exception", "signal" or another word.
    """

    run: int
    step: int | None
    time: datetime
    kind: str
    message: str
