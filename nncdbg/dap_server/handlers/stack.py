"""The stack: machine frames with their iteration, and between them the lines of the user's model.

In a schedule the host is the main thread, and each stream a thread with one frame: the next statement of the
stream in the current block.  Its name tells what it waits for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nncdbg.dap_server import protocol
from nncdbg.dap_server.events import MAIN_THREAD
from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.sources.addresses import reference_of
from nncdbg.dap_server.variables.places import SourcePlace, current_statement, frame_place
from nncdbg.errors import UsageError
from nncdbg.expression import spelled
from nncdbg.ir.streams import HOST, stream_states, streams_of

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.execution.frame import Frame
    from nncdbg.ir.records import Location
    from nncdbg.ir.streams import StreamState

_FIRST = 2
"""The thread of stream 0."""

_PLACES = 1 << 20
"""Numbers of places from here on belong to streams, not to lines of the model."""


def thread_list(session: Session) -> list[protocol.Thread]:
    """Return the threads: one, or with a schedule the host and one for each stream, with its device."""
    streams = streams_of(session.program.debugger.program) if session.debuggee is not None else ()
    if not streams:
        return [protocol.Thread(id=MAIN_THREAD, name="main")]
    devices = session.program.debugger.program.streams
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
    streams = streams_of(session.program.debugger.program) if number != MAIN_THREAD else ()
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
    debugger = session.program.debugger
    depth = len(debugger.control.stack) - 1
    frame = debugger.control.stack[depth]
    states = stream_states(debugger.program, frame.code.graph, frame.pc)
    state = next(each for each in states if each.number == stream)
    if state.pc is None:
        return []
    line = debugger.loaded.line(frame.code, state.pc)
    assert line is not None, "each statement has its own line"
    return [
        protocol.StackFrame(
            id=session.handles.number(SourcePlace(frame_place(session, depth), _PLACES + stream)),
            name=_title(session, frame.code, state),
            source=session.program.sources.of_frame(frame),
            line=session.client.outgoing_line(line),
            column=session.client.outgoing_column(1),
            instruction_pointer_reference=reference_of(session, frame.code, state.pc),
            presentation_hint="normal",
        )
    ]


def _title(session: Session, code: Code, state: StreamState) -> str:
    """Return `Add, waits for e2 of line 9`, or `Add` for a statement that can run."""
    assert state.pc is not None
    op = code.nodes[state.pc].op if state.pc < len(code.nodes) else "return"
    return ", ".join([op, *awaited(session, code, state)])


def awaited(session: Session, code: Code, state: StreamState) -> list[str]:
    """Return `waits for e2 of line 9` for each event that the next statement of a stream waits for."""
    return [
        f"waits for e{event.number} of line {session.program.debugger.loaded.line(code, event.recorder)}"
        for event in state.events
        if event.recorder is not None and not event.reached
    ]


FRAMES = 1000
"""Frames of an answer if the client sends no count; `totalFrames` is the number of all."""


@dataclass(frozen=True, slots=True)
class StackEntry:
    """A line of the stack: a machine frame, or with `origin` a (file, line) of the user's model."""

    depth: int
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
    entries = list(_entries(session))
    frames = session.program.debugger.frames
    shown = [
        _source_frame(session, entry, entry.origin)
        if entry.origin is not None
        else _machine_frame(session, frames, entry.depth, arguments.format)
        for entry in entries[first : first + min(levels, FRAMES)]
    ]
    return protocol.StackTraceBody(stack_frames=shown, total_frames=len(entries))


def _entries(session: Session) -> Iterator[StackEntry]:
    """The whole stack, innermost first.  Lines of the user's model are not repeated in outer frames."""
    frames = session.program.debugger.control.stack
    known: Sequence[tuple[str, int]] = ()
    for depth in range(len(frames) - 1, -1, -1):
        yield StackEntry(depth)
        pc, _ = current_statement(session, depth)
        nodes = frames[depth].code.nodes
        origins = _origins(nodes[pc].location if pc < len(nodes) else None)
        if origins and list(known[-len(origins) :]) != origins:
            for number, origin in enumerate(origins):
                yield StackEntry(depth, number, origin)
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
    session: Session, frames: Sequence[Frame], depth: int, format: protocol.StackFrameFormat | None
) -> protocol.StackFrame:
    debugger = session.program.debugger
    frame = debugger.control.stack[depth]
    pc, _ = current_statement(session, depth)
    line = debugger.loaded.line(frame.code, pc)
    assert line is not None, "each statement has its own line"
    place = frame_place(session, depth)
    name = session.program.target.frame(len(frames) - 1 - depth).title
    if depth == 0 and session.attachment is not None and session.attachment.script is not None:
        name = f"{name} {session.attachment.script.progress(debugger)}".rstrip()
    # Without an end: VS Code would select the statement, and the next keystroke would replace it.
    return protocol.StackFrame(
        id=session.handles.number(place),
        name=_formatted(session, name, frame, line, format),
        source=session.program.sources.of_frame(frame),
        line=session.client.outgoing_line(line),
        column=session.client.outgoing_column(1),
        instruction_pointer_reference=reference_of(session, frame.code, pc),
        module_id=session.program.modules.id_of(frame.code),
        presentation_hint="normal",
    )


def _formatted(
    session: Session, name: str, frame: Frame, line: int, format: protocol.StackFrameFormat | None
) -> str:
    """The name with the details that the client requests."""
    if format is None:
        return name
    if format.parameters:
        name += f"({', '.join(_parameters(session, frame, format))})"
    if format.module:
        name = f"{session.program.debugger.program.entry}!{name}"
    return f"{name}, line {session.client.outgoing_line(line)}" if format.line else name


def _parameters(session: Session, frame: Frame, format: protocol.StackFrameFormat) -> Iterator[str]:
    """The inputs of the block, each with name and type as requested."""
    for value in frame.code.graph.inputs:
        known = frame.code.types.get(value.name) or value.type
        parts = [spelled(value.name)] if format.parameter_names is not False else []
        parts += [str(known)] if format.parameter_types and known is not None else []
        if value.name:
            yield ": ".join(parts)


def _source_frame(session: Session, entry: StackEntry, origin: tuple[str, int]) -> protocol.StackFrame:
    file, line = origin
    source = session.program.sources.of_model(file)
    innermost = entry.number == 0 and entry.depth == len(session.program.debugger.control.stack) - 1
    return protocol.StackFrame(
        id=session.handles.number(SourcePlace(frame_place(session, entry.depth), entry.number)),
        name=f"{os.path.basename(file)}:{line}",
        source=source,
        line=session.client.outgoing_line(line),
        column=session.client.outgoing_column(1),
        can_restart=False,
        # VS Code hides several subtle frames.
        presentation_hint="normal" if innermost and source.path is not None else "subtle",
    )
