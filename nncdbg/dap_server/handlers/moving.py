"""Stepping and continuing, forward and back, into targets and to lines.

Where an op's kernel is a Python function, the user can step into it: the server requests the client to start
a session of debugpy that attaches here, and runs the statement so that the function stops at its first line.
Afterwards the program is after the statement, as after any step.  Breakpoints in kernels work while a Python
debugger is attached; without one, nothing is traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import CodeType
from typing import TYPE_CHECKING, Any

import msgspec

from nncdbg.dap_server import protocol
from nncdbg.dap_server.client_recorder import GOTO
from nncdbg.dap_server.events import MAIN_THREAD, report_stop
from nncdbg.dap_server.handlers.stack import stream_of_thread, thread_list
from nncdbg.dap_server.kernel_debugger import (
    PACE,
    cancelling,
    imported_debugpy,
    listen,
    stopping_in,
    trace_kernels,
)
from nncdbg.dap_server.registry import ALWAYS, LIVE, STILL, STOPPED, State, request
from nncdbg.dap_server.sources.addresses import address_of, reference_of
from nncdbg.dap_server.sources.calls import line_move
from nncdbg.dap_server.variables.places import frame_depth
from nncdbg.errors import UsageError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.streams import stream_name
from nncdbg.process.threads import BackgroundThread
from nncdbg.target.target import check_past

if TYPE_CHECKING:
    from nncdbg.dap_server.debuggee import Verb
    from nncdbg.dap_server.messages import Answer
    from nncdbg.dap_server.session import Session
    from nncdbg.target.records import Place, Stop
    from nncdbg.text.listing import Listing, Site


class ReverseArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    thread_id: int = MAIN_THREAD


class RecordStepArguments(msgspec.Struct, frozen=True, kw_only=True):
    """No arguments."""


@request("threads", when=LIVE, anytime=True)
def threads(session: Session, arguments: object) -> protocol.ThreadsBody:
    return protocol.ThreadsBody(threads=thread_list(session))


@request(
    "terminateThreads",
    when=frozenset({State.RUNNING, State.STOPPED}),
    capability="supportsTerminateThreadsRequest",
)
def terminate_threads(session: Session, arguments: protocol.TerminateThreadsArguments) -> None:
    """End the program: its threads end together."""
    if not arguments.thread_ids:
        raise UsageError("`threadIds` is empty", hint=f"use thread {MAIN_THREAD}")
    for number in arguments.thread_ids:
        stream_of_thread(session, number)
    session.defer(lambda: session.program.terminate(session))


# -- forward -------------------------------------------------------------------------------------

STEPPABLE = STOPPED | {State.ENDED}
"""A step after the end has no effect: the client may send it before it receives the end."""


@request("continue", when=STOPPED, moves=True, capability="supportsSingleThreadExecutionRequests")
def continue_(session: Session, arguments: protocol.ContinueArguments) -> protocol.ContinueBody:
    _forward(session, arguments.thread_id, None)
    return protocol.ContinueBody(all_threads_continued=True)


@request("next", when=STEPPABLE, moves=True, capability="supportsSteppingGranularity")
def next_(session: Session, arguments: protocol.NextArguments) -> None:
    if session.state is State.ENDED:
        return
    target = session.program.target
    # Inside a micro program, an instruction is one statement.
    if (move := line_move(session, "next", "nexti", arguments.granularity)) is not None:
        _forward(session, arguments.thread_id, *move)
    elif (
        arguments.granularity == "instruction" and target.frame(0).place.micro is None and target.inside()[0]
    ):
        _forward(session, arguments.thread_id, lambda: target.step_into(micro=True), "stepi")
    elif arguments.thread_id != MAIN_THREAD:
        stream = stream_of_thread(session, arguments.thread_id)
        _forward(session, arguments.thread_id, lambda: _follow(session, stream))
    else:
        _forward(session, arguments.thread_id, target.step_over, "next")


def _follow(session: Session, stream: int) -> Stop:
    """Run until the next statement of a stream has been executed, recorded as commands of the prompt."""
    recorder = session.program.recorder
    recorder.command(f"stream {stream_name(stream)}", results=False)
    recorder.departs("next")
    stop = session.program.target.step_over(stream)
    recorder.arrives("next")
    recorder.command("stream all", results=False)
    return stop


@request("stepIn", when=STEPPABLE, moves=True)
def step_in(session: Session, arguments: protocol.StepInArguments) -> None:
    if session.state is State.ENDED:
        return
    if arguments.target_id is not None:
        stream_of_thread(session, arguments.thread_id)
        step_into_target(session, arguments.target_id)
        return
    if (move := line_move(session, "step", "nexti", arguments.granularity)) is not None:
        _forward(session, arguments.thread_id, *move)
        return
    target = session.program.target
    micro = arguments.granularity == "instruction" and target.inside()[0]
    command = "stepi" if micro else "step"
    _forward(session, arguments.thread_id, lambda: target.step_into(micro=micro), command)


@request("stepOut", when=STEPPABLE, moves=True)
def step_out(session: Session, arguments: protocol.StepOutArguments) -> None:
    if session.state is State.ENDED:
        return
    move = line_move(session, "finish") or (session.program.target.step_out, "finish")
    _forward(session, arguments.thread_id, *move)


def _forward(session: Session, thread: int, verb: Verb | None, command: str | None = None) -> None:
    """Move by a verb, the `command` of the prompt, or continue.

    At the end of the program, a step has no effect, and to continue ends the session.
    """
    stream_of_thread(session, thread)
    debuggee = session.program
    debuggee.moved_thread = thread
    if verb is None:
        if debuggee.target.now.ended:
            session.defer(lambda: debuggee.end(session, 0))
        else:
            debuggee.go_on(session)
    elif debuggee.target.now.ended:
        # The response to a step implies that the program continues.
        session.defer(lambda: report_stop(session, debuggee.target.stop))
    else:
        debuggee.move(session, verb, command, step=True)


# -- back ------------------------------------------------------------------------------------------


@request("stepBack", when=STOPPED, moves=True, capability="supportsStepBack")
def step_back(session: Session, arguments: protocol.StepBackArguments) -> None:
    if (move := line_move(session, "back", "backi", arguments.granularity)) is not None:
        _backward(session, arguments.thread_id, *move)
        return
    micro = arguments.granularity == "instruction"
    target = session.program.target
    command = "rback" if micro and target.now.left_micro else "back"
    _backward(session, arguments.thread_id, lambda: target.step_back(micro=micro), command)


@request("reverseContinue", when=STOPPED, moves=True)
def reverse_continue(session: Session, arguments: protocol.ReverseContinueArguments) -> None:
    _backward(session, arguments.thread_id, session.program.target.reverse_continue, "rcontinue")


@request("nncdbg/reverseStepIn", when=STOPPED, moves=True, arguments=ReverseArguments)
def reverse_step_in(session: Session, arguments: ReverseArguments) -> None:
    """Undo the last executed statement, in any frame; the server sends `continued` and `stopped`."""
    target = session.program.target
    move = line_move(session, "rback") or (lambda: target.step_back(into=True), "rback")
    _backward(session, arguments.thread_id, *move, unasked=True)


@request("nncdbg/reverseStepOut", when=STOPPED, moves=True, arguments=ReverseArguments)
def reverse_step_out(session: Session, arguments: ReverseArguments) -> None:
    """Go back to the statement that began the innermost frame; the server sends `continued` and `stopped`."""
    target = session.program.target
    move = line_move(session, "rfinish") or (lambda: target.step_out(back=True), "rfinish")
    _backward(session, arguments.thread_id, *move, unasked=True)


def _backward(session: Session, thread: int, verb: Verb, command: str, *, unasked: bool = False) -> None:
    stream_of_thread(session, thread)
    session.program.moved_thread = thread
    check_past(session.program.target)
    session.program.move(session, verb, command, unasked=unasked, step=command != "rcontinue")


@request("restartFrame", when=STOPPED, moves=True, capability="supportsRestartFrame")
def restart_frame(session: Session, arguments: protocol.RestartFrameArguments) -> None:
    depth = frame_depth(session, arguments.frame_id)
    if depth is None:
        raise UsageError("the frame no longer exists", hint="request the stack again")
    target = session.program.target
    frame = target.frame(target.frame(0).depth - depth)

    def rewind() -> Stop:
        return replace(target.go_to(frame.entered), reason="restart")

    session.program.move(session, rewind, GOTO)


# -- pausing and cancelling ------------------------------------------------------------------------


@request("pause", when=LIVE, anytime=True)
def pause(session: Session, arguments: protocol.PauseArguments) -> None:
    def hold() -> None:
        with session.queue.turn:
            session.skip_moves()
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
def cancel(session: Session, arguments: protocol.CancelArguments) -> None:
    if arguments.request_id is not None:
        session.cancel(arguments.request_id)
    if arguments.progress_id is not None:
        session.progress.cancel(arguments.progress_id)


# -- into -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IntoPlace:
    """A step-in target of the statement at an address: its block, its micro program, or its kernel."""

    address: int
    what: str


@request("stepInTargets", when=STOPPED, capability="supportsStepInTargetsRequest", reads=True)
def step_in_targets(
    session: Session, arguments: protocol.StepInTargetsArguments
) -> protocol.StepInTargetsBody:
    frame = session.program.target.frame(0)
    if frame_depth(session, arguments.frame_id) != frame.depth:
        return protocol.StepInTargetsBody(targets=[])  # the statement of an outer frame has already begun
    address = address_of(session, frame.place)
    line = session.client.outgoing_line(frame.line)
    return protocol.StepInTargetsBody(
        targets=[
            protocol.StepInTarget(id=session.handles.number(IntoPlace(address, what)), label=label, line=line)
            for what, label in _step_targets(session)
        ]
    )


def _step_targets(session: Session) -> Iterator[tuple[str, str]]:
    target = session.program.target
    node = target.frame(0).node
    if target.now.ended or node is None:
        return
    if node.kind is Kind.CALL:
        yield "block", node.op
    elif node.kind in (Kind.IF, Kind.WHILE):
        names = " or ".join(f"@{graph.name}" for graph in node.subgraphs if graph.name)
        yield "block", f"{'branch' if node.kind is Kind.IF else 'loop'} {names}".rstrip()
    micro, kernel = target.inside()
    if micro:
        yield "micro", f"micro program of {node.op}"
    # In Python, and for a client that can debug it.
    if session.client.arguments.supports_start_debugging_request and kernel is not None:
        yield "kernel", f"kernel of {node.op} (Python)"


def step_into_target(session: Session, number: int) -> None:
    """Step into one of the targets.  Raises UsageError if the program is not at its statement."""
    target = session.program.target
    place = session.handles.place(number)
    if (
        not isinstance(place, IntoPlace)
        or place.address != address_of(session, target.frame(0).place)
        or place.what not in dict(_step_targets(session))
    ):
        raise UsageError("unknown or expired target", hint="request stepInTargets again")
    if place.what == "kernel":
        step_into_kernel(session)
        return
    micro = place.what == "micro"
    command = "stepi" if micro else "step"
    session.program.move(session, lambda: target.step_into(micro=micro), command)


# -- to ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToPlace:
    """A statement of a text (the program's, or a micro program by its number) to go back or forward to."""

    source_reference: int
    site: Site
    back: bool


@request("gotoTargets", when=STILL, capability="supportsGotoTargetsRequest", reads=True)
def goto_targets(session: Session, arguments: protocol.GotoTargetsArguments) -> protocol.GotoTargetsBody:
    listing = session.program.sources.listing(arguments.source)
    if listing is None:
        raise UsageError(
            "this source is not part of the program", hint="request the sources with `loadedSources`"
        )
    found = listing.next_site(session.client.incoming_line(arguments.line))
    if found is None:
        return protocol.GotoTargetsBody(targets=[])
    line, site = found
    reference = arguments.source.source_reference or 0
    place = _placed(session, listing, site)
    ways = [ToPlace(reference, site, back) for back in _directions(session, place)]
    return protocol.GotoTargetsBody(
        targets=[
            protocol.GotoTarget(
                id=session.handles.number(way),
                label=_label(line, way, listing),
                line=session.client.outgoing_line(line),
                # A graph that was not entered yet has no addresses.
                instruction_pointer_reference=reference_of(session, place) if place.block else None,
            )
            for way in ways
        ]
    )


def _label(line: int, place: ToPlace, listing: Listing) -> str:
    text = listing.statement(line).strip()
    way = "back to when it last ran" if place.back else "forward, running up to it"
    return f"line {line}, {way}: {text}"


def _placed(session: Session, listing: Listing, site: Site) -> Place:
    """Return the statement at a site of the program, or of a micro program."""
    target = session.program.target
    if listing is target.listing:
        return target.place(site.path, site.pc)
    blocks = target.blocks()
    return next(
        block.at(site.pc)
        for block in blocks
        if block.path == site.path and block.listing.lines == listing.lines
    )


def _directions(session: Session, place: Place) -> list[bool]:
    """The possible directions to a statement (True is back), the more likely one first.

    In a loop both are possible: the statement ran in the last iteration, and runs again in this one.
    """
    target = session.program.target
    within = next((frame for frame in target.frames() if frame.place.shares_block(place)), None)
    # A micro program is entered only by stepping into it, so one that is not open is never reached by
    # running.
    forward = not target.now.ended and (place.micro is None or within is not None)
    ways = [*([True] if target.last_visit(place) is not None else []), *([False] if forward else [])]
    ahead = within is not None and within.place.pc < place.pc
    return ways[::-1] if ahead else ways


@request("goto", when=STOPPED, moves=True)
def goto(session: Session, arguments: protocol.GotoArguments) -> None:
    stream_of_thread(session, arguments.thread_id)
    place = session.handles.place(arguments.target_id)
    if not isinstance(place, ToPlace):
        raise UsageError("unknown or expired target", hint="request gotoTargets again")
    target = session.program.target
    listing = session.program.sources.numbered(place.source_reference)
    if listing is None:
        raise UsageError("unknown or expired target", hint="request gotoTargets again")
    there = _placed(session, listing, place.site)
    if not place.back:
        session.program.move(session, lambda: target.run(to=there), GOTO)
        return
    tick = target.last_visit(there)
    if tick is None:
        raise UsageError("this statement has not run yet", hint="request gotoTargets again")
    session.program.move(session, lambda: _with_goto_reason(target.go_to(tick)), GOTO)


def _with_goto_reason(stop: Stop) -> Stop:
    """Report `goto` as the reason, at the very start too."""
    return replace(stop, reason="goto") if stop.reason == "entry" else stop


def step_into_kernel(session: Session) -> None:
    """Answer the current request, then run the next statement; its kernel stops at its first line.

    Raises UsageError if there is no such kernel, or no Python debugger.
    """
    code = session.program.target.inside()[1]
    if code is None:
        raise UsageError("this statement has no Python kernel", hint="step over it")
    if not session.client.arguments.supports_start_debugging_request:
        raise UsageError("this client cannot start a second session for the Python debugger")
    imported_debugpy()
    session.program.move(session, lambda: _step_in_kernel(session, code), "next")


def _step_in_kernel(session: Session, code: CodeType) -> Stop:
    """Run the statement on the thread that moves the program, and stop in its kernel."""
    debugpy = imported_debugpy()
    if not debugpy.is_client_connected():
        _attach(session, debugpy)
    try:
        with stopping_in(code) as called:
            stop = session.program.target.step_over()
    finally:
        trace_kernels()
    if not called:
        session.client.say(f"{code.co_name} was not called: the backend ran another kernel")
    return stop


def _attach(session: Session, debugpy: Any) -> None:
    """Make the client attach a Python debugger.  Raises UsageError if it does not, or on cancellation."""
    host, port = listen(debugpy)
    configuration = {
        "type": "debugpy",
        "request": "attach",
        "name": f"kernels of {session.program.sources.name}",
        "connect": {"host": host, "port": port},
        "justMyCode": False,
    }
    refused: list[str] = []

    def answered(answer: Answer) -> None:
        if not answer.success:
            refused.append(
                f"the client did not start the Python debugger: {answer.message or 'no reason given'}"
            )

    session.client.say(f"waiting for the Python debugger to attach to {host}:{port}; pause cancels")
    session.client.request("startDebugging", {"request": "attach", "configuration": configuration}, answered)
    with cancelling(debugpy.wait_for_client, lambda: _reason(session, refused)) as reasons:
        debugpy.wait_for_client()
    if not debugpy.is_client_connected():
        reason = reasons[0] if reasons else "the Python debugger has disconnected"
        raise UsageError(reason, hint="step over the statement, or try again")
    watching = BackgroundThread(target=_end_tracing, args=(session, debugpy), name="nncdbg-dap-child")
    watching.start()


def _reason(session: Session, refused: list[str]) -> str | None:
    """Return the reason to stop waiting; None to continue."""
    if refused:
        return refused[0]
    if session.queue.closing or session.program.target.now.paused:
        return "stopped waiting for the Python debugger"
    return None


def _end_tracing(session: Session, debugpy: Any) -> None:
    """Stop tracing a running program when the Python debugger has disconnected."""
    while debugpy.is_client_connected():
        if session.queue.ended(PACE * 10):
            return
    session.program.target.between_statements(trace_kernels)
