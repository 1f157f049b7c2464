"""Threads of nncdbg itself, which a Python debugger in the same process leaves alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class BackgroundThread(threading.Thread):
    """A daemon thread that debugpy (pydevd) neither traces, lists nor suspends.

    A Python breakpoint suspends every traced thread.  If it suspended the threads that serve a client,
    the client would get no answer until the Python program continues.
    """

    pydev_do_not_trace = True
    is_pydev_daemon_thread = True

    def __init__(self, target: Callable[..., Any], name: str, args: tuple[Any, ...] = ()) -> None:
        super().__init__(target=target, name=name, args=args, daemon=True)
