r"""Frames of the protocol: ``Content-Length: N``, an empty line, N bytes of JSON.

What is taken: headers in any case and any order, with ``\n`` alone as the end of a line, and empty
lines between frames.  Headers that we do not know are skipped.

What is answered, and the session goes on: a frame that is whole, but whose body is no message
(no JSON, not UTF-8, no object, nested too deeply, a field missing or of the wrong type, an unknown
type or command, wrong arguments).  The response is a failed one; where the number of
the message cannot be told, an `output` event stands for it.  Where a key comes twice in an object the
last one counts.

What ends the connection, with the reason as its last message (an `output` event): whatever leaves
open where the next frame begins, or shows that the other side is no debugger's client.  That is a
line that is no header, or longer than 4 KiB, more than 32 headers, no Content-Length, two of
them, or one that is no number; a body above `MAX_BODY`; a stream that ends within a frame; an HTTP
request, or an ``Origin`` header, which a browser sends for a web page.
"""

from __future__ import annotations

import re
from typing import Protocol

from nncdbg.engine.errors import NncdbgError

MAX_BODY = 16 << 20
"""Bytes of the largest body that is read."""

_MAX_LINE = 4096
_MAX_HEADERS = 32

_LINE_ENDS = (b"\r\n", b"\n")

_NAME = re.compile(rb"[a-z0-9-]+")

_VERBS = (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS ", b"DELETE ", b"PATCH ", b"CONNECT ", b"TRACE ")


class FrameError(NncdbgError):
    """The stream cannot be read on."""


class ByteReader(Protocol):
    """What a frame is read from: a buffered binary stream."""

    def readline(self, limit: int = -1, /) -> bytes: ...

    def read(self, size: int = -1, /) -> bytes: ...


def read_frame(stream: ByteReader) -> bytes | None:
    """The body of the next frame; None where the stream ends between frames.

    Raises FrameError for a header that is not one, an HTTP request, a body above `MAX_BODY`, and a
    stream that ends within a frame.
    """
    length: int | None = None
    line = stream.readline(_MAX_LINE)
    while line in _LINE_ENDS:
        # Stray line ends between frames do no harm.
        line = stream.readline(_MAX_LINE)
    if not line:
        return None
    for _ in range(_MAX_HEADERS):
        length = _header(line, length)
        line = stream.readline(_MAX_LINE)
        if line in _LINE_ENDS:
            break
    else:
        raise FrameError(f"a frame has more than {_MAX_HEADERS} headers")
    if length is None:
        raise FrameError("a frame has no Content-Length header")
    return _body(stream, length)


def _header(line: bytes, length: int | None) -> int | None:
    """Take one header line; the Content-Length known after it."""
    if not line.endswith(b"\n"):
        ends = len(line) < _MAX_LINE
        raise FrameError("the stream ends within a header" if ends else "a header is too long")
    if line.startswith(_VERBS):
        raise FrameError("this is not a web server", hint="connect with a Debug Adapter Protocol client")
    name, colon, value = line.partition(b":")
    key = name.strip().lower()
    if not colon or not _NAME.fullmatch(key):
        raise FrameError("malformed header line: expected Content-Length")
    if key == b"origin":
        raise FrameError("cannot accept a frame with an Origin header: it comes from a web page")
    if key != b"content-length":
        return length
    if length is not None:
        raise FrameError("a frame has two Content-Length headers")
    digits = value.strip()
    # `int` would take signs, spaces and underscores too.
    if not digits.isdigit() or len(digits) > 12:
        raise FrameError("Content-Length is not a number of bytes")
    return int(digits)


def _body(stream: ByteReader, length: int) -> bytes:
    if length > MAX_BODY:
        raise FrameError(f"a message of {length} bytes is too large; the limit is {MAX_BODY}")
    body = stream.read(length)
    if len(body) < length:
        raise FrameError("the stream ends within a message")
    return body


def frame(body: bytes) -> bytes:
    """The frame around a body."""
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
