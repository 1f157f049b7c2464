"""Attaching over TCP to a user's program in another process."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nncdbg.commands.recording.entries import read_recording
from nncdbg.commands.recording.stops import RecordedStop
from tests.dap_server.client import TIMEOUT, Client, socket_client

pytestmark = pytest.mark.usefixtures("forked_processes")

PROGRAM = """#nncdbg 1

graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %a: f32[2] = Add(%x, 1.0)
  %b: f32[2] = Mul(%a, 2.0)
  %c: f32[2] = Sub(%b, 3.0)
  %y: f32[2] = Abs(%c)
  return %y
}
"""

HEAD = """
import sys
import numpy as np
import nncdbg

x = np.array([1, 2], "f4")
host, port = nncdbg.listen(("127.0.0.1", 0))
print("port", port, flush=True)

def debugger():
    return nncdbg.Debugger(nncdbg.load("graph.nnc"), {"x": x})

def say(*words):
    print(*words, flush=True)
"""


class Program:
    """A running script of a user, and its clients."""

    def __init__(self, process: subprocess.Popen[str], graph: Path) -> None:
        self.process = process
        self.graph = graph
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self.port = int(self.line().removeprefix("port "))

    def line(self) -> str:
        """Return the next printed line."""
        return self._lines.get(timeout=TIMEOUT)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def break_at(self, client: Client, *lines: int) -> Any:
        """Set the client's breakpoints in the graph and return them."""
        wanted = [{"line": line} for line in lines]
        arguments = {"source": {"path": str(self.graph)}, "breakpoints": wanted}
        return client.request("setBreakpoints", arguments)["breakpoints"]

    def go(self) -> None:
        """Let `input()` return in the script."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    @contextlib.contextmanager
    def client(self, lines: tuple[int, ...] = (), filters: tuple[str, ...] = ()) -> Iterator[Client]:
        """An attached client, with these breakpoints and filters."""
        with socket_client(socket.create_connection(("127.0.0.1", self.port), TIMEOUT)) as client:
            client.request("initialize", {"adapterID": "nncdbg"})
            client.request("attach", {})
            client.expect_event("initialized")
            self.break_at(client, *lines)
            client.request("setExceptionBreakpoints", {"filters": list(filters)})
            client.request("configurationDone")
            client.expect_event("process", startMethod="attach")
            yield client


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Any]:
    """Return a function that runs a script; the process must end by itself with the given exit code."""
    (tmp_path / "graph.nnc").write_text(PROGRAM)
    with contextlib.ExitStack() as stack:

        def run(script: str, code: int = 0) -> Program:
            (tmp_path / "script.py").write_text(HEAD + textwrap.dedent(script))
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "script.py"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    cwd=tmp_path,
                )
            )

            def check() -> None:
                try:
                    found = process.wait(TIMEOUT)
                    assert process.stderr is not None
                    assert found == code, process.stderr.read()
                finally:
                    process.kill()

            stack.callback(check)
            return Program(process, tmp_path / "graph.nnc")

        yield run


def resume(client: Client) -> None:
    client.request("continue", {"threadId": 1})


def test_without_a_breakpoint_the_program_runs_and_its_end_is_reported(program: Any) -> None:
    running = program(
        """
        nncdbg.wait_for_client()
        d = debugger()
        stop = d.run()
        say(nncdbg.is_client_connected(), stop.reason, d.value("%y").tolist(), len(d.breakpoints))
        """
    )
    with running.client() as client:
        client.expect_event("exited", exitCode=0)
        client.expect_event("terminated")
        client.none_of("stopped")
    assert running.line() == "True end [1.0, 3.0] 0"


def test_a_client_breakpoint_stops_the_call_until_the_client_continues(program: Any) -> None:
    running = program(
        """
        nncdbg.wait_for_client()
        d = debugger()
        own = d.break_at(line=7)
        stop = d.run()
        say(stop.reason, stop.line, stop.breakpoints == (own.number,))
        stop = d.run()
        say(stop.reason, d.value("%y").tolist())
        """
    )
    with running.client((5,)) as client:
        client.expect_stop("breakpoint")
        assert client.top_frame()["line"] == 5
        client.move("next")
        client.move("stepBack")
        client.move("next")
        client.request("setExpression", {"expression": "%b", "value": "10"})
        resume(client)
        # The breakpoint of the script returns to the script.
        assert running.line() == "breakpoint 7 True"
        assert running.line() == "end [7.0, 7.0]"
        client.expect_event("exited", exitCode=0)


def test_an_interrupted_call_runs_to_its_own_end(program: Any) -> None:
    running = program(
        """
        nncdbg.wait_for_client()
        d = debugger()
        say(d.run_to(line=7).reason, d.stop.line)
        say(d.step_over().line if not d.ended else "ended")
        """
    )
    with running.client((5,)) as client:
        client.expect_stop("breakpoint")
        resume(client)
        assert running.line() == "goto 7"
        assert running.line() == "8"
        client.expect_event("exited")


def test_client_and_script_can_share_a_breakpoint_line(program: Any) -> None:
    running = program(
        """
        nncdbg.wait_for_client()
        d = debugger()
        d.break_at(line=5)
        say(d.run().line)
        say(d.run().reason)
        """
    )
    with running.client((5,)) as client:
        client.expect_stop("breakpoint")
        resume(client)
        assert running.line() == "5"
        assert running.line() == "end"


def test_breakpoint_calls_and_pauses_take_effect_at_the_next_statement(program: Any) -> None:
    running = program(
        """
        nncdbg.breakpoint()  # without a client, this does nothing
        debugger().run()
        nncdbg.wait_for_client()
        nncdbg.breakpoint()
        say(debugger().run().reason)
        say(debugger().run().reason)
        input()
        say(debugger().run().reason)
        """
    )
    with running.client() as client:
        client.expect_stop("pause")
        assert client.top_frame()["line"] == 4
        running.break_at(client, 4)
        resume(client)
        assert running.line() == "end"
        client.expect_stop("breakpoint")
        assert client.top_frame()["line"] == 4
        resume(client)
        assert running.line() == "end"
        client.request("threads")
        assert "no graph is running" in client.refused("stackTrace", {"threadId": 1})
        # A breakpoint set now applies to the next debugger.
        assert not running.break_at(client, 6)[0]["verified"]
        client.request("pause", {"threadId": 1})
        running.go()
        client.expect_event("breakpoint", reason="changed")
        client.expect_stop("pause")
        resume(client)
        client.expect_stop("breakpoint")
        assert client.top_frame()["line"] == 6
        resume(client)
        assert running.line() == "end"


def test_a_client_can_detach_and_attach_again(program: Any) -> None:
    running = program(
        """
        d = debugger()
        d.catch("inf")
        for _ in range(4):
            input()
            d.restart()
            say(d.run().reason, len(d.breakpoints), sorted(d.observers.catches.conditions))
        """
    )
    catches = "['guard', 'inf', 'uninitialized']"
    for _ in range(3):
        with running.client((5,), ("nan",)) as client:
            running.go()
            client.expect_stop("breakpoint")
            client.request("disconnect", {"terminateDebuggee": False})
            client.expect_end()
            assert running.line() == f"end 0 {catches}"
    running.go()
    assert running.line() == f"end 0 {catches}"


@pytest.mark.parametrize("held", [True, False])
def test_a_killed_client_lets_the_program_continue(program: Any, held: bool) -> None:
    running = program(
        """
        nncdbg.wait_for_client()
        d = debugger()
        say(d.run().reason, len(d.breakpoints))
        input()
        say(debugger().run().reason)
        """
    )
    arguments = [str(running.port), str(running.graph), "5" if held else "99"]
    client = subprocess.Popen([sys.executable, "-c", KILLED, *arguments])
    try:
        if held:
            assert client.wait(TIMEOUT) == -signal.SIGKILL
        assert running.line() == "end 0"
    finally:
        client.kill()
        client.wait()
    with running.client() as again:
        running.go()
        assert running.line() == "end"
        again.expect_event("terminated")


KILLED = """
import os, signal, socket, sys
from tests.dap_server.client import socket_client
with socket_client(socket.create_connection(("127.0.0.1", int(sys.argv[1])))) as client:
    client.request("initialize", {"adapterID": "nncdbg"})
    client.request("attach", {})
    wanted = [{"line": int(sys.argv[3])}]
    client.request("setBreakpoints", {"source": {"path": sys.argv[2]}, "breakpoints": wanted})
    client.request("configurationDone")
    if sys.argv[3] == "5":
        client.expect_stop("breakpoint")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_suspended_program_waits_for_the_next_client(program: Any) -> None:
    running = program(
        """
        nncdbg.wait_for_client()
        say(debugger().run().reason)
        """
    )
    with running.client((5,)) as client:
        client.expect_stop("breakpoint")
        client.request("disconnect", {"suspendDebuggee": True})
        client.expect_end()
    with running.client((6,)) as client:
        client.expect_stop("breakpoint")
        assert client.top_frame()["line"] == 5
        resume(client)
        client.expect_stop("breakpoint")
        assert client.top_frame()["line"] == 6
        resume(client)
        assert running.line() == "end"


