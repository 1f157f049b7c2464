"""Attaching through `nncdbg dap` over stdio to a listening process, in separate processes."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nncdbg.dap_server.attach import relay
from tests.dap_server.client import TIMEOUT, Client, Message, read_body, stdio_client
from tests.dap_server.servers import serving

pytestmark = pytest.mark.usefixtures("forked_processes")

GRAPH = """#nncdbg 1

graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %a: f32[2] = Add(%x, 1.0)
  %b: f32[2] = Mul(%a, 2.0)
  %y: f32[2] = Abs(%b)
  return %y
}
"""

SCRIPT = """
import json, sys
import numpy as np
import nncdbg

def say(*words):
    print(*words, flush=True)

address, token, option = json.loads(sys.argv[1])
place = nncdbg.listen(tuple(address) if isinstance(address, list) else address, token)
say(place[1] if isinstance(place, tuple) else place)
for line in sys.stdin:
    nncdbg.wait_for_client()
    debugger = nncdbg.Debugger(nncdbg.load("graph.nnc"), {"x": np.array([1, 2], "f4")}, allocator=option)
    say(debugger.run().reason, debugger.value("%y").tolist(), len(debugger.breakpoints))
"""


class Program:
    """A listening script of a user, which runs its graph once per input line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.place = self.line()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def line(self) -> str:
        """Return the next printed line."""
        return self._lines.get(timeout=TIMEOUT)

    def go(self) -> None:
        """Run the graph once a client is attached."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Wait until the script ends by itself."""
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self.process.stdin.close()
        try:
            code = self.process.wait(TIMEOUT)
        finally:
            self.process.kill()
            self._reader.join()
        assert code in (0, -9), self.process.stderr.read()
        self.process.stderr.close()
        assert self.process.stdout is not None
        self.process.stdout.close()


Start = Callable[..., Program]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Start]:
    """Return a function that runs the script: `program(address, token, allocator)`."""
    (tmp_path / "graph.nnc").write_text(GRAPH)
    with contextlib.ExitStack() as stack:

        def run(address: Any = ("127.0.0.1", 0), token: str | None = None, option: str = "debug") -> Program:
            process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, json.dumps([address, token, option])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=tmp_path,
            )
            running = Program(process)
            stack.callback(running.end)
            return running

        yield run


def attach(client: Client, connect: Message, *lines: int) -> list[int]:
    """Attach, set breakpoints at these lines, and return their numbers."""
    client.request("attach", {"connect": connect})
    client.expect_event("initialized")
    # The client's server runs in the folder of the graph.
    arguments = {"source": {"path": "graph.nnc"}, "breakpoints": [{"line": line} for line in lines]}
    reported = client.request("setBreakpoints", arguments)["breakpoints"]
    client.request("configurationDone")
    client.expect_event("process", startMethod="attach")
    return [each["id"] for each in reported]


def initialize(client: Client, **flags: Any) -> Message:
    return client.request("initialize", {"adapterID": "nncdbg", **flags})


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with stdio_client(cwd=tmp_path) as connected:
        yield connected


def test_a_session_works_through_the_relay(client: Client, program: Start, tmp_path: Path) -> None:
    running = program(token="secret")
    # The client's capabilities apply in the other process.
    initialize(client, linesStartAt1=False, supportsMemoryEvent=True)
    graph = {"source": {"path": str(tmp_path / "graph.nnc")}}
    attach_seq = client.send("attach", {"connect": {"port": int(running.place), "token": "secret"}})
    # Sent before the response, as some clients do; it is handled after `attach`.
    early = client.send("setBreakpoints", {**graph, "breakpoints": [{"line": 4}]})
    assert client.expect_response(attach_seq)["success"]
    client.expect_event("initialized")
    (reported,) = client.expect_response(early)["body"]["breakpoints"]
    client.request("configurationDone")
    process = client.expect_event("process", startMethod="attach")
    assert process["systemProcessId"] == running.process.pid
    assert "unknown request 'nncdbg/none'" in client.refused("nncdbg/none")
    running.go()
    assert client.expect_stop("breakpoint")["hitBreakpointIds"] == [reported["id"]]
    assert client.top_frame()["line"] == 4
    assert client.variables("Values")["%a"]["value"].endswith("[2. 3.]")
    client.move("next")
    assert client.top_frame()["line"] == 5
    assert client.evaluate("sum(%b)") == "10.0"
    assert "is already being debugged" in client.refused("attach", {"connect": {"port": 1}})
    assert "is already being debugged" in client.refused("launch", {"program": "graph.nnc"})
    client.request("setVariable", {"variablesReference": reference(client), "name": "%b", "value": "[-9, 1]"})
    client.request("disconnect", {"terminateDebuggee": False})
    client.expect_end()
    assert running.line() == "end [9.0, 1.0] 0"


def reference(client: Client) -> int:
    """Return the reference of the values of the innermost frame."""
    scopes = client.request("scopes", {"frameId": client.top_frame()["id"]})["scopes"]
    found: int = next(each for each in scopes if each["name"] == "Values")["variablesReference"]
    return found


