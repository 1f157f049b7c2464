"""Events of Chrome traces, with the fields that profilers write for launches on a GPU."""

from __future__ import annotations

from typing import Any

import msgspec


class TraceArguments(msgspec.Struct):
    """The `args` of an event, as far as schedules need them.  onnxruntime writes numbers as text."""

    stream: Any = None
    device: Any = None
    correlation: Any = None
    event_id: Any = None
    wait_on_stream: Any = None
    wait_on_cuda_event_record_corr_id: Any = None
    wait_on_cuda_event_id: Any = None
    op_name: Any = None
    provider: Any = None


class TraceEvent(msgspec.Struct):
    """A complete event (`ph` "X"): `ts` and `dur` are in microseconds."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: TraceArguments = msgspec.field(default_factory=TraceArguments)


class Trace(msgspec.Struct):
    """A trace as an object."""

    traceEvents: list[TraceEvent]


def integer(value: Any) -> int | None:
    """Return a number of a trace, None for one that is missing, negative or no integer."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number >= 0 else None
