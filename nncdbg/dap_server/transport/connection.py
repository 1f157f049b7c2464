"""One client's two streams: incoming frames, and outgoing numbered messages.

Outgoing texts that a client displays are sanitized.  Names in a model may contain escape sequences, or
characters that change the direction of writing.  Clients print or draw most texts, so every text of a message
is escaped, except where a client needs it exactly: names of files, the content of a source, requests to run
something, and the output of the user's program.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from nncdbg.dap_server.transport.framing import ByteReader, frame, read_frame
from nncdbg.escaping import HOSTILE, printable, printable_styled

if TYPE_CHECKING:
    from nncdbg.process.crash_box import CrashBox

_EXACT = frozenset({"path", "uri", "file", "command", "content"})
"""Fields that name a file, repeat the client's word, or hold a whole text."""

_STYLED = frozenset({"result"})
"""Console output: the terminal's own commands have escaped it, and may have styled it."""

_ESCAPED = re.compile(rb"\\[ubfr]")
"""Control characters in encoded JSON."""


def harmless(message: Mapping[str, Any], encoded: bytes) -> bytes:
    """Return the JSON of a message with its texts escaped; `encoded` is the JSON of all of it."""
    if message["type"] == "request" or message.get("event") == "output" or not _is_suspect(encoded):
        return encoded
    return msgspec.json.encode(_escaped(msgspec.json.decode(encoded)))


def _is_suspect(encoded: bytes) -> bool:
    """Return whether to check each text; most messages are sent unchanged, so this must be fast."""
    if (b"\\" in encoded and _ESCAPED.search(encoded)) or b"\x7f" in encoded:
        return True
    if encoded.isascii():
        return False
    text = encoded.decode()
    return not text.isprintable() and HOSTILE.search(text) is not None


def _escaped(content: Any) -> Any:
    if isinstance(content, str):
        return printable(content)
    if isinstance(content, list):
        return [_escaped(each) for each in content]
    if isinstance(content, dict):
        return {key: _field(key, each) for key, each in content.items()}
    return content


def _field(key: str, content: Any) -> Any:
    if key in _EXACT:
        return content
    if key in _STYLED and isinstance(content, str):
        return printable_styled(content)
    return _escaped(content)


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
        self.black_box: CrashBox | None = None
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
