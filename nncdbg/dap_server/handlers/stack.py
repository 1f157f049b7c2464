"""The stack: machine frames with their iteration, and between them the lines of the user's model.

In a schedule the host is the main thread, and each stream a thread with one frame: the next statement of the
stream in the current block.  Its name tells what it waits for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from nncdbg.dap_server import protocol
from nncdbg.dap_server.events import MAIN_THREAD
from nncdbg.dap_server.registry import LIVE, State, request
from nncdbg.dap_server.sources.addresses import reference_of
from nncdbg.dap_server.sources.calls import call_frames
from nncdbg.dap_server.variables.places import SourcePlace, place_of
from nncdbg.errors import UsageError
from nncdbg.expression import spelled
from nncdbg.ir.streams import HOST, streams_of

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.ir.records import Location
    from nncdbg.target.records import Frame, Place, Stream

_FIRST = 2
"""The thread of stream 0."""

_PLACES = 1 << 20
"""Numbers of places from here on belong to streams, not to lines of the model."""


def thread_list(session: Session) -> list[protocol.Thread]:
    """Return the threads: one, or with a schedule the host and one for each stream, with its device."""
    streams = streams_of(session.program.target.program) if session.debuggee is not None else ()
    if not streams:
        return [protocol.Thread(id=MAIN_THREAD, name="main")]
    devices = session.program.target.program.streams
    return [
        protocol.Thread(id=MAIN_THREAD, name="host"),
        *(
            protocol.Thread(
                id=_FIRST + stream,
                name=f"s{stream} ({devices[stream]})" if stream in devices else f"s{stream}",
            )
            for stream in streams
            if stream != HOST
        ),
    ]


def stream_of_thread(session: Session, number: int) -> int:
    """Return the stream of a thread; HOST for the main thread.  Raises UsageError for another number."""
    streams = streams_of(session.program.target.program) if number != MAIN_THREAD else ()
    if number == MAIN_THREAD:
        return HOST
    if number - _FIRST in streams and number >= _FIRST:
        return number - _FIRST
    known = [MAIN_THREAD, *(_FIRST + stream for stream in streams if stream != HOST)]
    raise UsageError(
        f"there is no thread {number}",
        hint=f"use thread {MAIN_THREAD}" if len(known) == 1 else f"use one of: {known}",
    )


def stream_frames(session: Session, stream: int) -> list[protocol.StackFrame]:
    """Return the frame of a stream: its next statement; an empty list at its end in this block."""
    target = session.program.target
    state = next(each for each in target.streams() if each.number == stream)
    place = state.place
    if place is None:
        return []
    return [
        protocol.StackFrame(
            id=session.handles.number(SourcePlace(place_of(target.frame(0)), _PLACES + stream)),
            # Such as `Add, waits for e2 of line 9`.
            name=", ".join([place.op, *awaited(state)]),
            source=session.program.sources.of_place(place),
            line=session.client.outgoing_line(place.line),
            column=session.client.outgoing_column(1),
            instruction_pointer_reference=reference_of(session, place),
            presentation_hint="normal",
        )
    ]


def awaited(stream: Stream) -> list[str]:
    """Return `waits for e2 of line 9` for each event that the next statement of a stream waits for."""
    return [
        f"waits for e{event.number} of line {event.place.line}"
        for event in stream.events
        if event.place is not None and not event.reached
    ]


FRAMES = 1000
"""Frames of an answer if the client sends no count; `totalFrames` is the number of all."""


@dataclass(frozen=True, slots=True)
class StackEntry:
    """A line of the stack: a frame of the program, or with `origin` a (file, line) of the user's model.

    `place` is the current statement of the frame.
    """

    frame: Frame
    place: Place
    number: int = 0
    origin: tuple[str, int] | None = None


# Without supportsDelayedStackTraceLoading: with it, VS Code offers more frames below a stack of one frame.
@request("stackTrace", when=LIVE, values=True, reads=True)
def stack_trace(session: Session, arguments: protocol.StackTraceArguments) -> protocol.StackTraceBody:
    stream = stream_of_thread(session, arguments.thread_id)
    first, levels = arguments.start_frame or 0, arguments.levels or FRAMES
    if first < 0 or levels < 0:
        raise UsageError(f"`startFrame` and `levels` must be 0 or more, not {first} and {levels}")
    if stream != HOST:
        found = stream_frames(session, stream)
        return protocol.StackTraceBody(stack_frames=found[first : first + levels], total_frames=len(found))
    calls = call_frames(session)
    if calls:
        # VS Code hides subtle frames: they are the statements that the innermost line runs.
        graphs = [
            _machine_frame(session, each, arguments.format)
            for each in _entries(session)
            if each.origin is None
        ]
        calls += [msgspec.structs.replace(each, presentation_hint="subtle") for each in graphs]
        return protocol.StackTraceBody(
            stack_frames=calls[first : first + min(levels, FRAMES)], total_frames=len(calls)
        )
    entries = list(_entries(session))
    shown = [
        _source_frame(session, entry, entry.origin)
        if entry.origin is not None
        else _machine_frame(session, entry, arguments.format)
        for entry in entries[first : first + min(levels, FRAMES)]
    ]
    return protocol.StackTraceBody(stack_frames=shown, total_frames=len(entries))


def _entries(session: Session) -> Iterator[StackEntry]:
    """The whole stack, innermost first.  Lines of the user's model are not repeated in outer frames."""
    known: Sequence[tuple[str, int]] = ()
    for frame in session.program.target.frames():
        place = frame.place if session.state is State.RUNNING else frame.current
        yield StackEntry(frame, place)
        origins = _origins(place.node.location if place.node is not None else None)
        if origins and list(known[-len(origins) :]) != origins:
            for number, origin in enumerate(origins):
                yield StackEntry(frame, place, number, origin)
            known = origins


