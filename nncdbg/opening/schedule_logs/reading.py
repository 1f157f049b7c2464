"""Read a schedule from a log; its content says which format it has."""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec

from nncdbg.errors import LoadError
from nncdbg.opening.schedule_logs.programs import (
    VERSION,
    ByteRange,
    EventCreation,
    EventRecord,
    EventWait,
    HostWait,
    LoggedLaunch,
    LogHeader,
    LogRecord,
    ScheduleLog,
    program_of,
)
from nncdbg.process.files import read_regular
from nncdbg.text.counting import counted

# -- trace events ----------------------------------------------------------------------------------


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


# -- onnxruntime profiles --------------------------------------------------------------------------
# Profiles of onnxruntime, from `SessionOptions.enable_profiling`.
#
# Nodes on the CPU run one after another.  With the CUDA provider, events of category ``Kernel`` have a
# stream. The profile has neither events between streams nor accesses to memory.

_TIME = "_kernel_time"


def read_onnxruntime_profile(events: Sequence[TraceEvent], source: str) -> ScheduleLog:
    """Return the program of a profile: its kernels on streams, else its nodes, which the host runs.

    Raises LoadError for a profile without nodes.
    """
    kernels = [each for each in events if each.cat == "Kernel" and integer(each.args.stream) is not None]
    nodes = [each for each in events if each.cat == "Node" and each.name.endswith(_TIME)]
    notes, unordered = [], ""
    if kernels:
        unordered = "a profile of onnxruntime has no events: the order of its streams is unknown"
    elif nodes:
        notes.append("all nodes ran on the CPU, one after another, so there is no order of streams to check")
    else:
        raise LoadError(f"{source} has no nodes", hint="run the session before end_profiling()")
    launches = [
        LoggedLaunch(
            each.name if kernels else str(each.args.op_name or each.name.removesuffix(_TIME)),
            integer(each.args.stream) if kernels else None,
            start=each.ts,
            duration=each.dur,
        )
        for each in sorted(kernels or nodes, key=lambda event: event.ts)
    ]
    return program_of(launches, source=source, notes=notes, unordered=unordered)


# -- Kineto traces ---------------------------------------------------------------------------------
# Traces of torch.profiler (Kineto), from `export_chrome_trace`.
#
# A kernel has a stream, and a correlation number that it shares with the call of the CUDA runtime that issued
# it.  With ``enable_cuda_sync_events``, events of category ``cuda_sync`` say what waits for
# which ``cudaEventRecord`` call.  Newer versions also have events of category ``cuda_event`` for the records.
# Fields are those of Kineto's CuptiActivity.h.  Traces contain no accesses to memory.

LAUNCHES = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME = ("cuda_runtime", "cuda_driver")

WITHOUT_WAITS = (
    "the trace has no synchronization events, so the order of the streams is unknown: profile with "
    "experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)"
)

_SEVERAL_DEVICES = 1000
"""With several devices, stream 7 of device 2 is number 2007: streams are numbered per device."""


