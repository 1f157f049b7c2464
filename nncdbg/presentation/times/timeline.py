"""The timeline of a run as a Chrome trace, which Perfetto and chrome://tracing open.

One process with a lane (thread) for the host, with graphs, iterations and statements, and a lane for each
stream, with the kernels.  Times are microseconds since the start of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from nncdbg.engine.observers.statement_times import TimedBlock, TimedStatement
from nncdbg.ir.streams import lanes, stream_of, streams_of
from nncdbg.presentation.times.places import block_title, op_name, origin, result_names, shapes

if TYPE_CHECKING:
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.execution.loaded import Loaded
    from nncdbg.engine.launch import CompiledProgram

Lanes: TypeAlias = "Mapping[int, tuple[int, str]]"
"""The lane and the title of each stream."""

_PROCESS = 1
_HOST_LANE = 0


def write_timeline(file: IO[bytes], loaded: CompiledProgram, run: tuple[int, int], title: str) -> None:
    """Write the timeline of a measured run; `run` is its begin and end, in nanoseconds of the clock."""
    document = trace_document(loaded, loaded.times.timeline or [], run, title)
    file.write(json.dumps(document).encode())


def trace_document(
    loaded: Loaded, events: Sequence[TimedStatement | TimedBlock], run: tuple[int, int], title: str
) -> dict[str, Any]:
    """Return the Chrome trace of a run from its events; `run` is its begin and end, in nanoseconds."""
    entry = TimedBlock(loaded.codes[0], *run)
    places = lanes(loaded.program)
    trace = [each for event in (entry, *events) for each in _events(loaded, event, run[0], places)]
    # An outer event comes before an inner one with the same start.
    trace.sort(key=lambda each: (each["ts"], -each["dur"]))
    return {
        "traceEvents": [*_metadata(title, places), *trace],
        "displayTimeUnit": "ns",
        "otherData": {"producer": "nncdbg", "program": title},
    }


def _metadata(title: str, places: Lanes) -> Iterator[dict[str, Any]]:
    yield _named("process_name", _HOST_LANE, name=f"nncdbg {title}")
    for lane, name in places.values():
        yield _named("thread_name", lane, name=name)
        yield _named("thread_sort_index", lane, sort_index=lane)


def _named(kind: str, lane: int, **arguments: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": lane, "args": arguments}


def _events(
    loaded: Loaded, event: TimedStatement | TimedBlock, start: int, places: Lanes
) -> Iterator[dict[str, Any]]:
    """Yield the lane events of an execution: a statement also has its kernel on the lane of its stream."""
    if isinstance(event, TimedBlock):
        name, category = block_title(loaded, event.code), "graph"
        arguments: dict[str, Any] = {"graph": str(event.code.path[0])}
        if event.iteration is not None:
            kind = "iteration" if event.code.epoch is None else "step"
            name, category = f"{kind} {event.iteration}", kind
            arguments[kind] = event.iteration
        yield _complete(name, category, _HOST_LANE, (event.begin, event.end), start, arguments)
        return
    arguments = _statement(loaded, event.code, event.pc)
    name = op_name(event.code, event.pc)
    yield _complete(name, "statement", _HOST_LANE, (event.begin, event.end), start, arguments)
    if event.kernel is not None:
        stream = stream_of(event.code.graph, event.pc) if streams_of(loaded.program) else 0
        yield _complete(name, "kernel", places[stream][0], event.kernel, start, arguments)


def _statement(loaded: Loaded, code: Code, pc: int) -> dict[str, Any]:
    return {
        "statement": result_names(code, pc),
        "line": loaded.line(code, pc),
        "graph": str(code.path[0]),
        "shapes": shapes(code, pc),
        "where": origin(code, pc),
    }


def _complete(
    name: str, category: str, lane: int, span: tuple[int, int], start: int, arguments: dict[str, Any]
) -> dict[str, Any]:
    begin, end = span
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": (begin - start) / 1e3,
        "dur": (end - begin) / 1e3,
        "pid": _PROCESS,
        "tid": lane,
        "args": arguments,
    }
