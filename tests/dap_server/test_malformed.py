"""Malformed messages over stdio, TCP and a Unix socket get an error or a documented disconnect."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from nncdbg.dap_server.messages import MessageError, Request, decode_arguments, parse_message
from nncdbg.dap_server.protocol import VariablesArguments
from nncdbg.dap_server.transport.framing import MAX_BODY, frame
from tests.dap_server.client import TIMEOUT, Client, read_body, stdio_client
from tests.dap_server.conftest import EXAMPLES
from tests.dap_server.servers import Server, serving

pytestmark = pytest.mark.usefixtures("forked_processes")

Connect: TypeAlias = Callable[[], AbstractContextManager[Client]]

PROGRAM = EXAMPLES / "first_steps.nnc"


@pytest.fixture(scope="module", params=["tcp", "unix"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the whole file; no client may affect the next one."""
    options = ["--socket", str(tmp_path_factory.mktemp("s") / "s")] if request.param == "unix" else []
    with serving(*options) as running:
        yield running


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def initialize(**fields: Any) -> bytes:
    arguments = {"adapterID": "nncdbg"}
    return body(**{"seq": 7, "type": "request", "command": "initialize", "arguments": arguments, **fields})


NESTED = b"[" * 20_000 + b"]" * 20_000

ANSWERED: dict[str, tuple[bytes, int, str]] = {
    "no JSON": (b"{bad", 0, "malformed"),
    "empty body": (b"", 0, "malformed"),
    "truncated": (b'{"seq": 7, "type": "request", "command": "threads", "argum', 7, "malformed"),
    "two objects": (body(seq=7, type="request", command="threads") + b"{}", 7, "trailing characters"),
    "an array": (b"[1, 2]", 0, "Expected `object`, got `array`"),
    "a number": (b"5", 0, "Expected `object`, got `int`"),
    "null": (b"null", 0, "Expected `object`, got `null`"),
    "a string": (b'"initialize"', 0, "Expected `object`, got `str`"),
    "unknown type": (body(seq=7, type="question", command="threads"), 7, "type 'question' is neither"),
    "an event": (body(seq=7, type="event", event="stopped"), 7, "type 'event' is neither"),
    "no type": (body(seq=7, command="threads"), 7, "missing required field `type`"),
    "no seq": (body(type="request", command="threads"), 0, "missing required field `seq`"),
    "seq is a string": (body(seq="7", type="request", command="threads"), 0, "`$.seq`"),
    "seq is a fraction": (body(seq=7.5, type="request", command="threads"), 0, "`$.seq`"),
    "seq is null": (body(seq=None, type="request", command="threads"), 0, "`$.seq`"),
    "seq out of range": (b'{"type":"request","command":"threads","seq":1e999}', 0, "out of range"),
    "no command": (body(seq=7, type="request"), 7, "has no `command`"),
    "command is a number": (body(seq=7, type="request", command=5), 7, "`$.command`"),
    "command is null": (body(seq=7, type="request", command=None), 7, "has no `command`"),
    "unknown command": (body(seq=7, type="request", command="dance"), 7, "unknown request 'dance'"),
    "command with a NUL": (body(seq=7, type="request", command="threads\0"), 7, "unknown request 'threads"),
    "command with a line end": (body(seq=7, type="request", command="a\r\n\r\n"), 7, "unknown request 'a"),
    "command of another case": (
        body(seq=7, type="request", command="Threads"),
        7,
        "unknown request 'Threads'",
    ),
    "command of 1 MB": (body(seq=7, type="request", command="x" * 1_000_000), 7, "unknown request 'xxx"),
    "arguments are a number": (initialize(arguments=5), 7, "arguments"),
    "arguments are an array": (initialize(arguments=[]), 7, "arguments"),
    "arguments are a string": (initialize(arguments="x"), 7, "arguments"),
    "arguments are null": (initialize(arguments=None), 7, "initialize needs `arguments`"),
    "an argument is missing": (initialize(arguments={}), 7, "missing required field `adapterID`"),
    "an argument of another type": (
        initialize(arguments={"adapterID": "a", "linesStartAt1": 1}),
        7,
        "Expected `bool | null`, got `int` - at `arguments.linesStartAt1`",
    ),
    "nested in arguments": (
        b'{"seq":7,"type":"request","command":"initialize","arguments":' + NESTED + b"}",
        7,
        "nested too deeply",
    ),
    "deeply nested body": (b'{"a":' * 20_000, 0, "nested too deeply"),
    "nested array": (NESTED, 0, "Expected `object`, got `array`"),
    "not UTF-8": (b"\xff\xfe\xfd", 0, "malformed"),
    "not UTF-8 in a string": (b'{"seq":7,"type":"request","command":"\xff"}', 7, "not UTF-8"),
    "half a surrogate": (b'{"seq":7,"type":"request","command":"\\ud800"}', 7, "malformed"),
    "UTF-16": (body(seq=7).decode().encode("utf-16"), 0, "malformed"),
    "NaN": (b'{"seq":7,"type":"request","command":"initialize","arguments":NaN}', 7, "malformed"),
    "a million spaces": (b" " * 1_000_000, 0, "malformed"),
    "a number of 5,000 digits": (b'{"seq":' + b"9" * 5000 + b"}", 0, "out of range"),
    "the largest body": (b"{" + b" " * (MAX_BODY - 1), 0, "malformed"),
}
"""Body of a frame, number of the answered request (0: an `output` event instead), and the message."""

