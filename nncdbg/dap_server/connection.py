"""One client's two streams: frames come in, numbered messages go out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from nncdbg.dap_server.framing import ByteReader, frame, read_frame


class ByteWriter(Protocol):
    """What frames are written to."""

    def write(self, data: bytes, /) -> Any: ...

    def flush(self) -> None: ...


class Connection:
    """Reads and writes messages.  `send` may be called from any thread; messages never mix.

    A client that is gone takes nothing more: `lost` is then true, and what is sent goes nowhere.
    `close` ends both streams.
    """

    def __init__(self, reader: ByteReader, writer: ByteWriter, close: Callable[[], None]) -> None:
        self._reader = reader
        self._writer = writer
        self._close = close
        self._lock = threading.Lock()
        self._encode = msgspec.json.Encoder().encode
        self._seq = 0
        self.lost = False

    def read(self) -> bytes | None:
        """The next body; None at the end.  Raises FrameError where the stream cannot be read on."""
        try:
            return read_frame(self._reader)
        except (OSError, ValueError):  # a reset connection, or a stream that `close` has closed
            return None

    def send(self, message: dict[str, Any]) -> int:
        """Number a message and send it; the number."""
        with self._lock:
            self._seq += 1
            if not self.lost:
                data = frame(self._encode({"seq": self._seq, **message}))
                try:
                    self._writer.write(data)
                    self._writer.flush()
                except (OSError, ValueError):
                    self.lost = True
            return self._seq

    def close(self) -> None:
        self.lost = True
        self._close()
