"""A Python debugger for the kernels: a child session of debugpy on this very process.

Where an op's kernel is a Python function, one can step into it: the client is asked to start a
session of debugpy that attaches here, and the statement is run so that the function stops at its
first line.  After it the program stands behind the statement, as after any step.  While somebody
is attached, breakpoints in kernels hold; with nobody, nothing is traced and nothing is slower.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from nncdbg.engine.errors import UsageError
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.engine.process.threads import BackgroundThread

if TYPE_CHECKING:
    from nncdbg.dap_server.messages import Answer
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.stopping.control import Stop

PATIENCE = 60.0
"""Seconds in which the client's Python debugger has to attach."""

PACE = 0.05
"""Seconds between two looks at whether it has, or is wanted no more."""

_listening: list[tuple[str, int]] = []
"""Where debugpy listens in this process; it can be asked only once."""


def kernel_at(debugger: Debugger) -> CodeType | None:
    """The code of the Python function that runs the next statement; None where none does."""
    frame = debugger.stack[-1]
    if debugger.ended or frame.pc == len(frame.code.nodes):
        return None
    if debugger.backend.name not in _PYTHON or not frame.code.runs_kernel(frame.pc):
        return None
    name = frame.code.nodes[frame.pc].op
    op = lookup(name, version_of(name, frame.code.opsets))
    if op is None or op.kernel is None or op.ufunc is not None:
        return None
    # A decorator is not what the user wants to see.
    code = getattr(inspect.unwrap(op.kernel), "__code__", None)
    return code if isinstance(code, CodeType) else None


_PYTHON = ("numpy", "cupy")
"""Backends that run the kernels of the ops, which are Python functions."""


def can_step_into_kernel(session: Session) -> bool:
    """Whether the next statement has a kernel in Python, and the client can debug it."""
    client = session.client
    able = client is not None and bool(client.supports_start_debugging_request)
    return able and kernel_at(session.program.debugger) is not None


def step_into_kernel(session: Session) -> None:
    """Answer the request at hand, then run the next statement, whose kernel stops at its first line.

    Raises UsageError where there is no such kernel, or nothing that could debug it.
    """
    code = kernel_at(session.program.debugger)
    if code is None:
        raise UsageError("this statement has no Python kernel", hint="step over it")
    if session.client is None or not session.client.supports_start_debugging_request:
        raise UsageError("this client cannot start a second session for the Python debugger")
    _debugpy()
    session.program.move(session, lambda: _step(session, code))


def _debugpy() -> Any:
    # It would otherwise complain on standard error that it may miss breakpoints in Python's own modules.
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    try:
        import debugpy
    except ImportError:
        raise UsageError(
            "debugging Python kernels needs debugpy, which is not installed",
            hint="pip install 'nncdbg[kernels]'",
        ) from None
    return debugpy


def _step(session: Session, code: CodeType) -> Stop:
    """On the thread that moves the program."""
    debugpy = _debugpy()
    if not debugpy.is_client_connected():
        _attach(session, debugpy)
    try:
        with _stopping_in(code) as called:
            stop = session.program.debugger.step_over()
    finally:
        trace_kernels()
    if not called:
        session.say(f"{code.co_name} was not called: the backend ran another kernel")
    return stop


@contextmanager
def _stopping_in(code: CodeType) -> Iterator[list[FrameType]]:
    """The first call of `code` on this thread stops at its first line; it is then in the list given."""
    import pydevd

    called: list[FrameType] = []

    def at_call(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is code:
            sys.setprofile(before)
            called.append(frame)
            pydevd.settrace(
                suspend=True, trace_only_current_thread=True, patch_multiprocessing=False, stop_at_frame=frame
            )

    before = sys.getprofile()
    # Not by tracing, which is debugpy's own.
    sys.setprofile(at_call)
    try:
        yield called
    finally:
        sys.setprofile(before)


def trace_kernels() -> None:
    """Trace this thread as long as a Python debugger is attached, so that its breakpoints hold."""
    debugpy = sys.modules.get("debugpy")
    if debugpy is not None and _listening:
        debugpy.trace_this_thread(debugpy.is_client_connected())


# -- attaching -----------------------------------------------------------------------------------------


def _attach(session: Session, debugpy: Any) -> None:
    """Have the client attach a Python debugger.  Raises UsageError if it does not, or nobody waits for it."""
    host, port = _listen(debugpy)
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

    session.say(f"waiting for the Python debugger to attach to {host}:{port}; pause cancels")
    session.ask("startDebugging", {"request": "attach", "configuration": configuration}, answered)
    with _cancelling(debugpy.wait_for_client, lambda: _reason(session, refused)) as reasons:
        debugpy.wait_for_client()
    if not debugpy.is_client_connected():
        reason = reasons[0] if reasons else "the Python debugger has disconnected"
        raise UsageError(reason, hint="step over the statement, or try again")
    watching = BackgroundThread(target=_see_off, args=(session, debugpy), name="nncdbg-dap-child")
    watching.start()


def _listen(debugpy: Any) -> tuple[str, int]:
    if not _listening:
        try:
            _listening.append(debugpy.listen(("127.0.0.1", 0)))
        except RuntimeError as error:
            raise UsageError(
                f"debugpy cannot listen: {error}",
                hint="if debugpy is already listening, attach a Python debugger to it",
            ) from None
    return _listening[0]


def _reason(session: Session, refused: list[str]) -> str | None:
    """Why nobody should wait any longer; None as long as one should."""
    if refused:
        return refused[0]
    if session.closing or session.program.debugger.control.paused:
        return "stopped waiting for the Python debugger"
    return None


@contextmanager
def _cancelling(wait: Any, reason: Callable[[], str | None]) -> Iterator[list[str]]:
    """While entered, `wait` is cancelled once there is a reason, or time is up; the list then has it."""
    done = threading.Event()
    reasons: list[str] = []

    def look() -> None:
        deadline = time.monotonic() + PATIENCE
        while not done.wait(PACE):
            late = f"no Python debugger attached within {PATIENCE:.0f} s"
            found = reason() or (late if time.monotonic() > deadline else None)
            if found is not None:
                reasons[:] = [found]
                # Again if need be: it can be cancelled only once it has begun.
                with suppress(RuntimeError):
                    wait.cancel()

    thread = BackgroundThread(target=look, name="nncdbg-dap-child-wait")
    thread.start()
    try:
        yield reasons
    finally:
        done.set()
        thread.join()


def _see_off(session: Session, debugpy: Any) -> None:
    """When the Python debugger has left, a program that runs is traced no longer."""
    while debugpy.is_client_connected():
        if session.ended(PACE * 10):
            return
    session.program.debugger.control.between_statements(trace_kernels)
