"""The stack: machine frames with their iteration, and between them the lines of the user's model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nncdbg.dap_server.protocol.requests import StackTraceBody
from nncdbg.dap_server.protocol.types import StackFrame
from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.sources.instructions import reference_of
from nncdbg.dap_server.stream_threads import stream_frames, stream_of_thread
from nncdbg.dap_server.variables.places import SourcePlace, current_statement, frame_place
from nncdbg.engine.errors import UsageError
from nncdbg.engine.expression import spelled
from nncdbg.engine.schedules.launches import HOST
from nncdbg.presentation.frame_titles import frame_title

if TYPE_CHECKING:
    from nncdbg.dap_server.protocol.requests import StackTraceArguments
    from nncdbg.dap_server.protocol.types import StackFrameFormat
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.execution.frame import Frame
    from nncdbg.ir.records import Location

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
def stack_trace(session: Session, arguments: StackTraceArguments) -> StackTraceBody:
    stream = stream_of_thread(session, arguments.thread_id)
    first, levels = arguments.start_frame or 0, arguments.levels or FRAMES
    if first < 0 or levels < 0:
        raise UsageError(f"`startFrame` and `levels` must be 0 or more, not {first} and {levels}")
    if stream != HOST:
        found = stream_frames(session, stream)
        return StackTraceBody(stack_frames=found[first : first + levels], total_frames=len(found))
    entries = list(_entries(session))
    frames = session.program.debugger.frames
    shown = [
        _source_frame(session, entry, entry.origin)
        if entry.origin is not None
        else _machine_frame(session, frames, entry.depth, arguments.format)
        for entry in entries[first : first + min(levels, FRAMES)]
    ]
    return StackTraceBody(stack_frames=shown, total_frames=len(entries))


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
    session: Session, frames: Sequence[Frame], depth: int, format: StackFrameFormat | None
) -> StackFrame:
    debugger = session.program.debugger
    frame = debugger.control.stack[depth]
    pc, _ = current_statement(session, depth)
    line = debugger.loaded.line(frame.code, pc)
    assert line is not None, "each statement has its own line"
    place = frame_place(session, depth)
    name = frame_title(frames, len(frames) - 1 - depth)
    if depth == 0 and session.attachment is not None and session.attachment.script is not None:
        name = f"{name} {session.attachment.script.progress(debugger)}".rstrip()
    # Without an end: VS Code would select the statement, and the next keystroke would replace it.
    return StackFrame(
        id=session.handles.number(place),
        name=_formatted(session, name, frame, line, format),
        source=session.program.sources.of_frame(frame),
        line=session.client.outgoing_line(line),
        column=session.client.outgoing_column(1),
        instruction_pointer_reference=reference_of(session, frame.code, pc),
        module_id=session.program.modules.id_of(frame.code),
        presentation_hint="normal",
    )


def _formatted(session: Session, name: str, frame: Frame, line: int, format: StackFrameFormat | None) -> str:
    """The name with the details that the client requests."""
    if format is None:
        return name
    if format.parameters:
        name += f"({', '.join(_parameters(session, frame, format))})"
    if format.module:
        name = f"{session.program.debugger.program.entry}!{name}"
    return f"{name}, line {session.client.outgoing_line(line)}" if format.line else name


def _parameters(session: Session, frame: Frame, format: StackFrameFormat) -> Iterator[str]:
    """The inputs of the block, each with name and type as requested."""
    for value in frame.code.graph.inputs:
        known = frame.code.types.get(value.name) or value.type
        parts = [spelled(value.name)] if format.parameter_names is not False else []
        parts += [str(known)] if format.parameter_types and known is not None else []
        if value.name:
            yield ": ".join(parts)


def _source_frame(session: Session, entry: StackEntry, origin: tuple[str, int]) -> StackFrame:
    file, line = origin
    source = session.program.sources.of_model(file)
    innermost = entry.number == 0 and entry.depth == len(session.program.debugger.control.stack) - 1
    return StackFrame(
        id=session.handles.number(SourcePlace(frame_place(session, entry.depth), entry.number)),
        name=f"{os.path.basename(file)}:{line}",
        source=source,
        line=session.client.outgoing_line(line),
        column=session.client.outgoing_column(1),
        can_restart=False,
        # VS Code hides several subtle frames.
        presentation_hint="normal" if innermost and source.path is not None else "subtle",
    )