ACCEPTED: dict[str, tuple[bytes, int]] = {
    "negative seq": (initialize(seq=-7), -7),
    "seq of zero": (initialize(seq=0), 0),
    "huge seq": (initialize(seq=2**40), 2**40),
    "keys twice": (b'{"seq":1,' + initialize()[1:], 7),
    "unknown fields": (initialize(extra=[1, {}], message=None), 7),
    "spaces around": (b" \r\n" + initialize() + b"\n\n", 7),
    "escapes": (b'{"seq":7,"type":"request","command":"initi\\u0061lize","arguments":{"adapterID":""}}', 7),
}
"""Unusual but valid messages."""

CLOSED: dict[str, tuple[bytes, str]] = {
    "negative length": (b"Content-Length: -5\r\n\r\n{}", "not a number of bytes"),
    "length is a word": (b"Content-Length: abc\r\n\r\n{}", "not a number of bytes"),
    "no length": (b"Content-Type: json\r\n\r\n{}", "no Content-Length"),
    "two lengths": (b"Content-Length: 2\r\nContent-Length: 9\r\n\r\n{}", "two Content-Length"),
    "no header": (b'{"seq":1,"type":"request","command":"threads"}\r\n', "malformed header line"),
    "binary": (bytes(range(256)) * 40, "header"),
    "NUL bytes": (b"\0" * 10_000, "header"),
    "17 MiB announced": (b"Content-Length: %d\r\n\r\n" % (17 << 20), "is too large"),
    "100 MB sent": (b"Content-Length: 100000000\r\n\r\n" + b" " * 100_000_000, "is too large"),
    "a length too short": (b"Content-Length: 5\r\n\r\n" + initialize() + b"\r\n", "malformed header line"),
    "GET": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "not a web server"),
    "POST with Origin": (
        b"POST / HTTP/1.1\r\nOrigin: http://evil.example\r\nContent-Length: 2\r\n\r\n{}",
        "not a web server",
    ),
    "Origin": (
        b"Content-Length: %d\r\nOrigin: http://evil.example\r\n\r\n%b" % (len(initialize()), initialize()),
        "web page",
    ),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", "header"),
}
"""Bytes, and the last message before the connection is closed."""


def refused(client: Client, data: bytes, seq: int, expected: str) -> None:
    client.send_bytes(frame(data))
    if seq:
        answer = client.expect_response(seq)
        client.forget(seq)
        assert not answer["success"]
        message = answer["message"]
    else:
        message = client.expect_event("output", category="important")["output"]
    assert expected in message
    assert len(message) < 400, "an error must not quote the whole input"


def accepted(client: Client, data: bytes, seq: int) -> None:
    client.send_bytes(frame(data))
    answer = client.expect_response(seq)
    assert answer["success"], answer


def closed(client: Client, data: bytes, expected: str) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        client.send_bytes(data)
    client.wait_for(lambda message: expected in message.get("body", {}).get("output", ""))
    client.expect_end()


def check_session(client: Client) -> None:
    """Check that a session can start and step."""
    client.start(PROGRAM)
    client.move("next")


def test_malformed_messages_are_refused_over_stdio(client: Client) -> None:
    for data, seq, expected in ANSWERED.values():
        refused(client, data, seq, expected)
    check_session(client)


def test_malformed_messages_are_refused_over_a_socket(server: Server) -> None:
    with server.client() as client:
        for data, seq, expected in ANSWERED.values():
            refused(client, data, seq, expected)
        check_session(client)


