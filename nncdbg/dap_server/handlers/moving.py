"""Stepping and continuing, forward and back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from nncdbg.dap_server.client_recorder import GOTO
from nncdbg.dap_server.events import MAIN_THREAD
from nncdbg.dap_server.handlers.targets import step_into_target
from nncdbg.dap_server.protocol.requests import ContinueBody, ThreadsBody
from nncdbg.dap_server.registry import ALWAYS, LIVE, STOPPED, State, request
from nncdbg.dap_server.stream_threads import stream_of_thread, thread_list
from nncdbg.dap_server.variables.places import frame_depth
from nncdbg.engine.errors import UsageError
from nncdbg.engine.schedules.launches import stream_name
from nncdbg.engine.time.visits import left_micro_program

if TYPE_CHECKING:
    from nncdbg.dap_server.debuggee import Verb
    from nncdbg.dap_server.protocol.requests import (
        CancelArguments,
        ContinueArguments,
        NextArguments,
        PauseArguments,
        RestartFrameArguments,
        ReverseContinueArguments,
        StepBackArguments,
        StepInArguments,
        StepOutArguments,
        TerminateThreadsArguments,
    )
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.stopping.stops import Stop


class ReverseArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    thread_id: int = MAIN_THREAD


class RecordStepArguments(msgspec.Struct, frozen=True, kw_only=True):
    """No arguments."""


@request("threads", when=LIVE, anytime=True)
def threads(session: Session, arguments: object) -> ThreadsBody:
    return ThreadsBody(threads=thread_list(session))


@request(
    "terminateThreads",
    when=frozenset({State.RUNNING, State.STOPPED}),
    capability="supportsTerminateThreadsRequest",
)
def terminate_threads(session: Session, arguments: TerminateThreadsArguments) -> None:
    """End the program: its threads end together."""
    if not arguments.thread_ids:
        raise UsageError("`threadIds` is empty", hint=f"use thread {MAIN_THREAD}")
    for number in arguments.thread_ids:
        stream_of_thread(session, number)
    session.defer(lambda: session.program.terminate(session))


# -- forward -------------------------------------------------------------------------------------


@request("continue", when=STOPPED, moves=True, capability="supportsSingleThreadExecutionRequests")
def continue_(session: Session, arguments: ContinueArguments) -> ContinueBody:
    _forward(session, arguments.thread_id, None)
    return ContinueBody(all_threads_continued=True)


@request("next", when=STOPPED, moves=True, capability="supportsSteppingGranularity")
def next_(session: Session, arguments: NextArguments) -> None:
    debugger = session.program.debugger
    if arguments.granularity == "instruction" and _enters_micro_program(session):
        _forward(session, arguments.thread_id, lambda: debugger.step_into(micro=True), "stepi")
    elif arguments.thread_id != MAIN_THREAD:
        stream = stream_of_thread(session, arguments.thread_id)
        _forward(session, arguments.thread_id, lambda: _follow(session, stream))
    else:
        _forward(session, arguments.thread_id, debugger.step_over, "next")


def _follow(session: Session, stream: int) -> Stop:
    """Run until the next statement of a stream has been executed, recorded as commands of the prompt."""
    recorder = session.program.recorder
    recorder.command(f"stream {stream_name(stream)}", results=False)
    recorder.departs("next")
    stop = session.program.debugger.step_stream(stream)
    recorder.arrives("next")
    recorder.command("stream all", results=False)
    return stop


def _enters_micro_program(session: Session) -> bool:
    """Return whether an instruction step enters the op's micro program; inside one, it is one statement."""
    debugger = session.program.debugger
    return debugger.control.stack[-1].code.formula is None and debugger.control.micro_program() is not None


@request("stepIn", when=STOPPED, moves=True)
def step_in(session: Session, arguments: StepInArguments) -> None:
    if arguments.target_id is not None:
        stream_of_thread(session, arguments.thread_id)
        step_into_target(session, arguments.target_id)
        return
    debugger = session.program.debugger
    micro = arguments.granularity == "instruction" and debugger.control.micro_program() is not None
    command = "stepi" if micro else "step"
    _forward(session, arguments.thread_id, lambda: debugger.step_into(micro=micro), command)


