"""The server's process: capture of printed output, its end on a signal, sessions over stdio and sockets."""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import faulthandler
import fcntl
import os
import select
import signal
import socket
import stat
import sys
import termios
import threading
from array import array
from collections.abc import Callable, Iterator
from io import BufferedReader, RawIOBase, TextIOWrapper
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, TypeAlias

from nncdbg.dap_server import handlers  # noqa: F401  enters the handlers into the table
from nncdbg.dap_server.runner import Runner
from nncdbg.dap_server.session import Session
from nncdbg.dap_server.transport.addresses import Address
from nncdbg.dap_server.transport.connection import Connection
from nncdbg.process.threads import BackgroundThread

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def pending(descriptor: int) -> int:
    """Return the number of bytes in a pipe, from either end."""
    count = array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]


def capacity(descriptor: int) -> int:
    """Return the capacity of a pipe in bytes; the guaranteed minimum if the system cannot report it."""
    size = getattr(fcntl, "F_GETPIPE_SZ", None)  # only Linux has it
    return select.PIPE_BUF if size is None else fcntl.fcntl(descriptor, size)


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


SIGNAL_GRACE = 2.0
"""Seconds within which an op may finish after the signal; then the process ends without it."""

_ENDING = (signal.SIGINT, signal.SIGTERM)
_OVER = 0
"""Written in place of a signal: there is no signal to wait for any more."""


@contextlib.contextmanager
def ending_on_signals(end: Callable[[int], None]) -> Iterator[list[int]]:
    """Call `end` with the exit code on SIGINT or SIGTERM, even while an op blocks the main thread.

    Yields the list of received signals.  A process that has not ended within `SIGNAL_GRACE` is ended.
    A thread receives the first signal through the descriptor to which Python writes signals.
    """
    caught: list[int] = []
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    over = threading.Event()

    def watch() -> None:
        while (number := os.read(readable, 1)[0]) not in ends:
            pass
        if number == _OVER:
            return
        caught.append(number)
        BackgroundThread(target=end, args=(128 + number,), name="nncdbg-dap-end").start()
        if not over.wait(SIGNAL_GRACE):
            os._exit(128 + number)

    def nothing(number: int, frame: FrameType | None) -> None:
        """Do nothing: Python writes a signal to the descriptor only if it has a handler."""

    ends = (_OVER, *_ENDING)
    before = {number: signal.signal(number, nothing) for number in _ENDING}
    descriptor = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    watcher = BackgroundThread(target=watch, name="nncdbg-dap-signals")
    watcher.start()
    try:
        yield caught
    finally:
        over.set()
        signal.set_wakeup_fd(descriptor)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.write(writable, bytes([_OVER]))
        watcher.join()
        os.close(readable)
        os.close(writable)


DISCONNECT_GRACE = 5.0
"""Seconds within which an op may finish after the client has gone; then the process ends without it."""


ABANDONED = 1
"""Exit code of a process that could not wait for an op to finish."""


def serve_stdio() -> int:
    """Serve one session; return 0, or 128 plus the number of the signal that ended it."""
    descriptor = os.dup(1)
    writer = PipeWriter(descriptor)
    reader = BufferedReader(PipeReader(os.dup(0), writer.over))
    # A program that reads standard input must find its end, not the client's messages.
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    connection = Connection(reader, writer.write, writer.end)
    connection.descriptor = descriptor
    session = Session(connection, Runner())
    with ending_on_signals(session.interrupted) as caught, Capture(session.client.print_output) as capture:
        session.flush_output = capture.flush
        session.start()
        over = threading.Event()
        BackgroundThread(target=_end_with_client, args=(session, over), name="nncdbg-dap-end").start()
        session.runner.run()
        session.join()
        over.set()
    return 128 + caught[0] if caught else 0


def _end_with_client(session: Session, over: threading.Event) -> None:
    """End the process when the client has gone, whatever its program does."""
    session.queue.ended(None)
    if not over.wait(DISCONNECT_GRACE):
        os._exit(ABANDONED)


class PipeWriter:
    """Writes to a descriptor; `end` releases a writer that waits for the other side."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.over, self._ending = os.pipe()
        """A descriptor that becomes readable at the end."""
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._poll.register(self.over, select.POLLIN)
        kind = os.fstat(descriptor).st_mode
        self._socket = socket.socket(fileno=os.dup(descriptor)) if stat.S_ISSOCK(kind) else None
        self._capacity = capacity(descriptor) if stat.S_ISFIFO(kind) else 0

    def write(self, data: bytes) -> None:
        """Write all of it.  Raises OSError if the other side is gone, or `end` was called."""
        rest = memoryview(data)
        while rest:
            ready = dict(self._poll.poll())
            if self.over in ready:
                raise BrokenPipeError("the session has ended")
            rest = rest[self._write_some(rest) :]

    def _write_some(self, data: memoryview) -> int:
        """Write as much as possible once the descriptor is writable; return the number of bytes."""
        if self._socket is not None:
            try:
                return self._socket.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return 0
        most = self._capacity if self._capacity and not pending(self._descriptor) else select.PIPE_BUF
        return os.write(self._descriptor, data[:most])

    def end(self, reading: bool) -> None:
        """Stop writing, and reading."""
        os.write(self._ending, b"!")


class PipeReader(RawIOBase):
    """Reads from a descriptor until its end, or until the descriptor `over` is readable."""

    def __init__(self, descriptor: int, over: int) -> None:
        self._descriptor = descriptor
        self._over = over
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._poll.register(over, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        ready = dict(self._poll.poll())
        return 0 if self._over in ready else os.readv(self._descriptor, [buffer])


def serve_clients(address: Address, token: str | None) -> int:
    """Serve until SIGINT or SIGTERM; return the exit code.  Prints the address on standard error."""
    from nncdbg.dap_server.transport.serving import Listener

    sessions: SimpleQueue[Session | None] = SimpleQueue()

    def make_session(connection: Connection) -> Session:
        return Session(connection, Runner())

    listener = Listener(address, make_session, token, sessions.put)
    session: Session | None = None

    def end(exit_code: int) -> None:
        if session is not None:
            session.interrupted(exit_code)
        listener.close()
        sessions.put(None)

    with ending_on_signals(end) as caught:
        print(f"nncdbg dap: listening on {listener}", file=sys.stderr, flush=True)
        if listener.access.file is not None:
            print(f"nncdbg dap: clients must show the token in {listener.access.file}", file=sys.stderr)
        # This thread moves the program of each session.
        while (session := sessions.get()) is not None:
            _move_program(session)
            # Free the session, with its tensors, before the next client connects.
            session = None
    return 128 + caught[0]


def _move_program(session: Session) -> None:
    """Move the program of a session until it is over; its output is sent to the client."""
    with Capture(session.client.print_output) as capture:
        session.flush_output = capture.flush
        session.runner.run()
