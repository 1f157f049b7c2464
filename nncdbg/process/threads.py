"""Threads of nncdbg that a Python debugger in the same process ignores."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

Parsed = TypeVar("Parsed")

_ATTEMPTS = 5


class BackgroundThread(threading.Thread):
    """A daemon thread that debugpy (pydevd) neither traces, lists nor suspends.

    A Python breakpoint suspends every traced thread.  If it suspended the threads that serve a client,
    the client would get no answer until the Python program continues.
    """

    pydev_do_not_trace = True
    is_pydev_daemon_thread = True

    def __init__(self, target: Callable[..., Any], name: str, args: tuple[Any, ...] = ()) -> None:
        super().__init__(target=target, name=name, args=args, daemon=True)


def parsed(parse: Callable[[], Parsed]) -> Parsed:
    """Return the result of a function that parses Python code, such as the header of a `.npy` file.

    CPython 3.11 raises SystemError (AST constructor recursion depth mismatch) if two threads parse at
    once, as numba does while it compiles in the background.  The function is called again then.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return parse()
        except SystemError as error:
            if "AST constructor" not in str(error):
                raise
    return parse()
