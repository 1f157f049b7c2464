"""Frames: accepted and refused input, and the error messages."""

from __future__ import annotations

import io

import pytest

from nncdbg.dap_server.transport.framing import MAX_BODY, FrameError, frame, read_frame

ACCEPTED = {
    "valid": b"Content-Length: 2\r\n\r\n{}",
    "lower case": b"content-length: 2\r\n\r\n{}",
    "no space": b"Content-Length:2\r\n\r\n{}",
    "many spaces": b"Content-Length :  2  \r\n\r\n{}",
    "line feeds alone": b"Content-Length: 2\n\n{}",
    "other headers": b"Content-Type: application/json; charset=utf-8\r\nContent-Length: 2\r\nX-A:\r\n\r\n{}",
    "leading zeros": b"Content-Length: 0002\r\n\r\n{}",
    "empty lines before": b"\r\n\n\r\nContent-Length: 2\r\n\r\n{}",
    "a full line of headers": b"X: " + b"y" * 4090 + b"\r\nContent-Length: 2\r\n\r\n{}",
}

REFUSED = {
    "negative": (b"Content-Length: -5\r\n\r\n", "is not a number of bytes"),
    "signed": (b"Content-Length: +5\r\n\r\n", "is not a number of bytes"),
    "word": (b"Content-Length: abc\r\n\r\n", "is not a number of bytes"),
    "fraction": (b"Content-Length: 2.0\r\n\r\n{}", "is not a number of bytes"),
    "underscore": (b"Content-Length: 1_0\r\n\r\n", "is not a number of bytes"),
    "digits of another script": ("Content-Length: ٢\r\n\r\n{}".encode(), "is not a number of bytes"),
    "empty": (b"Content-Length:\r\n\r\n", "is not a number of bytes"),
    "very long number": (b"Content-Length: " + b"9" * 500 + b"\r\n\r\n", "is not a number of bytes"),
    "none": (b"Content-Type: x\r\n\r\n{}", "has no Content-Length"),
    "two": (b"Content-Length: 2\r\ncontent-length: 2\r\n\r\n{}", "two Content-Length"),
    "no header at all": (b"{}\r\n", "malformed header line"),
    "JSON instead of a header": (b'{"seq":1}\r\n', "malformed header line"),
    "a NUL": (b"\0\0\0\0\r\n", "malformed header line"),
    "an endless line": (b"x" * 5000, "too long"),
    "too many headers": (b"X: y\r\n" * 33 + b"\r\n", "more than 32 headers"),
    "one byte too long": (b"Content-Length: %d\r\n\r\n" % (MAX_BODY + 1), f"the limit is {MAX_BODY}"),
    "100 MB": (b"Content-Length: 100000000\r\n\r\n", "100000000 bytes is too large"),
    "cut in a name": (b"Content-Le", "ends within a header"),
    "cut after a header": (b"Content-Length: 2\r\n", "ends within a header"),
    "cut in the body": (b"Content-Length: 5\r\n\r\n{}", "ends within a message"),
    "no body": (b"Content-Length: 5\r\n\r\n", "ends within a message"),
    "GET": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "not a web server"),
    "POST": (b"POST /x HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", "not a web server"),
    "OPTIONS": (b"OPTIONS * HTTP/1.1\r\n\r\n", "not a web server"),
    "Origin": (b"Origin: http://evil.example\r\nContent-Length: 2\r\n\r\n{}", "web page"),
    "origin": (b"Content-Length: 2\r\norigin: null\r\n\r\n{}", "web page"),
}


@pytest.mark.parametrize("data", ACCEPTED.values(), ids=ACCEPTED)
def test_valid_frames_are_read(data: bytes) -> None:
    stream = io.BufferedReader(io.BytesIO(data + b"Content-Length: 3\r\n\r\nabc"))
    assert read_frame(stream) == b"{}"
    assert read_frame(stream) == b"abc"
    assert read_frame(stream) is None


@pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=REFUSED)
def test_invalid_frames_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(FrameError) as caught:
        read_frame(io.BytesIO(data))
    assert message in caught.value.message


def test_the_largest_body_is_read() -> None:
    body = b" " * MAX_BODY
    assert read_frame(io.BytesIO(frame(body))) == body


def test_a_frame_round_trips() -> None:
    for body in (b"", b"{}", b"\r\n\r\n", "héllo".encode(), bytes(range(256))):
        assert read_frame(io.BytesIO(frame(body))) == body