def read_kineto(events: Sequence[TraceEvent], source: str) -> ScheduleLog:
    """Return the program of a trace, in the order of the calls that issued the kernels.

    Raises LoadError for a trace without kernels.
    """
    launches = [each for each in events if each.ph == "X" and each.cat in LAUNCHES]
    if not launches:
        raise LoadError(
            f"{source} has no kernels of a GPU",
            hint="profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        )
    reading = _Trace(events, launches)
    records = sorted(reading.records(), key=lambda each: each[0])
    ordered = [record for _, record in records]
    return program_of(ordered, source=source, notes=reading.notes, unordered=reading.unordered)


class _Trace:
    def __init__(self, events: Sequence[TraceEvent], launches: Sequence[TraceEvent]) -> None:
        self.launches = launches
        self.synchronizations = [each for each in events if each.cat == "cuda_sync"]
        self.recorded = [each for each in events if each.cat == "cuda_event"]
        self.calls = [each for each in events if each.cat in RUNTIME]
        self.call_of: Mapping[int, TraceEvent] = {
            number: each for each in self.calls if (number := integer(each.args.correlation)) is not None
        }
        self.several = len({each.args.device for each in launches}) > 1
        self.notes: list[str] = []
        self.unordered = ""

    def records(self) -> Iterator[tuple[float, LogRecord]]:
        """Yield records with the times at which the host issued them, which a wait of the host ends at."""
        missing = 0
        for each in self.launches:
            issued = self.issued(each)
            missing += issued is None
            launch = LoggedLaunch(
                each.name,
                self.stream(each, each.args.stream),
                "" if each.args.device is None else f"cuda:{each.args.device}",
                start=each.ts,
                duration=each.dur,
            )
            yield each.ts if issued is None else issued, launch
        if missing:
            self.notes.append(
                f"{missing} of {len(self.launches)} kernels have no launch call: placed by their start"
            )
        yield from self.event_records()
        if self.synchronizations:
            yield from self.waits()
        else:
            self.unordered = WITHOUT_WAITS
            for call in self.calls:
                if call.name in ("cudaDeviceSynchronize", "cuCtxSynchronize"):
                    yield call.ts + call.dur, HostWait()

    def event_records(self) -> Iterator[tuple[float, LogRecord]]:
        found: dict[int, tuple[int, int]] = {}
        for each in self.synchronizations:
            call = integer(each.args.wait_on_cuda_event_record_corr_id)
            stream = self.stream(each, each.args.wait_on_stream)
            event = integer(each.args.wait_on_cuda_event_id)
            if call is not None and stream is not None and event is not None:
                found[call] = event, stream
        for each in self.recorded:
            call, stream = integer(each.args.correlation), self.stream(each, each.args.stream)
            event = integer(each.args.event_id)
            if call is not None and stream is not None and event is not None:
                found[call] = event, stream
        for call, (event, stream) in found.items():
            if call in self.call_of:
                yield self.call_of[call].ts, EventRecord(event, stream)

    def waits(self) -> Iterator[tuple[float, LogRecord]]:
        for each in self.synchronizations:
            issued = self.issued(each)
            at = each.ts if issued is None else issued
            call = self.call_of.get(integer(each.args.correlation) or -1, each)
            ended = call.ts + call.dur
            event = integer(each.args.wait_on_cuda_event_id)
            stream = self.stream(each, each.args.stream)
            if each.name == "Stream Wait Event" and event is not None and stream is not None:
                yield at, EventWait(event, stream)
            elif each.name == "Event Sync" and event is not None:
                yield ended, HostWait(event=event)
            elif each.name == "Stream Sync" and stream is not None:
                yield ended, HostWait(stream=stream)
            elif each.name in ("Context Sync", "Device Sync"):
                yield ended, HostWait()

    def issued(self, event: TraceEvent) -> float | None:
        """Return when the host made the call of a kernel or wait."""
        number = integer(event.args.correlation)
        call = None if number is None else self.call_of.get(number)
        return None if call is None else call.ts

    def stream(self, event: TraceEvent, number: object) -> int | None:
        stream = integer(number)
        device = integer(event.args.device)
        if stream is None or not self.several or device is None:
            return stream
        return device * _SEVERAL_DEVICES + stream


# -- CUDA graphs -----------------------------------------------------------------------------------
# CUDA graphs in the DOT language, from `cudaGraphDebugDotPrint` or `torch.cuda.CUDAGraph.debug_dump`.
#
# A node is a kernel, copy or fill, and an edge an order.  Nodes that follow one another are placed on one
# stream, and all other edges are events, so that the order of the schedule is exactly that of the graph.  The
# accesses of copies are known, those of kernels are not.

MOST_COMPARED = 5000
"""The number of nodes of which the independent pairs are counted."""

_NODE = re.compile(r'^\s*"([^"]+)"\s*\[(.*?)\];?[ \t]*$', re.MULTILINE | re.DOTALL)
_EDGE = re.compile(r'^\s*"([^"]+)"\s*->\s*"([^"]+)"', re.MULTILINE)
_KIND = re.compile(r"\b(KERNEL|MEMCPY|MEMSET|HOST|EMPTY|MEM_ALLOC|MEM_FREE|EVENT_RECORD|WAIT_EVENT|GRAPH)\b")
_KERNEL = re.compile(r"\(topoId: \d+\)\s*\|\s*(.+?)\s*\\<\\<\\<", re.DOTALL)
_POINTERS = re.compile(
    r"\{\s*\d+\s*\|\s*(0x[0-9a-fA-F]+)\s*\|\s*\d+\s*\|\s*\d+\s*\|\s*\d+\s*\|\s*(0x[0-9a-fA-F]+)\s*\|"
)
_EXTENT = re.compile(r"\{Width \| (\d+)\} \| \{Height \| (\d+)\} \| \{Depth \| (\d+)\}")
_OFFSETS = re.compile(r"Pos \| \{\{x \| (\d+)\} \| \{y \| (\d+)\} \| \{z \| (\d+)\}")


@dataclass(slots=True)
class _GraphNode:
    name: str
    accesses: tuple[ByteRange, ByteRange] | None = None
    after: list[str] = field(default_factory=list)
    stream: int = -1


def read_cuda_graph(content: bytes, source: str) -> ScheduleLog:
    """Return the program of a CUDA graph; the notes give its depth and the number of independent pairs.

    Raises LoadError for a graph without nodes, and for one with a cycle.
    """
    text = content.decode(errors="replace")
    nodes = {name: _node(label) for name, label in _NODE.findall(text)}
    if not nodes:
        raise LoadError(
            f"{source} is not a CUDA graph: it has no nodes",
            hint="write it with torch.cuda.CUDAGraph.debug_dump, or cudaGraphDebugDotPrint",
        )
    for first, second in _EDGE.findall(text):
        for end in (first, second):
            if end not in nodes:
                raise LoadError(f"{source}: an edge names node {end}, which is not in the file")
        nodes[second].after.append(first)
    try:
        order = list(TopologicalSorter({name: node.after for name, node in nodes.items()}).static_order())
    except CycleError as error:
        raise LoadError(f"{source} is not a CUDA graph: {' -> '.join(error.args[1])} is a cycle") from None
    return program_of(_records(nodes, order), source=source, notes=_structure(nodes, order))


def _node(label: str) -> _GraphNode:
    kind = _KIND.search(label)
    kernel = _KERNEL.search(label)
    name = kernel[1] if kernel is not None else kind[1].lower() if kind is not None else "unknown"
    return _GraphNode(name, _copy(label) if kind is not None and kind[1] == "MEMCPY" else None)


def _copy(label: str) -> tuple[ByteRange, ByteRange] | None:
    """Return the bytes that a copy of one row reads and writes; None for other copies."""
    pointers, extent = _POINTERS.search(label), _EXTENT.search(label)
    if pointers is None or extent is None or extent[2] != "1" or extent[3] != "1":
        return None
    if any(number != "0" for offsets in _OFFSETS.findall(label) for number in offsets):
        return None
    width = int(extent[1])
    read, written = (int(address, 16) for address in pointers.groups())
    return ByteRange(read, read + width), ByteRange(written, written + width)


def _records(nodes: dict[str, _GraphNode], order: list[str]) -> Iterator[LogRecord]:
    """Place the nodes on streams, and yield what a host would issue."""
    ends: dict[int, str] = {}
    crossing: dict[str, int] = {}
    for name in order:
        node = nodes[name]
        for other in node.after:
            stream = nodes[other].stream
            if ends[stream] == other and node.stream < 0:
                node.stream = stream
        if node.stream < 0:
            node.stream = len(ends)
        for other in node.after:
            if nodes[other].stream != node.stream:
                crossing.setdefault(other, len(crossing))
        ends[node.stream] = name
    for name in order:
        node = nodes[name]
        for other in node.after:
            if other in crossing and nodes[other].stream != node.stream:
                yield EventWait(crossing[other], node.stream)
        reads, writes = (None, None) if node.accesses is None else ((node.accesses[0],), (node.accesses[1],))
        yield LoggedLaunch(node.name, node.stream, reads=reads, writes=writes)
        if name in crossing:
            yield EventRecord(crossing[name], node.stream)


def _structure(nodes: dict[str, _GraphNode], order: list[str]) -> list[str]:
    depths: dict[str, int] = {}
    for name in order:
        depths[name] = 1 + max((depths[other] for other in nodes[name].after), default=0)
    found = f"{counted(len(nodes), 'node')}, depth {max(depths.values())}"
    if len(nodes) <= MOST_COMPARED:
        before: dict[str, int] = {}
        bits = {name: 1 << at for at, name in enumerate(order)}
        ordered = 0
        for name in order:
            mask = 0
            for other in nodes[name].after:
                mask |= before[other] | bits[other]
            before[name] = mask
            ordered += mask.bit_count()
        pairs = len(nodes) * (len(nodes) - 1) // 2 - ordered
        found += f", {counted(pairs, 'independent pair')}"
    return [found, "the streams are chains of dependent nodes, not those of the capture"]


# -- access logs -----------------------------------------------------------------------------------

_Line = LogHeader | LoggedLaunch | EventCreation | EventRecord | EventWait | HostWait


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


# -- reading ---------------------------------------------------------------------------------------

_LARGEST = 2**30
"""The largest content of a compressed log, in bytes."""

_KNOWN = "use an access log, a trace of torch.profiler, a profile of onnxruntime or a CUDA graph (.dot)"


def read_schedule_log(path: str | os.PathLike[str]) -> ScheduleLog:
    """Return the program with the schedule of a log, in any of the formats of this package.

    Raises LoadError for a file that cannot be read, has none of these formats, or contains no launches.
    """
    source = os.fspath(path)
    try:
        content = read_regular(path)
        if content[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(content)) as packed:
                content = packed.read(_LARGEST + 1)
            if len(content) > _LARGEST:
                raise ValueError(f"it has more than {_LARGEST:,} bytes when it is unpacked")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise LoadError(f"cannot read the log {source}: {reason}", hint=_KNOWN) from None
    if content.lstrip()[:1] == b"{" and b'"nncdbg_accesses"' in content.partition(b"\n")[0]:
        return read_access_log(content, source)
    if content.lstrip().startswith((b"digraph", b"strict digraph")):
        return read_cuda_graph(content, source)
    try:
        if content.lstrip()[:1] == b"[":
            events = msgspec.json.decode(content, type=list[TraceEvent])
            if any(each.cat in ("Node", "Session") for each in events):
                return read_onnxruntime_profile(events, source)
            return read_kineto(events, source)
        return read_kineto(msgspec.json.decode(content, type=Trace).traceEvents, source)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LoadError(f"{source} is not a schedule log: {error}", hint=_KNOWN) from None
