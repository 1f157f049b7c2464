"""Forward and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nncdbg.dap_server.events import MAIN_THREAD
from nncdbg.dap_server.protocol.requests import ContinueBody, ThreadsBody
from nncdbg.dap_server.protocol.types import Thread
from nncdbg.dap_server.registry import LIVE, STOPPED, request

if TYPE_CHECKING:
    from nncdbg.dap_server.protocol.requests import (
        ContinueArguments,
        NextArguments,
        PauseArguments,
        StepInArguments,
        StepOutArguments,
    )
    from nncdbg.dap_server.session import Session


@request("threads", when=LIVE, anytime=True)
def threads(session: Session, arguments: object) -> ThreadsBody:
    return ThreadsBody(threads=[Thread(id=MAIN_THREAD, name="main")])


@request("continue", when=STOPPED, moves=True)
def continue_(session: Session, arguments: ContinueArguments) -> ContinueBody:
    session.program.move(session, session.program.debugger.run)
    return ContinueBody(all_threads_continued=True)


@request("next", when=STOPPED, moves=True)
def next_(session: Session, arguments: NextArguments) -> None:
    session.program.move(session, session.program.debugger.step_over)


@request("stepIn", when=STOPPED, moves=True)
def step_in(session: Session, arguments: StepInArguments) -> None:
    session.program.move(session, session.program.debugger.step_into)


@request("stepOut", when=STOPPED, moves=True)
def step_out(session: Session, arguments: StepOutArguments) -> None:
    session.program.move(session, session.program.debugger.step_out)


@request("pause", when=LIVE, anytime=True)
def pause(session: Session, arguments: PauseArguments) -> None:
    if session.moving:
        session.program.debugger.pause()
