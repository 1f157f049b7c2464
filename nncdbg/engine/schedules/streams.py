"""The streams of a scheduled program at a stop: the next statement of each, and the events it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.schedules.launches import HOST, placements, stream_name
from nncdbg.ir.records import Program


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


def stream_of(code: Code, pc: int) -> int:
    """Return the stream of a statement of a block; HOST without a margin, and for calls and conditions."""
    margin = code.nodes[pc].placement if pc < len(code.nodes) else code.graph.end
    return HOST if margin is None or margin.stream is None else margin.stream


def results_by_stream(frames: Iterable[Frame]) -> dict[int, int]:
    """Return the bytes of the results in frames, by the stream of the statement that returns them.

    A value in several frames counts once, in the outermost one.  Constants and inputs do not count.
    """
    found: dict[int, int] = {}
    seen: set[int] = set()
    for frame in frames:
        for slot, pc in enumerate(frame.code.definition):
            content = frame.slots[slot]
            size = getattr(content, "nbytes", None)
            if pc < 0:
                seen.add(id(content))
            elif size is not None and id(content) not in seen:
                seen.add(id(content))
                stream = stream_of(frame.code, pc)
                found[stream] = found.get(stream, 0) + int(size)
    return dict(sorted(found.items()))


def stream_states(program: Program, code: Code, pc: int) -> Sequence[StreamState]:
    """Return the streams of a program, if statement `pc` of a block is the next one to run."""
    return [_state(program, code, pc, stream) for stream in streams_of(program)]


def _state(program: Program, code: Code, pc: int, stream: int) -> StreamState:
    device = program.streams.get(stream, "")
    following = next((at for at in range(pc, len(code.nodes) + 1) if stream_of(code, at) == stream), None)
    if following is None:
        return StreamState(stream, device, None)
    margin = code.graph.end if following == len(code.nodes) else code.nodes[following].placement
    waits = () if margin is None else margin.waits
    return StreamState(stream, device, following, tuple(_event(code, pc, following, each) for each in waits))


def _event(code: Code, pc: int, waiter: int, number: int) -> AwaitedEvent:
    for at in range(waiter - 1, -1, -1):
        margin = code.nodes[at].placement
        if margin is not None and number in margin.records:
            return AwaitedEvent(number, at, at < pc)
    return AwaitedEvent(number, None, True)
