"""The timeline of a run as a Chrome trace, which Perfetto and chrome://tracing open.

One process with a lane (thread) for the host, with graphs, iterations and statements, and a lane for each
stream, with the kernels.  Times are microseconds since the start of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from nncdbg.presentation.times.places import block_title, op_name, origin, result_names, shapes

if TYPE_CHECKING:
    from nncdbg.target.records import TimedEvent

Lanes: TypeAlias = "Mapping[int, tuple[int, str]]"
"""The lane and the title of each stream."""

_PROCESS = 1
_HOST_LANE = 0


def write_timeline(file: IO[bytes], events: Sequence[TimedEvent], places: Lanes, title: str) -> None:
    """Write the timeline of a run: its executions, the first of which is the run; `places` are lanes."""
    file.write(json.dumps(trace_document(events, places, title)).encode())


def trace_document(events: Sequence[TimedEvent], places: Lanes, title: str) -> dict[str, Any]:
    """Return the Chrome trace of a run from its executions, of which the first is the run itself."""
    start = events[0].begin
    trace = [each for event in events for each in _events(event, start, places)]
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


def _events(event: TimedEvent, start: int, places: Lanes) -> Iterator[dict[str, Any]]:
    """Yield the lane events of an execution: a statement also has its kernel on the lane of its stream."""
    place, span = event.place, (event.begin, event.end)
    if event.is_block:
        name, category = block_title(place), "graph"
        arguments: dict[str, Any] = {"graph": str(place.path[0])}
        if event.iteration is not None:
            kind = "step" if event.is_run else "iteration"
            name, category = f"{kind} {event.iteration}", kind
            arguments[kind] = event.iteration
        yield _complete(name, category, _HOST_LANE, span, start, arguments)
        return
    arguments = _statement(event)
    name = op_name(place)
    yield _complete(name, "statement", _HOST_LANE, span, start, arguments)
    if event.kernel is not None:
        yield _complete(name, "kernel", places[event.stream][0], event.kernel, start, arguments)


def _statement(event: TimedEvent) -> dict[str, Any]:
    place = event.place
    return {
        "statement": result_names(place),
        "line": place.line,
        "graph": str(place.path[0]),
        "shapes": shapes(place, event.types),
        "where": origin(place),
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
