"""Debugging kernels in Python: a debugpy client attached to the process of the session."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import nncdbg
from nncdbg.engine.backends import Backend
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.backends.onnxruntime import OnnxRuntime
from nncdbg.target.program import ProgramTarget
from tests.dap_server.client import TIMEOUT, Client, read_body, socket_client, stdio_client

pytest.importorskip("debugpy")

OPS = '''"""Kernels of a user."""

import functools
import sys
import nncdbg


def loud(kernel):
    @functools.wraps(kernel)
    def wrapped(*arguments, **attributes):
        return kernel(*arguments, **attributes)

    return wrapped


@nncdbg.op("child.Twice")
@loud
def twice(xp, x, *, by=2):
    """x, so many times."""
    factor = by
    return x * factor


@nncdbg.op("child.Traced")
def traced(xp, x):
    """1 if this thread is traced, which is slow, else 0."""
    return xp.full(2, sys.gettrace() is not None, xp.float32)
'''
FIRST_LINE = 20

MODEL = """#nncdbg 1
graph @main(%x: f32[2]) -> (%t) {
  %a: f32[2] = Add(%x, %x)
  %y: f32[2] = child.Twice(%a, by=3)
  %s: f32[2] = Softmax(%y)
  %z: f32[2] = child.Twice(%y)
  %t: f32[2] = child.Traced(%z)
  return %t
}
"""

FLAGS = {"supportsStartDebuggingRequest": True}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """(model, library)."""
    model, library = tmp_path / "model.nnc", tmp_path / "ops.py"
    model.write_text(MODEL)
    library.write_text(OPS)
    return model, library


def start(client: Client, files: tuple[Path, Path], **flags: Any) -> None:
    model, library = files
    client.launch(model, initialize=flags, opLibrary=[str(library)], inputs={"x": "ones"}, stopOnEntry=True)
    client.request("configurationDone")
    client.expect_stop("entry")


def step_in_targets(client: Client) -> dict[str, int]:
    frame = client.top_frame()
    targets = client.request("stepInTargets", {"frameId": frame["id"]})["targets"]
    return {each["label"]: each["id"] for each in targets}


class Child:
    """A client of debugpy, as an editor starts it for `startDebugging`."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        address = configuration["connect"]["host"], configuration["connect"]["port"]
        self.socket = socket.create_connection(address, timeout=TIMEOUT)
        self.reader = self.socket.makefile("rb")
        self.seq = 0
        self.send("initialize", {"adapterID": "debugpy", "pathFormat": "path"})
        self.send("attach", {"justMyCode": configuration["justMyCode"]})
        self.event("initialized")

    def send(self, command: str, arguments: Any = None) -> int:
        self.seq += 1
        message = {"seq": self.seq, "type": "request", "command": command, "arguments": arguments or {}}
        body = json.dumps(message).encode()
        self.socket.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        return self.seq

    def next(self) -> dict[str, Any]:
        body = read_body(self.reader)
        assert body is not None, "debugpy closed the connection"
        message: dict[str, Any] = json.loads(body)
        return message

    def event(self, event: str) -> dict[str, Any]:
        while (message := self.next()).get("event") != event:
            pass
        body: dict[str, Any] = message.get("body", {})
        return body

    def request(self, command: str, arguments: Any = None) -> dict[str, Any]:
        seq = self.send(command, arguments)
        while (message := self.next()).get("request_seq") != seq:
            pass
        assert message["success"], message
        body: dict[str, Any] = message.get("body", {})
        return body

    def stopped(self) -> tuple[int, dict[str, Any]]:
        """Return (thread, innermost frame) of the next stop."""
        thread = self.event("stopped")["threadId"]
        return thread, self.request("stackTrace", {"threadId": thread})["stackFrames"][0]

    def close(self) -> None:
        self.reader.close()
        self.socket.close()


