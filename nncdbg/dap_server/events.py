"""The one table from what the engine says to events of the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nncdbg.dap_server.protocol.events import ExitedEventBody, StoppedEventBody, TerminatedEventBody

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.control import Stop

MAIN_THREAD = 1
"""The one stream of the schedule."""

REASONS = {
    "entry": ("entry", "Stopped on entry"),
    "breakpoint": ("breakpoint", "Stopped at a breakpoint"),
    "step": ("step", "Stopped after a step"),
    "data": ("data breakpoint", "A watched value was written"),
    "exception": ("exception", "Stopped by what was caught"),
    "goto": ("goto", "Went there"),
    "pause": ("pause", "Paused"),
    "end": ("exit", "The program has ended"),
}
"""Reason of a `Stop` to the protocol's reason, and what a person reads."""


def report_stop(session: Session, stop: Stop) -> None:
    """Tell the client where and why the program stands."""
    reason, description = REASONS[stop.reason]
    session.send_event(
        "stopped",
        StoppedEventBody(
            reason=reason,
            description=description,
            thread_id=MAIN_THREAD,
            text=stop.detail or None,
            all_threads_stopped=True,
            hit_breakpoint_ids=list(stop.breakpoints) or None,
        ),
    )


def report_end(session: Session, exit_code: int) -> None:
    """Tell the client that there is nothing more to debug."""
    session.send_event("exited", ExitedEventBody(exit_code=exit_code))
    session.send_event("terminated", TerminatedEventBody())
