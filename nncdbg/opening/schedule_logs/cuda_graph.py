"""CUDA graphs in the DOT language, from `cudaGraphDebugDotPrint` or `torch.cuda.CUDAGraph.debug_dump`.

A node is a kernel, copy or fill, and an edge an order.  Nodes that follow one another are placed on one
stream, and all other edges are events, so that the order of the schedule is exactly that of the graph.  The
accesses of copies are known, those of kernels are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from nncdbg.engine.errors import LoadError
from nncdbg.engine.text.counting import counted
from nncdbg.opening.schedule_logs.programs import ScheduleLog, program_of
from nncdbg.opening.schedule_logs.records import ByteRange, EventRecord, EventWait, LoggedLaunch, LogRecord

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


def is_cuda_graph(content: bytes) -> bool:
    """Return whether a file begins as a graph in the DOT language does."""
    return content.lstrip().startswith((b"digraph", b"strict digraph"))


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