def test_a_vanished_client_on_a_unix_socket_lets_the_program_run(program: Start, tmp_path: Path) -> None:
    running = program(str(tmp_path / "socket"))
    with stdio_client(cwd=tmp_path) as client:
        initialize(client)
        attach(client, {"socket": str(tmp_path / "socket")}, 5)
        running.go()
        client.expect_stop("breakpoint")
        client._writer.close()
        client.expect_end()
    assert running.line() == "end [4.0, 6.0] 0"


def test_errors_are_reported_and_the_next_attach_works(client: Client, program: Start) -> None:
    running = program(token="secret")
    port = int(running.place)
    initialize(client)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        closed = unused.getsockname()[1]
    wrong = [
        ({}, "`connect` needs either a port or a socket path"),
        ({"port": 1, "socket": "s"}, "`connect` needs either a port or a socket path"),
        ({"port": 65536}, "port 65536 is out of range"),
        ({"port": "x"}, "arguments.connect.port"),
        (
            {"port": closed},
            f"cannot attach to 127.0.0.1:{closed}: Connection refused (set `connect` to the address",
        ),
        ({"host": "no.such.host.invalid", "port": 1}, "cannot attach to no.such.host.invalid:1: "),
        ({"socket": "nowhere"}, "cannot attach to unix:nowhere: No such file or directory"),
        ({"socket": "n" * 200}, "cannot attach to unix:nnn"),
        ({"port": port}, "refuses: this server requires a token (set `connect.token`"),
        (
            {"port": port, "token": "x"},
            "refuses: the token is wrong (see how nncdbg.listen was called there)",
        ),
    ]
    for connect, message in wrong:
        assert message in client.refused("attach", {"connect": connect}), connect
    assert "set `connect`" in client.refused("attach", {})
    attach(client, {"port": port, "token": "secret"})
    with stdio_client() as second:
        initialize(second)
        refused = second.refused("attach", {"connect": {"port": port, "token": "secret"}})
        assert "refuses: another client is connected (end that session first)" in refused
    client.request("disconnect")
    client.expect_end()


def test_a_server_that_launches_refuses_attach(client: Client) -> None:
    with serving() as server:
        initialize(client)
        port = int(server.address.rpartition(":")[2])
        refused = client.refused("attach", {"connect": {"port": port}})
        assert "refuses: `attach` needs the address" in refused


@contextlib.contextmanager
def answering(with_bytes: bytes) -> Iterator[tuple[int, threading.Event]]:
    """Yield a port that sends these bytes to its first client, and an event that is set then."""
    accepted = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(TIMEOUT)

        def serve() -> None:
            connected, _ = listening.accept()
            with connected:
                connected.sendall(with_bytes)
                accepted.set()
                while connected.recv(1 << 16):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1], accepted
        thread.join(TIMEOUT)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "is not a Debug Adapter Protocol server: malformed header line",
        ),
        (b"Content-Length: 4\r\n\r\nnull", "a message has no `type`"),
        (b"Content-Length: 4\r\n\r\n[[[[", "the message is malformed"),
    ],
)
def test_a_peer_without_the_protocol_is_refused(client: Client, data: bytes, message: str) -> None:
    initialize(client)
    with answering(data) as (port, _):
        assert message in client.refused("attach", {"connect": {"port": port}})


def test_attaching_to_a_silent_peer_is_cancelled(client: Client) -> None:
    initialize(client)
    with answering(b"") as (port, accepted):
        waiting = client.send("attach", {"connect": {"port": port}})
        assert accepted.wait(TIMEOUT)
        client.request("cancel", {"requestId": waiting})
        assert client.expect_response(waiting)["message"] == "cancelled"
    with answering(b"") as (port, accepted):
        client.send("attach", {"connect": {"port": port}})
        assert accepted.wait(TIMEOUT)
        client.request("disconnect")
        client.expect_end()


IMPATIENT = """
import sys
from nncdbg.dap_server.attach import relay
from nncdbg.terminal.main import main
relay.PATIENCE = 1.0
sys.exit(main(sys.argv[1:]))
"""


def test_attaching_to_a_silent_peer_ends_with_the_patience() -> None:
    assert relay.PATIENCE == 10
    with stdio_client(start=("-c", IMPATIENT)) as client, answering(b"") as (port, _):
        initialize(client)
        began = time.monotonic()
        reported = client.refused("attach", {"connect": {"port": port}})
        assert reported.startswith(
            f"127.0.0.1:{port} did not answer within 1 s (check that the process called"
        )
        assert time.monotonic() - began > 0.9


def test_a_process_that_dies_leaves_a_session_that_can_attach_again(client: Client, program: Start) -> None:
    running, other = program(), program(option="plain")
    initialize(client)
    attach(client, {"port": int(running.place)}, 5)
    running.go()
    client.expect_stop("breakpoint")
    running.process.kill()
    reported = client.expect_event("output", category="important")["output"]
    assert reported == f"the connection to 127.0.0.1:{running.place} has ended\n"
    client.expect_event("terminated")
    assert "send launch or attach first" in client.refused("stackTrace", {"threadId": 1})
    (number,) = attach(client, {"port": int(other.place)}, 5)
    other.go()
    # The capabilities of that program arrive as over a direct connection.
    offered = client.expect_event("capabilities")["capabilities"]["exceptionBreakpointFilters"]
    assert "guard" not in [each["filter"] for each in offered]
    assert client.expect_stop("breakpoint")["hitBreakpointIds"] == [number]
    client.request("continue", {"threadId": 1})
    assert other.line() == "end [4.0, 6.0] 1"
    other.end()
    client.expect_event("exited", exitCode=0)
    client.expect_event("terminated")
    client.request("disconnect")
    client.expect_end()
    client.none_of("terminated")


