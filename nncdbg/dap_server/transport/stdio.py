"""The server over standard input and output, for the client that started this process."""

from __future__ import annotations

import os
import select
import socket
import stat
import threading
from io import BufferedReader, RawIOBase
from typing import TYPE_CHECKING

from nncdbg.dap_server import handlers  # noqa: F401  enters the handlers into the table
from nncdbg.dap_server.capture import Capture
from nncdbg.dap_server.ending import ending_on_signals
from nncdbg.dap_server.runner import Runner
from nncdbg.dap_server.session import Session
from nncdbg.dap_server.transport.connection import Connection
from nncdbg.dap_server.transport.pipes import capacity, pending
from nncdbg.engine.process.threads import BackgroundThread

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

GRACE = 5.0
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
    if not over.wait(GRACE):
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