def _origins(location: Location | None) -> list[tuple[str, int]]:
    """The lines of the user's model that a statement comes from, innermost first."""
    if location is None:
        return []
    first = [(location.file, location.line)] if location.file and location.line is not None else []
    listed: list[tuple[str, int]] = []
    for origin in (*first, *location.stack):
        if not listed or listed[-1] != origin:
            listed.append(origin)
    return listed


def _machine_frame(
    session: Session, entry: StackEntry, format: protocol.StackFrameFormat | None
) -> protocol.StackFrame:
    frame, place = entry.frame, entry.place
    name = frame.title
    if frame.depth == 0 and session.attachment is not None and session.attachment.script is not None:
        name = f"{name} {session.attachment.script.progress(session.program.target)}".rstrip()
    # Without an end: VS Code would select the statement, and the next keystroke would replace it.
    return protocol.StackFrame(
        id=session.handles.number(place_of(frame)),
        name=_formatted(session, name, entry, format),
        source=session.program.sources.of_place(place),
        line=session.client.outgoing_line(place.line),
        column=session.client.outgoing_column(1),
        instruction_pointer_reference=reference_of(session, place),
        module_id=session.program.modules.id_of(place),
        presentation_hint="normal",
    )


def _formatted(
    session: Session, name: str, entry: StackEntry, format: protocol.StackFrameFormat | None
) -> str:
    """The name with the details that the client requests."""
    if format is None:
        return name
    if format.parameters:
        name += f"({', '.join(_parameters(entry.frame, format))})"
    if format.module:
        name = f"{session.program.target.program.entry}!{name}"
    return f"{name}, line {session.client.outgoing_line(entry.place.line)}" if format.line else name


def _parameters(frame: Frame, format: protocol.StackFrameFormat) -> Iterator[str]:
    """The inputs of the block, each with name and type as requested."""
    for value in frame.graph.inputs:
        known = frame.types.get(value.name) or value.type
        parts = [spelled(value.name)] if format.parameter_names is not False else []
        parts += [str(known)] if format.parameter_types and known is not None else []
        if value.name:
            yield ": ".join(parts)


def _source_frame(session: Session, entry: StackEntry, origin: tuple[str, int]) -> protocol.StackFrame:
    file, line = origin
    source = session.program.sources.of_model(file)
    innermost = entry.number == 0 and entry.frame.number == 0
    return protocol.StackFrame(
        id=session.handles.number(SourcePlace(place_of(entry.frame), entry.number)),
        name=f"{os.path.basename(file)}:{line}",
        source=source,
        line=session.client.outgoing_line(line),
        column=session.client.outgoing_column(1),
        can_restart=False,
        # VS Code hides several subtle frames.
        presentation_hint="normal" if innermost and source.path is not None else "subtle",
    )