def test_a_client_can_attach_during_a_run(program: Any, tmp_path: Path) -> None:
    (tmp_path / "graph.nnc").write_text(ENDLESS)
    running = program(
        """
        d = debugger()
        try:
            d.run()
        except KeyboardInterrupt:
            say("interrupted")
        """
    )
    with running.client((7,)) as client:
        client.expect_stop("breakpoint")
        running.break_at(client)
        resume(client)
        client.request("pause", {"threadId": 1})
        client.expect_stop("pause")
        resume(client)
        client.request("disconnect", {"terminateDebuggee": True})
        client.expect_end()
    assert running.line() == "interrupted"


ENDLESS = """#nncdbg 1

graph @main(%x: f32[2]) -> (%y: f32[2]) {
  while @spin (%h: f32[2] = %x) count %i: i64[] {
    %go: bool[] = GreaterOrEqual(%i, 0)
    break unless %go
    %h.1: f32[2] = Abs(%h)
    next %h = %h.1
  } -> (%y: f32[2] = %h)
  return %y
}
"""


def test_errors_of_the_program_are_raised_in_the_program(program: Any) -> None:
    running = program(
        """
        import nncdbg.errors
        nncdbg.wait_for_client()
        d = nncdbg.Debugger(nncdbg.parse(open("graph.nnc").read()), {"x": x})
        d.run()
        try:
            d.run()
        except nncdbg.UsageError as error:
            say(error.message)
        raise ValueError("mine")
        """,
        code=1,
    )
    with running.client() as client:
        client.expect_event("exited", exitCode=1)
    assert running.line() == "the program has ended"
    assert not (running.graph.parent / ".nncdbg" / "graph.nnc").exists()
    assert (running.graph.parent / ".nncdbg" / "main.nnc").read_text().startswith("#nncdbg 1")


