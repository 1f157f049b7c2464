"""Capture of the program's output on descriptors 1 and 2, from Python or C, reported as it arrives."""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import faulthandler
import fcntl
import os
import select
import sys
import threading
from collections.abc import Callable
from io import TextIOWrapper
from types import TracebackType
from typing import TypeAlias

from nncdbg.dap_server.transport.pipes import pending
from nncdbg.engine.process.threads import BackgroundThread

Receive: TypeAlias = "Callable[[str, str], None]"
"""``receive(text, category)``; the category is "stdout" or "stderr"."""

_CATEGORIES = {1: "stdout", 2: "stderr"}

_PIPE_BYTES = 1 << 20
"""Requested capacity: a kernel that holds the GIL can print this much before it is read."""

_CHUNK = 1 << 16

_PATIENCE = 2.0
"""Seconds at the end within which a client may take the remaining output."""


class Capture:
    """Redirect output to descriptors 1 and 2 to `receive`, on a separate thread, while entered.

    The order is kept within each of the two.  `errors` is the descriptor of the original standard error: a
    crash of the process writes its last message there.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._saved: dict[int, int] = {}
        self._pipes: dict[int, int] = {}
        self._decoders = {
            number: codecs.getincrementaldecoder("utf-8")(errors="replace") for number in _CATEGORIES
        }
        self._had_faults = False
        self._turn = threading.Condition()
        self._wanted = self._done = 0
        self._ending = False
        self._passing_on = False
        """Whether the thread may have read data from a pipe that it has not passed on yet."""
        self._woken, self._wake = os.pipe()
        self._thread = BackgroundThread(target=self._read, name="nncdbg-dap-output")

    @property
    def errors(self) -> int:
        return self._saved[2]

    def __enter__(self) -> Capture:
        flush_printed()
        for number in _CATEGORIES:
            self._saved[number] = os.dup(number)
            self._pipes[number] = _pipe_in_place_of(number)
        _by_line(True)
        self._had_faults = faulthandler.is_enabled()
        faulthandler.enable(self.errors)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        flush_printed()
        if self._had_faults:
            faulthandler.enable()
        else:
            faulthandler.disable()
        _by_line(False)
        for number, saved in self._saved.items():
            # Also closes the write end.
            os.dup2(saved, number)
        with self._turn:
            self._ending = True
        self._wake_reader()
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            return  # it waits for a client that reads nothing; its descriptors are still in use
        for descriptor in (*self._saved.values(), *self._pipes.values(), self._woken, self._wake):
            os.close(descriptor)

    def flush(self) -> None:
        """Return once all output printed so far is passed on."""
        flush_printed()
        with self._turn:
            if not self._passing_on and not any(map(pending, self._pipes.values())):
                return
            self._wanted += 1
            wanted = self._wanted
            self._wake_reader()
            self._turn.wait_for(lambda: self._done >= wanted or self._ending)

    def _wake_reader(self) -> None:
        os.write(self._wake, b"!")

    def _read(self) -> None:
        poll = select.poll()
        for descriptor in (*self._pipes.values(), self._woken):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll()]
            with self._turn:
                wanted, ending = self._wanted, self._ending
                self._passing_on = True
            if self._woken in ready:
                os.read(self._woken, _CHUNK)
            for number, pipe in self._pipes.items():
                self._drain(number, pipe)
            with self._turn:
                self._done = wanted
                self._passing_on = False
                self._turn.notify_all()
            if ending:
                return

    def _drain(self, number: int, pipe: int) -> None:
        """Pass on the current content of a pipe; a program that prints without end cannot prolong it."""
        for _ in range(_PIPE_BYTES // _CHUNK + 1):
            try:
                data = os.read(pipe, _CHUNK)
            except BlockingIOError:
                return
            # An end in the middle of a character is passed on as such.
            text = self._decoders[number].decode(data, final=not data)
            if text:
                self._receive(text, _CATEGORIES[number])
            if not data:
                return


def flush_printed() -> None:
    """Flush the output buffers of Python and C."""
    sys.stdout.flush()
    sys.stderr.flush()
    _C.fflush(None)


_C = ctypes.CDLL(None)


def _pipe_in_place_of(number: int) -> int:
    """Redirect a descriptor into a pipe; return the non-blocking end to read from."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with contextlib.suppress(AttributeError, OSError):  # only Linux has it, and it has a limit
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    os.dup2(writer, number)
    os.close(writer)
    return reader


def _by_line(wanted: bool) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=wanted)