@contextlib.contextmanager
def child_of(client: Client) -> Iterator[Child]:
    """Start the debugpy client of the next `startDebugging` request, and answer the request."""
    request = client.expect_request("startDebugging")
    assert request["arguments"]["request"] == "attach"
    assert request["arguments"]["configuration"]["type"] == "debugpy"
    child = Child(request["arguments"]["configuration"])
    client.answer(request)
    try:
        yield child
    finally:
        child.close()


def test_the_kernel_stops_at_its_first_line_and_the_session_after_the_statement(
    client: Client, files: tuple[Path, Path]
) -> None:
    start(client, files, **FLAGS)
    assert "kernel of Add (Python)" not in step_in_targets(client)  # NumPy's own function
    client.move("next")
    target = step_in_targets(client)["kernel of child.Twice (Python)"]
    client.request("stepIn", {"threadId": 1, "targetId": target})
    with child_of(client) as child:
        child.request("configurationDone")
        thread, frame = child.stopped()
        assert (frame["name"], frame["line"]) == ("twice", FIRST_LINE)
        assert Path(frame["source"]["path"]) == files[1]
        # debugpy lists only the program's thread; the server's threads are hidden and keep running.
        assert len(child.request("threads")["threads"]) == 1
        assert client.request("threads")["threads"] == [{"id": 1, "name": "main"}]
        value = child.request("evaluate", {"expression": "x.sum() + by", "frameId": frame["id"]})
        assert value["result"].endswith("7.0)") or value["result"] == "7.0", value
        child.request("next", {"threadId": thread})
        child.stopped()
        child.request("continue", {"threadId": thread})
        client.expect_stop("step")
        assert client.top_frame()["line"] == 5
        # While debugpy is attached, its breakpoints apply, and there is no second `startDebugging`.
        child.request(
            "setBreakpoints",
            {"source": {"path": str(files[1])}, "breakpoints": [{"line": FIRST_LINE + 1}]},
        )
        client.move("next")
        client.request("next", {"threadId": 1})
        thread, frame = child.stopped()
        assert frame["line"] == FIRST_LINE + 1
        child.request("disconnect", {"terminateDebuggee": False})
    client.expect_stop("step")
    assert client.top_frame()["line"] == 7
    # debugpy can be attached again.
    client.move("stepBack")
    target = step_in_targets(client)["kernel of child.Twice (Python)"]
    client.request("stepIn", {"threadId": 1, "targetId": target})
    with child_of(client) as child:
        child.request("configurationDone")
        thread, frame = child.stopped()
        assert frame["line"] == FIRST_LINE
        child.request("continue", {"threadId": thread})
        client.expect_stop("step")
        child.request("disconnect", {"terminateDebuggee": False})
    client.move("next")
    assert client.evaluate("sum(%t)") == "0.0"
    (server,) = [each for each in psutil.Process().children() if "dap" in each.cmdline()]
    adapters = server.children(recursive=True)
    client.send("disconnect")
    client.expect_end()
    assert psutil.wait_procs([server, *adapters], 10)[1] == []


def test_built_in_kernels_can_be_debugged_too(client: Client, files: tuple[Path, Path]) -> None:
    start(client, files, **FLAGS)
    for _ in range(2):
        client.move("next")
    target = step_in_targets(client)["kernel of Softmax (Python)"]
    client.request("stepIn", {"threadId": 1, "targetId": target})
    with child_of(client) as child:
        child.request("configurationDone")
        thread, frame = child.stopped()
        assert Path(frame["source"]["path"]).name == "softmax.py"
        child.request("continue", {"threadId": thread})
        client.expect_stop("step")


def test_a_client_without_start_debugging_gets_no_kernel_targets(
    client: Client, files: tuple[Path, Path]
) -> None:
    start(client, files)
    client.move("next")
    assert not any("Python" in label for label in step_in_targets(client))