def test_two_threads_take_turns_and_a_forked_child_is_not_debugged(program: Any) -> None:
    running = program(
        """
        import os, threading
        nncdbg.wait_for_client()
        stops = []
        threads = [threading.Thread(target=lambda: stops.append(debugger().run().reason)) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        say(stops)
        child = os.fork()
        if child == 0:
            say(debugger().run().reason, nncdbg.is_client_connected())
            os._exit(0)
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    with running.client((5,)) as client:
        for _ in range(2):
            client.expect_stop("breakpoint")
            client.none_of("stopped")
            resume(client)
        assert running.line() == "['end', 'end']"
        assert running.line() == "end False"
        assert running.line() == "0"
        client.expect_event("terminated")


def test_ctrl_c_interrupts_a_wait_and_a_stopped_call(program: Any) -> None:
    running = program(
        """
        try:
            say("waits")
            nncdbg.wait_for_client()
        except KeyboardInterrupt:
            say("no client")
        say(nncdbg.wait_for_client(0.01))
        nncdbg.wait_for_client()
        try:
            debugger().run()
        except KeyboardInterrupt:
            say("held")
        say(debugger().run().reason)
        """
    )
    assert running.line() == "waits"
    os.kill(running.process.pid, signal.SIGINT)
    assert running.line() == "no client"
    assert running.line() == "False"
    with running.client((5,)) as client:
        client.expect_stop("breakpoint")
        os.kill(running.process.pid, signal.SIGINT)
        assert running.line() == "held"
        client.expect_event("continued")
        client.expect_stop("breakpoint")
        resume(client)
        assert running.line() == "end"


def test_invalid_calls_are_refused() -> None:
    script = """
    import nncdbg
    for call in (
        nncdbg.wait_for_client,
        lambda: nncdbg.listen(("127.0.0.1", 0)) and nncdbg.listen(("127.0.0.1", 0)),
        lambda: nncdbg.listen(("0.0.0.0", 0)),
    ):
        try:
            call()
        except nncdbg.UsageError as error:
            print(error.message)
    nncdbg.breakpoint()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    messages = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert messages[0] == "this process is not listening"
    assert re.match(r"this process is already listening on 127.0.0.1:\d+$", messages[1])


def test_a_recording_has_breakpoints_moves_and_edits_of_the_client(program: Any, tmp_path: Path) -> None:
    """T15: an attached editor is recorded as a launched one, without what the script itself does."""
    running = program(
        """
        nncdbg.wait_for_client()
        d = debugger()
        d.break_at(line=7)
        d.catch("inf")
        say(d.run().line)
        d.break_at(line=6)
        d.restart()
        say(d.run().line)
        e = debugger()
        say(e.run().reason)
        """
    )
    with running.client((5,), ("nan",)) as client:
        client.expect_stop("breakpoint")
        assert client.evaluate("record r.log", "repl") == "recording to r.log"
        client.move("next")
        client.move("stepBack")
        client.request("setExpression", {"expression": "%a", "value": "10"})
        wanted = [{"line": 5}, {"line": 4, "condition": "max(%x) > 1"}]
        source = {"path": str(running.graph)}
        client.request("setBreakpoints", {"source": source, "breakpoints": wanted})
        resume(client)
        assert running.line() == "7"  # The stop of the script is not that of the client.
        client.expect_stop("breakpoint")
        assert client.top_frame()["line"] == 4
        assert client.evaluate("1000 + 1", "repl") == "1001"
        running.break_at(client, 5)
        resume(client)
        client.expect_stop("breakpoint")
        resume(client)
        assert running.line() == "6"
        client.expect_stop("breakpoint")
        resume(client)
        assert running.line() == "end"
        client.expect_event("exited")
    running.process.wait(TIMEOUT)
    recording = read_recording(str(tmp_path / "r.log"))
    assert recording.closed
    texts = [each.command.text for each in recording.commands]
    assert texts[:3] == ["break 5", "uncatch uninitialized guard", "catch nan"]
    assert texts[3:8] == ["next", "back", "set %a = 10", "break 4 if max(%x) > 1", "continue"]
    assert texts[8:] == ["1000 + 1", "delete 2", "continue", "continue", "continue"]
    stops = [
        (each.command.text, event.reason, event.line)
        for each in recording.commands
        for event in each.events
        if isinstance(event, RecordedStop)
    ]
    assert stops == [
        ("next", "step", 6),
        ("back", "step", 5),
        ("continue", "breakpoint", 4),
        ("continue", "breakpoint", 5),
        ("continue", "breakpoint", 5),
    ]
