"""One client's two streams: incoming frames, and outgoing numbered messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from nncdbg.dap_server.transport.display import harmless
from nncdbg.dap_server.transport.framing import ByteReader, frame, read_frame

if TYPE_CHECKING:
    from nncdbg.engine.execution.black_box import BlackBox


class Connection:
    """Reads and writes messages.  `send` may be called from any thread; messages never mix.

    If the client is gone, `lost` is true, and messages are discarded.  If it does not read, senders wait, so
    nothing accumulates here.

    `write` writes all of its bytes or raises OSError.  `close` is called once, with whether a thread may be
    waiting in `reader`; it ends both streams, and wakes the threads that wait in them.
    """

    def __init__(
        self,
        reader: ByteReader,
        write: Callable[[bytes], object],
        close: Callable[[bool], None],
    ) -> None:
        self._reader = reader
        self._write = write
        self._close = close
        self._sending = threading.Lock()
        self._ending = threading.Lock()
        self._encode = msgspec.json.Encoder().encode
        self._seq = 0
        self.descriptor: int | None = None
        """The descriptor that `write` uses, for the watchdog process."""
        self.black_box: BlackBox | None = None
        """Records the progress of a message, so that a watchdog can complete it."""
        self._reading = False
        self._closed = False
        self.lost = False

    def read(self) -> bytes | None:
        """Return the next body; None at the end.  Raises FrameError if the stream has become unreadable."""
        with self._ending:
            if self._closed:
                return None
            self._reading = True
        try:
            return read_frame(self._reader)
        except (OSError, ValueError):  # a reset connection, or a stream that `close` has closed
            return None
        finally:
            self._reading = False

    def send(self, message: dict[str, Any]) -> int:
        """Number a message and send it; return the number."""
        with self._sending:
            self._seq += 1
            if not self.lost:
                data = frame(harmless(message, self._encode({"seq": self._seq, **message})))
                if self.black_box is not None:
                    self.black_box.sending(self._seq)
                try:
                    self._write(data)
                except (OSError, ValueError):
                    self.lost = True
                else:
                    if self.black_box is not None:
                        self.black_box.sent()
            return self._seq

    def close(self) -> None:
        """End both streams.  Threads that wait in `read` or `send` return."""
        with self._ending:
            first = not self._closed
            self._closed = self.lost = True
        if first:
            self._close(self._reading)
