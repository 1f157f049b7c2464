"""The streams of a scheduled program, from the margins of its statements, and what each issues next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nncdbg.ir.records import Graph, Path, Placement, Program
from nncdbg.ir.walk import blocks

HOST = -1
"""The number of the host, where streams have theirs."""

THE_HOST = "the host"

Site: TypeAlias = "tuple[Path, int]"
"""A block, and the number of a statement in it; -1 is the first line of a graph, and len(nodes) its last."""


def stream_name(stream: int, host: str = "host") -> str:
    """Return `s2`, or `host`; in a sentence, it is THE_HOST."""
    return host if stream == HOST else f"s{stream}"


def scheduled(program: Program) -> bool:
    """Return whether any statement of a program has a margin."""
    return any(True for _ in placements(program))


def placements(program: Program) -> Iterator[tuple[Site, Placement]]:
    """Yield the margins of all statements, and of the first and last lines of graphs and blocks."""
    for path, graph in blocks(program.graphs):
        if graph.begin is not None:
            yield (path, -1), graph.begin
        for pc, node in enumerate(graph.nodes):
            if node.placement is not None:
                yield (path, pc), node.placement
        if graph.end is not None:
            yield (path, len(graph.nodes)), graph.end


@dataclass(frozen=True, slots=True)
class AwaitedEvent:
    """An event that a statement waits for.

    `recorder` is the statement of the same block that records it last before the wait; None if it is
    recorded elsewhere.  `reached`: that statement has run.
    """

    number: int
    recorder: int | None
    reached: bool


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream, or HOST, in a block: its next statement (None: at its end), and the events awaited."""

    number: int
    device: str
    pc: int | None
    events: tuple[AwaitedEvent, ...] = ()

    @property
    def name(self) -> str:
        """Return `s2`, or `host`."""
        return stream_name(self.number)


def streams_of(program: Program) -> tuple[int, ...]:
    """Return the streams of a program in order, HOST first; empty without a schedule."""
    if "streams" not in program.kept:
        found = set(program.streams)
        for _, margin in placements(program):
            found |= {*margin.begins, *(() if margin.stream is None else (margin.stream,))}
        program.kept["streams"] = (HOST, *sorted(found)) if found else ()
    known: tuple[int, ...] = program.kept["streams"]
    return known


def lanes(program: Program) -> dict[int, tuple[int, str]]:
    """Return the lane of each stream in a timeline, and its title: HOST is lane 0, and stream 2 lane 3.

    Without a schedule, there are the host and stream 0.
    """
    found = {HOST: (0, "host")}
    for stream in streams_of(program) or (HOST, 0):
        if stream != HOST:
            found[stream] = stream + 1, f"{stream_name(stream)} {program.streams.get(stream, '')}".rstrip()
    return found


def stream_of(graph: Graph, pc: int) -> int:
    """Return the stream of a statement of a block; HOST without a margin, and for calls and conditions."""
    margin = graph.nodes[pc].placement if pc < len(graph.nodes) else graph.end
    return HOST if margin is None or margin.stream is None else margin.stream


def stream_states(program: Program, graph: Graph, pc: int) -> Sequence[StreamState]:
    """Return the streams of a program, if statement `pc` of a block is the next one to run."""
    return [_state(program, graph, pc, stream) for stream in streams_of(program)]


def _state(program: Program, graph: Graph, pc: int, stream: int) -> StreamState:
    device = program.streams.get(stream, "")
    following = next((at for at in range(pc, len(graph.nodes) + 1) if stream_of(graph, at) == stream), None)
    if following is None:
        return StreamState(stream, device, None)
    margin = graph.end if following == len(graph.nodes) else graph.nodes[following].placement
    waits = () if margin is None else margin.waits
    return StreamState(stream, device, following, tuple(_event(graph, pc, following, each) for each in waits))


def _event(graph: Graph, pc: int, waiter: int, number: int) -> AwaitedEvent:
    for at in range(waiter - 1, -1, -1):
        margin = graph.nodes[at].placement
        if margin is not None and number in margin.records:
            return AwaitedEvent(number, at, at < pc)
    return AwaitedEvent(number, None, True)