@pytest.mark.parametrize(("data", "seq"), ACCEPTED.values(), ids=ACCEPTED)
def test_unusual_messages_are_accepted(server: Server, data: bytes, seq: int) -> None:
    with server.client() as client:
        accepted(client, data, seq)
    with server.client() as client:
        check_session(client)


@pytest.mark.parametrize(("data", "expected"), CLOSED.values(), ids=CLOSED)
def test_unreadable_bytes_end_the_connection(server: Server, data: bytes, expected: str) -> None:
    with server.client() as client:
        closed(client, data, expected)
    with server.client() as client:
        check_session(client)


@pytest.mark.parametrize("name", ["no length", "100 MB sent", "POST with Origin"])
def test_unreadable_bytes_end_a_server_over_stdio(name: str, tmp_path: Path) -> None:
    with stdio_client(cwd=tmp_path) as client:
        closed(client, *CLOSED[name])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Content-Le",
        b"Content-Length: 10\r\n\r\n",
        b"Content-Length: 10\r\n\r\n{}",
        frame(initialize())[:-1],
    ],
)
def test_a_client_may_vanish_within_a_frame(server: Server, data: bytes, tmp_path: Path) -> None:
    with server.connect() as connected:
        connected.sendall(data)
    with server.client() as client:
        check_session(client)
    command = [sys.executable, "-m", "nncdbg.terminal.main", "dap"]
    done = subprocess.run(command, input=data, capture_output=True, cwd=tmp_path, timeout=TIMEOUT)
    assert done.returncode == 0, done
    assert not done.stderr, done
    assert bool(done.stdout) == bool(data), "a partial frame gets an error message"


def test_request_numbers_may_repeat(client: Client) -> None:
    """Each request gets a response, whatever its number."""
    for _ in range(3):
        client.send_bytes(frame(body(seq=1, type="request", command="dance")))
        assert not client.expect_response(1)["success"]
        client.forget(1)


def test_unrequested_responses_are_ignored(client: Client) -> None:
    for fields in ({}, {"request_seq": 1}, {"request_seq": -1, "success": True, "command": "runInTerminal"}):
        client.send_bytes(frame(body(seq=1, type="response", **fields)))
    check_session(client)


# -- floods --------------------------------------------------------------------------------------


FLOOD = {"tcp": 100_000, "unix": 20_000}
"""Requests with more bytes than the buffers of both sides have room for."""


def test_an_unread_flood_uses_little_memory_and_is_answered_in_full(server: Server) -> None:
    """The server stops reading until the client reads; then each request gets one response."""
    flood = FLOOD["unix" if server.address.startswith("unix:") else "tcp"]
    with server.client() as client:
        client.start(PROGRAM)
    with server.connect() as connected:
        before = server.watched.memory_info().rss
        requests = b"".join(
            frame(body(seq=n, type="request", command="threads")) for n in range(1, flood + 1)
        )
        connected.setblocking(False)
        sent, still = 0, time.monotonic()
        while time.monotonic() - still < 1:
            with contextlib.suppress(BlockingIOError):
                sent += connected.send(requests[sent : sent + (1 << 16)])
                still = time.monotonic()
        assert 0 < sent < len(requests), "the server read the whole flood, so it must have buffered it"
        grown = server.watched.memory_info().rss - before
        assert grown < 32 << 20, f"{grown >> 20} MiB"
        connected.setblocking(True)
        rest = threading.Thread(target=connected.sendall, args=(requests[sent:],))
        rest.start()
        with connected.makefile("rb") as reader:
            answered = [json.loads(read_body(reader) or b"null")["request_seq"] for _ in range(flood)]
        rest.join()
        assert answered == list(range(1, flood + 1))
    with server.client() as client:
        check_session(client)


def test_a_flood_is_answered_in_full(client: Client) -> None:
    client.start(PROGRAM)
    count = FLOOD["tcp"] // 10
    numbers = [client.send("scopes" if n % 2 else "threads", {"frameId": 1}) for n in range(count)]
    for number in numbers:
        assert client.expect_response(number)["success"]


def test_a_word_of_the_client_does_not_make_the_message_not_utf8() -> None:
    arguments = {"variablesReference": 1, "filter": "UTF-8"}
    request = parse_message(body(seq=7, type="request", command="variables", arguments=arguments))
    assert isinstance(request, Request)
    with pytest.raises(MessageError, match="Invalid enum value 'UTF-8'"):
        decode_arguments(request, VariablesArguments, required=True)
