"""Streams of a schedule as threads: the host is the main thread, and each stream a thread with one frame.

The frame is the next statement of the stream in the current block; its name tells what it waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nncdbg.dap_server.events import MAIN_THREAD
from nncdbg.dap_server.protocol.types import StackFrame, Thread
from nncdbg.dap_server.sources.instructions import reference_of
from nncdbg.dap_server.variables.places import SourcePlace, frame_place
from nncdbg.engine.errors import UsageError
from nncdbg.engine.schedules.launches import HOST
from nncdbg.engine.schedules.streams import stream_states, streams_of

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.schedules.streams import StreamState

_FIRST = 2
"""The thread of stream 0."""

_PLACES = 1 << 20
"""Numbers of places from here on belong to streams, not to lines of the model."""


def thread_list(session: Session) -> list[Thread]:
    """Return the threads: one, or with a schedule the host and one for each stream, with its device."""
    streams = streams_of(session.program.debugger.program) if session.debuggee is not None else ()
    if not streams:
        return [Thread(id=MAIN_THREAD, name="main")]
    devices = session.program.debugger.program.streams
    return [
        Thread(id=MAIN_THREAD, name="host"),
        *(
            Thread(
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


def stream_frames(session: Session, stream: int) -> list[StackFrame]:
    """Return the frame of a stream: its next statement; an empty list at its end in this block."""
    debugger = session.program.debugger
    depth = len(debugger.control.stack) - 1
    frame = debugger.control.stack[depth]
    states = stream_states(debugger.program, frame.code, frame.pc)
    state = next(each for each in states if each.number == stream)
    if state.pc is None:
        return []
    line = debugger.loaded.line(frame.code, state.pc)
    assert line is not None, "each statement has its own line"
    return [
        StackFrame(
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