def test_a_refusal_or_a_pause_ends_the_wait(client: Client, files: tuple[Path, Path]) -> None:
    start(client, files, **FLAGS)
    client.move("next")
    target = {"threadId": 1, "targetId": step_in_targets(client)["kernel of child.Twice (Python)"]}
    client.request("stepIn", target)
    client.answer(client.expect_request("startDebugging"), success=False)
    output = client.wait_for(lambda m: "did not start" in m.get("body", {}).get("output", ""))
    assert output["body"]["category"] == "important"
    client.expect_event("stopped")
    assert client.top_frame()["line"] == 4
    client.request("stepIn", target)
    client.answer(client.expect_request("startDebugging"))
    client.request("pause", {"threadId": 1})
    client.wait_for(lambda m: "stopped waiting" in m.get("body", {}).get("output", ""))
    client.expect_event("stopped")
    client.move("next")
    assert client.top_frame()["line"] == 5


def test_a_missing_debugpy_is_reported(files: tuple[Path, Path], tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "debugpy.py").write_text("raise ImportError\n")
    with stdio_client(cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(hidden)}) as client:
        start(client, files, **FLAGS)
        client.move("next")
        target = {"threadId": 1, "targetId": step_in_targets(client)["kernel of child.Twice (Python)"]}
        assert "debugpy, which is not installed" in client.refused("stepIn", target)
        client.move("next")


BESIDE = """
import debugpy
import nncdbg

here = nncdbg.listen(("127.0.0.1", 0))[1]
print(here, debugpy.listen(("127.0.0.1", 0))[1], flush=True)
debugpy.wait_for_client()
nncdbg.wait_for_client()
dbg = nncdbg.Debugger(nncdbg.load("graph.nnc"))
dbg.step_over()
debugpy.breakpoint()
dbg.run()
"""


def test_a_python_breakpoint_of_debugpy_does_not_stop_the_server(tmp_path: Path) -> None:
    (tmp_path / "graph.nnc").write_text(
        MODEL.replace("child.Twice(%a, by=3)", "Neg(%a)")
        .replace("child.Twice", "Neg")
        .replace("child.Traced", "Abs")
    )
    (tmp_path / "beside.py").write_text(BESIDE)
    # Avoid Python's warning about frozen modules.
    command = [sys.executable, "-Xfrozen_modules=off", "beside.py"]
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        ours, theirs = map(int, process.stdout.readline().split())
        python = Child({"connect": {"host": "127.0.0.1", "port": theirs}, "justMyCode": False})
        python.request("configurationDone")
        with socket_client(socket.create_connection(("127.0.0.1", ours), 30)) as client:
            client.request("initialize", {"adapterID": "nncdbg"})
            client.request("attach", {})
            client.expect_event("initialized")
            client.request("setFunctionBreakpoints", {"breakpoints": [{"name": "Abs"}]})
            client.request("configurationDone")
            thread, frame = python.stopped()
            assert Path(frame["source"]["path"]).name == "beside.py"
            assert len(python.request("threads")["threads"]) == 1, "threads of nncdbg are not listed"
            assert client.request("threads")["threads"] == [{"id": 1, "name": "main"}]
            client.request("setFunctionBreakpoints", {"breakpoints": [{"name": "Abs"}]})
            python.request("continue", {"threadId": thread})
            client.expect_stop("function breakpoint")
            client.request("disconnect", {})
        python.close()
        assert process.wait(TIMEOUT) == 0


class Renamed(NumPy):
    """A backend of another package."""

    name = "renamed"


@pytest.mark.parametrize(("backend", "has_kernel"), [(Renamed, True), (OnnxRuntime, False)])
def test_the_backend_declares_whether_kernels_are_python(backend: type[Backend], has_kernel: bool) -> None:
    text = "graph @main(%x: f32[4]) -> (%y: f32[4]) {\n  %y: f32[4] = Softmax(%x)\n  return %y\n}\n"
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": "zeros"}, backend=backend())
    assert (ProgramTarget(debugger).inside()[1] is not None) == has_kernel