class FarSide:
    """A server of the protocol, played by the test one message at a time."""

    def __init__(self, connected: socket.socket) -> None:
        self.reader = connected.makefile("rb")
        self.connected = connected
        self.seq = 100

    def read(self) -> Message:
        body = read_body(self.reader)
        assert body is not None
        message: Message = json.loads(body)
        return message

    def send(self, **message: Any) -> int:
        self.seq += 1
        body = json.dumps({"seq": self.seq, **message}).encode()
        self.connected.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        return self.seq

    def answer(self, command: str, body: Any = None) -> Message:
        """Answer the next request, which must be this one."""
        request = self.read()
        assert (request["type"], request["command"]) == ("request", command)
        fields = {"request_seq": request["seq"], "command": command, "success": True}
        self.send(type="response", **fields, **({} if body is None else {"body": body}))
        return request


@contextlib.contextmanager
def far_side(client: Client, capabilities: Message) -> Iterator[FarSide]:
    """Attach the client, and yield the server's side of the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        attach = client.send("attach", {"connect": {"port": listening.getsockname()[1], "token": "t"}})
        connected, _ = listening.accept()
        with connected:
            far = FarSide(connected)
            with far.reader:
                greeting = far.answer("initialize", capabilities)
                assert greeting["arguments"] == {"adapterID": "nncdbg", "clientName": "a client"}
                far.send(type="event", event="output", body={"category": "console", "output": "early"})
                request = far.answer("attach")
                assert (request["seq"], request["arguments"]) == (attach, {"token": "t"})
                assert client.expect_response(attach)["success"]
                yield far


def test_numbers_capabilities_and_requests_are_relayed(client: Client) -> None:
    reported = initialize(client, clientName="a client")
    theirs = {**reported, "supportsStepBack": False, "supportsExceptionOptions": True}
    del theirs["supportsRestartFrame"], theirs["exceptionBreakpointFilters"]
    with far_side(client, theirs) as far:
        assert client.expect_event("capabilities")["capabilities"] == {
            "supportsStepBack": False,
            "supportsExceptionOptions": True,
            "supportsRestartFrame": False,
            "exceptionBreakpointFilters": [],
        }
        assert client.expect_event("output")["output"] == "early"
        number = far.send(type="request", command="runInTerminal", arguments={"args": ["a"], "cwd": "/"})
        request = client.expect_request("runInTerminal")
        assert request["arguments"] == {"args": ["a"], "cwd": "/"}
        assert request["seq"] != number
        # Of three pending requests one is cancelled, by the number of the client.
        first = client.send("threads")
        second = client.send("evaluate", {"expression": "%x"})
        cancel = client.send("cancel", {"requestId": second})
        client.answer(request, {"processId": 7})
        received = [far.read() for _ in range(4)]
        (answer,) = (each for each in received if each["type"] == "response")
        assert (answer["request_seq"], answer["success"]) == (number, True)
        assert (answer["command"], answer["body"]) == ("runInTerminal", {"processId": 7})
        requests = [each for each in received if each["type"] == "request"]
        assert [each["command"] for each in requests] == ["threads", "evaluate", "cancel"]
        assert requests[2]["arguments"]["requestId"] == requests[1]["seq"]
        for each, body in ((requests[2], None), (requests[0], {"threads": []})):
            fields = {"request_seq": each["seq"], "command": each["command"], "success": True}
            far.send(type="response", **fields, **({} if body is None else {"body": body}))
        client.expect_response(cancel)
        assert client.expect_response(first)["body"] == {"threads": []}
        # The connection ends within a message, with one request unanswered.
        far.connected.sendall(b"Content-Length: 99\r\n\r\n{")
    failure = client.expect_response(second)
    assert not failure["success"]
    assert (
        "closed the connection: the stream ends within a message (attach again, or disconnect)"
        in failure["message"]
    )
    assert "has ended: the stream ends" in client.expect_event("output", category="important")["output"]
    client.expect_event("terminated")
    restored = client.expect_event("capabilities")["capabilities"]
    assert restored["exceptionBreakpointFilters"] == reported["exceptionBreakpointFilters"]
    assert restored["supportsExceptionOptions"] is False


def test_a_disconnect_without_a_response_ends_the_session(client: Client) -> None:
    reported = initialize(client, clientName="a client")
    with far_side(client, reported) as far:
        leaving = client.send("disconnect", {"terminateDebuggee": False})
        assert far.read()["arguments"] == {"terminateDebuggee": False}
    assert client.expect_response(leaving)["success"]
    client.expect_end()
