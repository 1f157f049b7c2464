"""debugpy in this process: it traces kernels, stops in them, and waits for its own client."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from typing import Any

from nncdbg.errors import UsageError
from nncdbg.process.threads import BackgroundThread

PATIENCE = 60.0
"""Seconds within which the client's Python debugger must attach."""

PACE = 0.05
"""Seconds between two checks that it has attached or is cancelled."""

_listening: list[tuple[str, int]] = []
"""Where debugpy listens in this process; it can listen only once."""


def imported_debugpy() -> Any:
    # Otherwise it warns on standard error that it may miss breakpoints in Python's own modules.
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    try:
        import debugpy
    except ImportError:
        raise UsageError(
            "debugging Python kernels needs debugpy, which is not installed",
            hint="pip install 'nncdbg[kernels]'",
        ) from None
    return debugpy


@contextmanager
def stopping_in(code: CodeType) -> Iterator[list[FrameType]]:
    """Stop at the first line of the first call of `code` on this thread; yield a list for its frame."""
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
    # Not by tracing, which debugpy uses.
    sys.setprofile(at_call)
    try:
        yield called
    finally:
        sys.setprofile(before)


def trace_kernels() -> None:
    """Trace this thread while a Python debugger is attached, so that its breakpoints work."""
    debugpy = sys.modules.get("debugpy")
    if debugpy is not None and _listening:
        debugpy.trace_this_thread(debugpy.is_client_connected())


def listen(debugpy: Any) -> tuple[str, int]:
    if not _listening:
        try:
            _listening.append(debugpy.listen(("127.0.0.1", 0)))
        except RuntimeError as error:
            raise UsageError(
                f"debugpy cannot listen: {error}",
                hint="if debugpy is already listening, attach a Python debugger to it",
            ) from None
    return _listening[0]


@contextmanager
def cancelling(wait: Any, reason: Callable[[], str | None]) -> Iterator[list[str]]:
    """While entered, cancel `wait` on a reason or a timeout, and store the reason in the yielded list."""
    done = threading.Event()
    reasons: list[str] = []

    def cancel_on_reason() -> None:
        deadline = time.monotonic() + PATIENCE
        while not done.wait(PACE):
            late = f"no Python debugger attached within {PATIENCE:.0f} s"
            found = reason() or (late if time.monotonic() > deadline else None)
            if found is not None:
                reasons[:] = [found]
                # Repeat if necessary: it can be cancelled only once it has begun.
                with suppress(RuntimeError):
                    wait.cancel()

    thread = BackgroundThread(target=cancel_on_reason, name="nncdbg-dap-child-wait")
    thread.start()
    try:
        yield reasons
    finally:
        done.set()
        thread.join()
