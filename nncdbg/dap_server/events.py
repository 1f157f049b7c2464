"""The table from the program's stops to events of the protocol."""

from __future__ import annotations

import os
from struct import calcsize
from typing import TYPE_CHECKING, Literal

from nncdbg.dap_server import protocol
from nncdbg.dap_server.breakpoints.exception_filters import LABELS
from nncdbg.errors import NncdbgError
from nncdbg.escaping import printable

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.target.records import Message, Stop

MAIN_THREAD = 1
"""The program; with a schedule, the host."""

REASONS = {
    "entry": ("entry", "Stopped on entry"),
    "breakpoint": ("breakpoint", "Stopped at a breakpoint"),
    "step": ("step", "Stopped after a step"),
    "data": ("data breakpoint", "A watched value was written"),
    "exception": ("exception", "Stopped by a caught finding"),
    "goto": ("goto", "Stopped at the goto target"),
    "restart": ("restart", "Back at the start of the frame"),
    "pause": ("pause", "Paused"),
    "end": ("exit", "The program has ended"),
}
"""From the reason of a `Stop` to the protocol's reason and its description."""

_WITH_PLACE = ("goto", "pause")
"""Reasons of stops whose detail says more than the description, such as `the end of step 4`."""

KINDS = {
    "function": ("function breakpoint", "Stopped at a function breakpoint"),
    "instruction": ("instruction breakpoint", "Stopped at an instruction breakpoint"),
}
"""The same for kinds of client breakpoints that have their own description."""


def report_stop(session: Session, stop: Stop) -> None:
    """Report to the client where and why the program stopped."""
    session.program.modules.announce(session.client)
    if session.window is not None:
        session.window.arrived(stop)
    attachment = session.attachment
    in_script = attachment is not None and attachment.script is not None
    # The client sets breakpoints in the script, not in a program that the script debugs itself.
    shown = not in_script or (attachment is not None and attachment.holds(session.program.target))
    hit = session.breakpoints.kept(stop.breakpoints) if shown else []
    kind = hit[0].kind if hit and stop.reason == "breakpoint" else ""
    reason, description = KINDS.get(kind) or REASONS[stop.reason]
    ids, text = [kept.id for kept in hit], stop.detail
    if stop.finding is not None:
        description = LABELS.get(stop.finding.kind, description)
        ids += session.exception_filters.ids(stop.finding.kind)
    if stop.error is not None:
        description = "The statement failed"
        text = stop.error.message if isinstance(stop.error, NncdbgError) else text
    elif stop.reason in _WITH_PLACE and text:
        description = f"{text[0].upper()}{text[1:]}"
    session.client.send_event(
        "stopped",
        protocol.StoppedEventBody(
            reason=reason,
            description=description,
            thread_id=session.program.moved_thread if stop.reason == "step" else MAIN_THREAD,
            text=text or None,
            all_threads_stopped=True,
            hit_breakpoint_ids=ids or None,
        ),
    )


def report_message(session: Session, message: Message) -> None:
    """Print the message of a logpoint in the client's console, with its place."""
    line = session.client.outgoing_line(message.line) if message.line is not None else None
    body = protocol.OutputEventBody(
        category="console",
        output=f"{printable(message.text)}\n",
        source=session.program.sources.of_place(message.place),
        line=line,
    )
    session.client.send_event("output", body)


def report_continued(session: Session) -> None:
    """Report that the program continues, where no request of the client implies it."""
    body = protocol.ContinuedEventBody(thread_id=MAIN_THREAD, all_threads_continued=True)
    session.client.send_event("continued", body)


def report_change(session: Session) -> None:
    """Report that values were set, so that the client reads all values again."""
    client = session.client.arguments
    if client.supports_invalidated_event:
        session.client.send_event("invalidated", protocol.InvalidatedEventBody(areas=["variables"]))
    if client.supports_memory_event:
        for reference, count in session.read_memory.items():
            body = protocol.MemoryEventBody(memory_reference=reference, offset=0, count=count)
            session.client.send_event("memory", body)


def report_process(session: Session, name: str, start_method: Literal["launch", "attach"]) -> None:
    """Report the process that is debugged."""
    body = protocol.ProcessEventBody(
        name=name,
        system_process_id=os.getpid(),
        is_local_process=True,
        start_method=start_method,
        pointer_size=8 * calcsize("P"),
    )
    session.client.send_event("process", body)


def report_start(session: Session) -> None:
    """Report the start of the program."""
    session.client.send_event("thread", protocol.ThreadEventBody(reason="started", thread_id=MAIN_THREAD))


def report_end(session: Session, exit_code: int, *, started: bool = True) -> None:
    """Report the end of debugging; `started` is whether the program had begun."""
    if started:
        session.client.send_event("thread", protocol.ThreadEventBody(reason="exited", thread_id=MAIN_THREAD))
        if session.window is not None:
            session.window.show(f"the program has ended with exit code {exit_code}")
    session.client.send_event("exited", protocol.ExitedEventBody(exit_code=exit_code))
    session.client.send_event("terminated", protocol.TerminatedEventBody())
