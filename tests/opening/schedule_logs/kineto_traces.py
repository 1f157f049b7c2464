"""Traces as Kineto writes them, of given records: a call of the runtime and its activity on the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nncdbg.opening.schedule_logs.programs import EventRecord, EventWait, HostWait, LoggedLaunch, LogRecord


def kineto_trace(
    records: Sequence[LogRecord], *, waits: bool = True, events: bool = False, device: int = 0
) -> dict[str, Any]:
    """Return the trace of a program that did what the records say.

    `waits`: with the events of ``enable_cuda_sync_events``; `events`: with ``cuda_event``, as from 2025 on.
    """
    found = [
        {"ph": "M", "name": "process_name", "ts": 0.0, "pid": 77, "tid": 0, "args": {"name": "python"}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 77, "tid": 77, "ts": 1.0, "dur": 3.0}
        | {"args": {"External id": 3, "Record function id": 0, "Ev Idx": 2}},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler"}
        | {"ts": 0.0, "dur": 900.0, "args": {"Op count": 0}},
    ]
    recorded: dict[int, tuple[int, int]] = {}
    for at, record in enumerate(records):
        found += _events(at, record, recorded, waits=waits, events=events, device=device)
    # Kineto writes the activities of the GPU before the calls, and neither by time.
    found.reverse()
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": device, "name": "NVIDIA A100"}],
        "traceEvents": found,
        "traceName": "trace.json",
    }


def _events(
    at: int,
    record: LogRecord,
    recorded: dict[int, tuple[int, int]],
    *,
    waits: bool,
    events: bool,
    device: int,
) -> Iterator[dict[str, Any]]:
    correlation = 100 + at
    ts = 10.0 * (at + 1)
    common = {"device": device, "context": 1, "correlation": correlation}

    def call(name: str) -> dict[str, Any]:
        arguments = {"External id": at, "cbid": 211, "correlation": correlation}
        return {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": name,
            "pid": 77,
            "tid": 77,
            "ts": ts,
            "dur": 4.0,
        } | {"args": arguments}

    def waiting(kind: str, stream: int, **more: int) -> dict[str, Any]:
        arguments = {"cuda_sync_kind": kind, **more, "stream": stream, **common}
        return {"ph": "X", "cat": "cuda_sync", "name": kind, "pid": device, "tid": stream, "ts": ts + 1.0} | {
            "dur": 0.5,
            "args": arguments,
        }

    if isinstance(record, LoggedLaunch):
        yield call("cudaLaunchKernel")
        arguments = {"queued": 0, **common, "stream": record.stream, "grid": [1, 1, 1], "block": [128, 1, 1]}
        yield {"ph": "X", "cat": "kernel", "name": record.name, "pid": device, "tid": record.stream} | {
            "ts": record.start,
            "dur": record.duration,
            "args": arguments,
        }
    elif isinstance(record, EventRecord):
        yield call("cudaEventRecord")
        recorded[record.event] = correlation, record.stream
        if events:
            arguments = {"event_id": record.event, "stream": record.stream, **common}
            yield {
                "ph": "X",
                "cat": "cuda_event",
                "name": "cudaEvent",
                "pid": device,
                "tid": record.stream,
            } | {
                "ts": ts,
                "dur": 1,
                "args": arguments,
            }
    elif isinstance(record, EventWait | HostWait):
        names = ("cudaStreamWaitEvent", "Stream Wait Event")
        stream = record.stream
        if isinstance(record, HostWait):
            names = ("cudaDeviceSynchronize", "Context Sync")
            if record.event is not None:
                names = ("cudaEventSynchronize", "Event Sync")
            elif stream is not None:
                names = ("cudaStreamSynchronize", "Stream Sync")
        yield call(names[0])
        if waits and record.event is not None:
            number, source = recorded.get(record.event, (-1, -1))
            yield waiting(
                names[1],
                -1 if stream is None else stream,
                wait_on_stream=source,
                wait_on_cuda_event_record_corr_id=number,
                wait_on_cuda_event_id=record.event,
            )
        elif waits:
            yield waiting(names[1], -1 if stream is None else stream)
