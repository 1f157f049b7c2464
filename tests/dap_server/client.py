"""A client of the Debug Adapter Protocol for tests: it drives the server and checks each message.

Each message is validated against the protocol's schema if that is available, each request gets exactly
one response, and sequence numbers rise by one.  The `expect_*` methods wait for a message, and fail
with the messages received so far.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any, BinaryIO

from tests.dap_server import schema

TIMEOUT = 300.0
"""Seconds to wait for a message, enough for a busy machine."""

Message = dict[str, Any]


def until(reached: Callable[[], bool], what: str, timeout: float = TIMEOUT) -> None:
    """Wait for a state that no message reports."""
    end = monotonic() + timeout
    while not reached():
        assert monotonic() < end, f"not within {timeout:.0f} s: {what}"
        sleep(0.01)


class Client:
    """A client over two binary streams.  `messages` are the received messages, in order."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self._reader = reader
        self._writer = writer
        self._seq = 0
        self._incoming: queue.SimpleQueue[Message | Exception | None] = queue.SimpleQueue()
        self._unclaimed: list[Message] = []
        self._answered: set[int] = set()
        self._requested: dict[int, str] = {}
        self._last_seq = 0
        self.messages: list[Message] = []
        self.closed = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    # -- the wire ----------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while (body := read_body(self._reader)) is not None:
                self._incoming.put(json.loads(body))
        except Exception as error:  # noqa: BLE001  raised in the waiting test
            self._incoming.put(error)
        self._incoming.put(None)

    def send_bytes(self, data: bytes) -> None:
        """Send raw bytes, with or without a frame."""
        self._writer.write(data)
        self._writer.flush()

    def send_message(self, message: Message) -> None:
        body = json.dumps(message).encode()
        self.send_bytes(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))

    def send(self, command: str, arguments: Any = None) -> int:
        """Send a request and return its number."""
        self._seq += 1
        message = {"seq": self._seq, "type": "request", "command": command}
        if arguments is not None:
            message["arguments"] = arguments
        self._requested[self._seq] = command
        self.send_message(message)
        return self._seq

    def answer(self, request: Message, body: Any = None, *, success: bool = True) -> None:
        """Answer a reverse request."""
        self._seq += 1
        response = {"seq": self._seq, "type": "response", "request_seq": request["seq"]}
        response |= {"command": request["command"], "success": success}
        self.send_message(response if body is None else {**response, "body": body})

    def forget(self, seq: int) -> None:
        """Allow another response to `seq`, for a test that uses the number again."""
        self._answered.discard(seq)
        self._seq = max(self._seq, seq)

    # -- waiting -----------------------------------------------------------------------------

    def _next(self, timeout: float) -> Message | None:
        try:
            message = self._incoming.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"no message within {timeout:.0f} s; so far:\n{self.transcript()}") from None
        if isinstance(message, Exception):
            raise AssertionError(f"the server sent an invalid message: {message}")
        if message is None:
            self.closed = True
            return None
        self._check(message)
        self.messages.append(message)
        return message

    def _check(self, message: Message) -> None:
        if schema.available():
            # A response repeats the number of its request, valid or not.
            number = message.get("request_seq", 1)
            odd = number in self._requested or not 1 <= number < 2**31
            schema.validate({**message, "request_seq": 1} if "request_seq" in message and odd else message)
        assert message["seq"] == self._last_seq + 1, f"{message['seq']} follows {self._last_seq}"
        self._last_seq = message["seq"]
        if message["type"] == "response" and message["request_seq"]:
            seq = message["request_seq"]
            assert seq not in self._answered, f"a second response: {message}"
            assert message["command"] == self._requested.get(seq, message["command"])
            self._answered.add(seq)

    def wait_for(self, wanted: Callable[[Message], bool], timeout: float = TIMEOUT) -> Message:
        """Return the first unclaimed message that is `wanted`."""
        for index, message in enumerate(self._unclaimed):
            if wanted(message):
                return self._unclaimed.pop(index)
        end = monotonic() + timeout
        while (left := end - monotonic()) > 0:
            found = self._next(left)
            assert found is not None, f"the connection ended; so far:\n{self.transcript()}"
            if wanted(found):
                return found
            self._unclaimed.append(found)
        raise AssertionError(
            f"the expected message did not arrive within {timeout} s; so far:\n{self.transcript()}"
        )

    def discard(self, unwanted: Callable[[Message], bool]) -> None:
        """Drop the received messages that are `unwanted`."""
        self._unclaimed = [message for message in self._unclaimed if not unwanted(message)]

    def expect_event(self, event: str, timeout: float = TIMEOUT, **fields: Any) -> Message:
        """Return the body of the next event of a kind; `fields` must be in it."""
        found = self.wait_for(lambda m: m["type"] == "event" and m["event"] == event, timeout)
        body: Message = found.get("body", {})
        for name, value in fields.items():
            assert body.get(name) == value, f"{name} of {event}: {body.get(name)!r}, not {value!r} in {body}"
        return body

    def expect_request(self, command: str, timeout: float = TIMEOUT) -> Message:
        """Return the next reverse request."""
        return self.wait_for(lambda m: m["type"] == "request" and m["command"] == command, timeout)

    def expect_stop(self, reason: str, timeout: float = TIMEOUT) -> Message:
        """Return the body of the next `stopped` event."""
        return self.expect_event("stopped", timeout, reason=reason)

    def expect_response(self, seq: int, timeout: float = TIMEOUT) -> Message:
        """Return the response to the request `seq`, successful or not."""
        return self.wait_for(lambda m: m["type"] == "response" and m["request_seq"] == seq, timeout)

    def expect_end(self, timeout: float = TIMEOUT) -> None:
        """Wait until the server closes the connection."""
        while self._next(timeout) is not None:
            pass

    def none_of(self, event: str) -> None:
        """Assert that there is no unclaimed event of the kind."""
        found = [m for m in self._unclaimed if m["type"] == "event" and m["event"] == event]
        assert not found, found

    # -- requests ----------------------------------------------------------------------------

    def request(self, command: str, arguments: Any = None, timeout: float = TIMEOUT) -> Message:
        """Return the body of the successful response to a request."""
        response = self.expect_response(self.send(command, arguments), timeout)
        assert response["success"], f"{command} failed: {response}"
        body: Message = response.get("body", {})
        return body

    def refused(self, command: str, arguments: Any = None) -> str:
        """Return the message of the failed response to a request."""
        response = self.expect_response(self.send(command, arguments))
        assert not response["success"], f"{command} succeeded: {response}"
        message: str = response["message"]
        return message

    def launch(self, program: str | Path, *, initialize: Message | None = None, **options: Any) -> None:
        """Initialize and launch, up to the `initialized` event."""
        self.request("initialize", {"adapterID": "nncdbg", "clientID": "test", **(initialize or {})})
        self.request("launch", {"program": str(program), **options})
        self.expect_event("initialized")

    def start(self, program: str | Path, **options: Any) -> Message:
        """Launch, stop on entry, and return the body of that stop."""
        self.launch(program, stopOnEntry=True, **options)
        self.request("configurationDone")
        return self.expect_stop("entry")

    def move(self, command: str, reason: str = "step", **arguments: Any) -> Message:
        """Send a request that moves the program, and return the body of the next stop."""
        self.request(command, {"threadId": 1, **arguments})
        return self.expect_stop(reason)

    def top_frame(self) -> Message:
        frame: Message = self.request("stackTrace", {"threadId": 1})["stackFrames"][0]
        return frame

    def variables(self, scope: str, frame: Message | None = None) -> dict[str, Message]:
        """Return the variables of a scope of a frame (default: the innermost), by name."""
        frame = frame or self.top_frame()
        scopes = self.request("scopes", {"frameId": frame["id"]})["scopes"]
        found = next((each for each in scopes if each["name"] == scope), None)
        assert found is not None, f"there is no scope {scope!r} in {[each['name'] for each in scopes]}"
        listed = self.request("variables", {"variablesReference": found["variablesReference"]})
        return {each["name"]: each for each in listed["variables"]}

    def evaluate(self, expression: str, context: str = "watch", **arguments: Any) -> str:
        body = self.request("evaluate", {"expression": expression, "context": context, **arguments})
        result: str = body["result"]
        return result

    def transcript(self) -> str:
        """Return the last 40 received messages, a line each."""
        return "\n".join(json.dumps(message)[:400] for message in self.messages[-40:])


