"""A Python debugger for the kernels: a child session of debugpy on this process.

Where an op's kernel is a Python function, the user can step into it: the server requests the client to start
a session of debugpy that attaches here, and runs the statement so that the function stops at its first line.
Afterwards the program is after the statement, as after any step.  Breakpoints in kernels work while a Python
debugger is attached; without one, nothing is traced.
"""

from __future__ import annotations

from types import CodeType
from typing import TYPE_CHECKING, Any

from nncdbg.dap_server.kernel_debugger import (
    PACE,
    cancelling,
    imported_debugpy,
    kernel_at,
    listen,
    stopping_in,
    trace_kernels,
)
from nncdbg.engine.errors import UsageError
from nncdbg.engine.process.threads import BackgroundThread

if TYPE_CHECKING:
    from nncdbg.dap_server.messages import Answer
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.stopping.stops import Stop


def can_step_into_kernel(session: Session) -> bool:
    """Return whether the next statement has a kernel in Python, and the client can debug it."""
    able = session.client.arguments.supports_start_debugging_request
    return bool(able) and kernel_at(session.program.debugger) is not None


def step_into_kernel(session: Session) -> None:
    """Answer the current request, then run the next statement; its kernel stops at its first line.

    Raises UsageError if there is no such kernel, or no Python debugger.
    """
    code = kernel_at(session.program.debugger)
    if code is None:
        raise UsageError("this statement has no Python kernel", hint="step over it")
    if not session.client.arguments.supports_start_debugging_request:
        raise UsageError("this client cannot start a second session for the Python debugger")
    imported_debugpy()
    session.program.move(session, lambda: _step(session, code), "next")


def _step(session: Session, code: CodeType) -> Stop:
    """Run the statement on the thread that moves the program, and stop in its kernel."""
    debugpy = imported_debugpy()
    if not debugpy.is_client_connected():
        _attach(session, debugpy)
    try:
        with stopping_in(code) as called:
            stop = session.program.debugger.step_over()
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
    if session.queue.closing or session.program.debugger.control.paused:
        return "stopped waiting for the Python debugger"
    return None


def _end_tracing(session: Session, debugpy: Any) -> None:
    """Stop tracing a running program when the Python debugger has disconnected."""
    while debugpy.is_client_connected():
        if session.queue.ended(PACE * 10):
            return
    session.program.debugger.control.between_statements(trace_kernels)