@request("stepOut", when=STOPPED, moves=True)
def step_out(session: Session, arguments: StepOutArguments) -> None:
    _forward(session, arguments.thread_id, session.program.debugger.step_out, "finish")


def _forward(session: Session, thread: int, verb: Verb | None, command: str | None = None) -> None:
    """Move by a verb, the `command` of the prompt, or continue; at the end of the program, end it."""
    stream_of_thread(session, thread)
    debuggee = session.program
    debuggee.moved_thread = thread
    if debuggee.debugger.ended:
        session.defer(lambda: debuggee.end(session, 0))
    elif verb is None:
        debuggee.go_on(session)
    else:
        debuggee.move(session, verb, command)


# -- back ------------------------------------------------------------------------------------------


@request("stepBack", when=STOPPED, moves=True, capability="supportsStepBack")
def step_back(session: Session, arguments: StepBackArguments) -> None:
    micro = arguments.granularity == "instruction"
    debugger = session.program.debugger
    command = "rback" if micro and left_micro_program(debugger.control.machine) else "back"
    _backward(session, arguments.thread_id, lambda: debugger.step_back(micro=micro), command)


@request("reverseContinue", when=STOPPED, moves=True)
def reverse_continue(session: Session, arguments: ReverseContinueArguments) -> None:
    _backward(session, arguments.thread_id, session.program.debugger.reverse_continue, "rcontinue")


@request("nncdbg/reverseStepIn", when=STOPPED, moves=True, arguments=ReverseArguments)
def reverse_step_in(session: Session, arguments: ReverseArguments) -> None:
    """Undo the last executed statement, in any frame; the server sends `continued` and `stopped`."""
    _backward(session, arguments.thread_id, session.program.debugger.step_back_into, "rback", unasked=True)


@request("nncdbg/reverseStepOut", when=STOPPED, moves=True, arguments=ReverseArguments)
def reverse_step_out(session: Session, arguments: ReverseArguments) -> None:
    """Go back to the statement that began the innermost frame; the server sends `continued` and `stopped`."""
    verb = session.program.debugger.reverse_step_out
    _backward(session, arguments.thread_id, verb, "rfinish", unasked=True)


def _backward(session: Session, thread: int, verb: Verb, command: str, *, unasked: bool = False) -> None:
    stream_of_thread(session, thread)
    session.program.moved_thread = thread
    session.program.debugger.control.check_past()
    session.program.move(session, verb, command, unasked=unasked)


@request("restartFrame", when=STOPPED, moves=True, capability="supportsRestartFrame")
def restart_frame(session: Session, arguments: RestartFrameArguments) -> None:
    depth = frame_depth(session, arguments.frame_id)
    if depth is None:
        raise UsageError("the frame no longer exists", hint="request the stack again")
    debugger = session.program.debugger
    tick = debugger.control.stack[depth].entered

    def rewind() -> Stop:
        return replace(debugger.go_to(tick), reason="restart")

    session.program.move(session, rewind, GOTO)


# -- pausing and cancelling ------------------------------------------------------------------------


@request("pause", when=LIVE, anytime=True)
def pause(session: Session, arguments: PauseArguments) -> None:
    def hold() -> None:
        with session.queue.turn:
            if session.queue.moving and session.debuggee is not None:
                session.debuggee.pause()
            elif session.attachment is not None and session.state is State.RUNNING:
                session.attachment.pause_next()

    session.defer(hold)


@request("nncdbg/recordStep", when=STOPPED, moves=True, arguments=RecordStepArguments)
def record_step(session: Session, arguments: RecordStepArguments) -> dict[str, str]:
    """Continue a script under the live debugger to the end of a training step, recorded whole.

    Return a `text` for the user.
    """
    script = session.attachment.script if session.attachment is not None else None
    if script is None:
        raise UsageError(
            "no script runs under the live debugger",
            hint="start it with `nncdbg debug --listen HOST:PORT SCRIPT`, and attach",
        )
    return {"text": script.record_step(session)}


@request("cancel", when=ALWAYS, capability="supportsCancelRequest", anytime=True)
def cancel(session: Session, arguments: CancelArguments) -> None:
    if arguments.request_id is not None:
        session.cancel(arguments.request_id)
    if arguments.progress_id is not None:
        session.progress.cancel(arguments.progress_id)