def read_body(reader: BinaryIO) -> bytes | None:
    """Return the body of the next frame; None at the end."""
    length = None
    while (line := reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        assert name == b"Content-Length", line
        length = int(value)
    if length is None:
        return None
    body = reader.read(length)
    assert len(body) == length, "the stream ends within a message"
    return body


@contextlib.contextmanager
def stdio_client(
    *options: str,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    start: tuple[str, str] = ("-m", "nncdbg.terminal.main"),
) -> Iterator[Client]:
    """A client of a new server over stdio, in the folder `cwd`; the server must end by itself."""
    command = [sys.executable, *start, "dap", *options]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd, env=env
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        client = Client(process.stdout, process.stdin)  # type: ignore[arg-type]
        try:
            yield client
            if not client.closed:
                with contextlib.suppress(BrokenPipeError):
                    client.send("disconnect")
                client.expect_end()
            code = process.wait(TIMEOUT)
            errors = process.stderr.read().decode()
            assert code == 0, f"the server ended with {code}: {errors}"
            assert "Traceback" not in errors, errors
        finally:
            process.kill()
            # What a server that ended has not read is still in the buffer.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


@contextlib.contextmanager
def socket_client(connected: socket.socket) -> Iterator[Client]:
    """A client over a connected socket."""
    with connected, connected.makefile("rb") as reader, connected.makefile("wb") as writer:
        client = Client(reader, writer)
        try:
            yield client
        finally:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
