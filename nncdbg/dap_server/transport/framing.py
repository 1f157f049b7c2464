r"""Frames of the protocol: ``Content-Length: N``, an empty line, N bytes of JSON.

Accepted: headers in any case and any order, with ``\n`` alone as the end of a line, and empty lines between
frames.  Unknown headers are skipped.

Answered, with the session continuing: a complete frame with an invalid body (no JSON, not UTF-8, no object,
nested too deeply, a field missing or of the wrong type, an unknown type or command, wrong arguments).  The
response is a failed one; if the number of the message is unreadable, an `output` event replaces it.  If a key
occurs twice in an object, the last one counts.

Ends the connection, with the reason as its last message (an `output` event): anything that leaves the start
of the next frame unknown, or shows that the peer is not a debugger's client.  That is a line that is not a
header, or longer than 4 KiB, more than 32 headers, no Content-Length, two of them, or one that is not a
number; a body above `MAX_BODY`; a stream that ends within a frame; an HTTP request, or an ``Origin`` header,
which a browser sends for a web page.
"""

from __future__ import annotations

import re
from typing import Protocol

from nncdbg.errors import NncdbgError

MAX_BODY = 16 << 20
"""Maximum size of a body in bytes."""

_MAX_LINE = 4096
_MAX_HEADERS = 32

_LINE_ENDS = (b"\r\n", b"\n")

_NAME = re.compile(rb"[a-z0-9-]+")

_VERBS = (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS ", b"DELETE ", b"PATCH ", b"CONNECT ", b"TRACE ")


class FrameError(NncdbgError):
    """The stream has become unreadable."""


class ByteReader(Protocol):
    """The source of frames: a buffered binary stream."""

    def readline(self, limit: int = -1, /) -> bytes: ...

    def read(self, size: int = -1, /) -> bytes: ...


def read_frame(stream: ByteReader) -> bytes | None:
    """Return the body of the next frame; None if the stream ends between frames.

    Raises FrameError for an invalid header, an HTTP request, a body above `MAX_BODY`, and a stream that ends
    within a frame.
    """
    length: int | None = None
    line = stream.readline(_MAX_LINE)
    while line in _LINE_ENDS:
        # Accept stray line ends between frames.
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
    """Parse one header line; return the Content-Length known after it."""
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
    # `int` would accept signs, spaces and underscores too.
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
    """Return the frame around a body."""
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
