"""Start, restart and end of a session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dap_server.client import TIMEOUT, Client, stdio_client
from tests.dap_server.conftest import EXAMPLES

pytestmark = pytest.mark.usefixtures("forked_processes")

FIRST = EXAMPLES / "first_steps.nnc"
LOOP = EXAMPLES / "refine_loop.nnc"

ENDLESS = """#nncdbg 1

graph @main(%x: f32[4]) -> (%y: f32[4]) {
  while @spin (%h: f32[4] = %x) count %i: i64[] {
    %go: bool[] = GreaterOrEqual(%i, 0)
    break unless %go
    %h.1: f32[4] = Abs(%h)
    next %h = %h.1
  } -> (%y: f32[4] = %h)
  return %y
}
"""

FAILS = """#nncdbg 1

graph @main(%x: i64[]) -> (%y: f32[]) {
  %v: f32[1] = Constant(value_floats=[1.0])
  %y: f32[] = Gather(%v, %x)
  return %y
}
"""

SLEEPS = '''
import time
import nncdbg

@nncdbg.op("com.example.Sleep")
def sleep(xp, x):
    """x, after a long time."""
    print("asleep", flush=True)
    time.sleep(60)
    return x
'''

SLEEPY = """#nncdbg 1

graph @main(%x: f32[1]) -> (%y: f32[1]) {
  %y: f32[1] = com.example.Sleep(%x)
  return %y
}
"""


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    return _written(tmp_path / "endless.nnc", ENDLESS)


@pytest.fixture
def sleepy(tmp_path: Path) -> Path:
    _written(tmp_path / "sleeps.py", SLEEPS)
    return _written(tmp_path / "sleepy.nnc", SLEEPY)


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _events(client: Client) -> list[str]:
    """Return the names of the events so far, with the exit code, without `output` events."""
    found = [each for each in client.messages if each["type"] == "event" and each["event"] != "output"]
    return [
        f"exited {each['body']['exitCode']}" if each["event"] == "exited" else each["event"] for each in found
    ]


def _expect_end(client: Client, exit_code: int) -> None:
    """Expect the end of the program."""
    client.expect_event("exited", exitCode=exit_code)
    client.expect_event("terminated")


# -- start -------------------------------------------------------------------------------------------


def test_a_run_reports_its_start_and_its_end_once(client: Client) -> None:
    client.launch(FIRST)
    client.request("configurationDone")
    _expect_end(client, 0)
    started, ended = ["process", "initialized", "thread"], ["thread", "exited 0", "terminated"]
    assert _events(client) == [*started, "nncdbg/summary", *ended]
    process = next(each["body"] for each in client.messages if each.get("event") == "process")
    assert process["name"] == "first_steps.nnc"
    assert process["startMethod"] == "launch"
    assert process["isLocalProcess"]
    assert process["pointerSize"] == 64
    assert "restart it" in client.refused("stepBack", {"threadId": 1})


def test_requests_can_be_sent_without_waiting(client: Client) -> None:
    sent = [
        client.send("initialize", {"adapterID": "nncdbg"}),
        client.send("setBreakpoints", {"source": {"path": str(FIRST)}, "breakpoints": [{"line": 6}]}),
        client.send("launch", {"program": str(FIRST)}),
        client.send("setFunctionBreakpoints", {"breakpoints": []}),
        client.send("setExceptionBreakpoints", {"filters": ["nan"]}),
        client.send("configurationDone"),
        client.send("threads"),
    ]
    for each in sent:
        assert client.expect_response(each)["success"]
    stop = client.expect_stop("breakpoint")
    assert len(stop["hitBreakpointIds"]) == 1


def test_a_breakpoint_at_the_first_statement_stops_before_anything_runs(client: Client) -> None:
    client.launch(FIRST)
    lines = client.request("breakpointLocations", {"source": {"path": str(FIRST)}, "line": 1, "endLine": 99})
    first = lines["breakpoints"][0]["line"]
    client.request("setBreakpoints", {"source": {"path": str(FIRST)}, "breakpoints": [{"line": first}]})
    client.request("configurationDone")
    client.expect_stop("breakpoint")
    assert client.top_frame()["line"] == first
    client.request("continue", {"threadId": 1})
    _expect_end(client, 0)


def test_a_program_starts_only_after_configuration_done(client: Client) -> None:
    client.launch(FIRST)
    client.request("threads")
    assert "send configurationDone first" in client.refused("next", {"threadId": 1})
    client.request("configurationDone")
    _expect_end(client, 0)
    assert "has ended" in client.refused("configurationDone")


def test_attach_needs_a_listening_process(client: Client) -> None:
    client.request("initialize", {"adapterID": "nncdbg"})
    assert "cannot attach to 127.0.0.1:1: " in client.refused("attach", {"connect": {"port": 1}})
    assert "arguments.connect.port" in client.refused("attach", {"connect": {"port": "x"}})
    assert "nncdbg.listen" in client.refused("attach", {})


def test_repeated_and_early_requests_are_refused(client: Client) -> None:
    assert "send initialize first" in client.refused("launch", {"program": str(FIRST)})
    client.request("initialize", {"adapterID": "nncdbg"})
    assert "is allowed only once" in client.refused("initialize", {"adapterID": "nncdbg"})
    assert "send launch or attach first" in client.refused("configurationDone")
    assert "send launch or attach first" in client.refused("restart")
    client.request("launch", {"program": str(FIRST), "stopOnEntry": True})
    assert "already" in client.refused("launch", {"program": str(FIRST)})
    client.request("configurationDone")
    client.expect_stop("entry")
    assert "already" in client.refused("launch", {"program": str(FIRST)})


def test_a_failed_launch_can_be_repeated(client: Client, tmp_path: Path) -> None:
    client.request("initialize", {"adapterID": "nncdbg"})
    path = tmp_path / "later.nnc"
    assert "there is no file" in client.refused("launch", {"program": str(path)})
    client.none_of("initialized")
    path.write_text(FIRST.read_text())
    client.request("launch", {"program": str(path), "stopOnEntry": True})
    client.expect_event("initialized")
    client.request("configurationDone")
    client.expect_stop("entry")


def test_a_client_can_disconnect_while_a_model_is_loaded(tmp_path: Path) -> None:
    wait = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\n"
    library = _written(tmp_path / "slow.py", wait)
    with stdio_client(cwd=tmp_path) as client:
        client.request("initialize", {"adapterID": "nncdbg"})
        client.send("launch", {"program": str(FIRST), "opLibrary": [str(library)]})
        client.request("disconnect")
        (tmp_path / "go").touch()


# -- restart -------------------------------------------------------------------------------------------


def test_restart_reads_the_changed_file_and_keeps_breakpoints(client: Client, tmp_path: Path) -> None:
    path = _written(tmp_path / "edited.nnc", FAILS)
    client.launch(path, inputs={"x": 0})
    client.request("setBreakpoints", {"source": {"path": str(path)}, "breakpoints": [{"line": 5}]})
    client.request("setExceptionBreakpoints", {"filters": ["nan"]})
    client.request("configurationDone")
    client.expect_stop("breakpoint")
    client.move("next")
    path.write_text(path.read_text().replace("%v:", "%w:").replace("(%v,", "(%w,"))
    client.request("restart")
    client.expect_event("continued")
    client.expect_stop("breakpoint")
    assert client.evaluate("%w[0]") == "1.0"
    client.request("continue", {"threadId": 1})
    _expect_end(client, 0)


def test_restart_works_after_the_end_and_with_another_configuration(client: Client) -> None:
    client.launch(FIRST)
    client.request("configurationDone")
    _expect_end(client, 0)
    client.request("restart", {"arguments": {"program": str(LOOP), "stopOnEntry": True}})
    client.expect_stop("entry")
    assert client.top_frame()["source"]["name"] == "refine_loop.nnc"
    client.request("restart")
    client.expect_stop("entry")
    message = client.refused("restart", {"arguments": {"program": 3}})
    assert "arguments.arguments.program" in message
    assert "there is no file" in client.refused("restart", {"arguments": {"program": "none.nnc"}})
    # A failed load keeps the current program.
    client.move("next")
    client.request("continue", {"threadId": 1})
    _expect_end(client, 0)


def test_a_running_program_can_be_restarted(client: Client, endless: Path) -> None:
    client.launch(endless)
    client.request("configurationDone")
    client.request("restart", {"arguments": {"program": str(endless), "stopOnEntry": True}})
    client.expect_stop("entry")
    client.none_of("exited")
    client.move("stepIn")
    client.request("continue", {"threadId": 1})
    client.request("pause", {"threadId": 1})
    client.expect_stop("pause")


# -- end -----------------------------------------------------------------------------------------------


def test_a_failed_graph_stops_first_and_ends_with_4(client: Client, tmp_path: Path) -> None:
    client.launch(_written(tmp_path / "fails.nnc", FAILS), inputs={"x": 7})
    client.request("configurationDone")
    client.expect_stop("exception")
    reported = [each["body"]["output"] for each in client.messages if each.get("event") == "output"]
    assert any("fails.nnc:5" in text for text in reported), reported
    client.move("stepBack", "entry")
    client.request("continue", {"threadId": 1})
    client.expect_stop("exception")
    client.request("continue", {"threadId": 1})
    _expect_end(client, 4)


def test_a_run_without_debugging_does_not_stop(client: Client, tmp_path: Path) -> None:
    client.launch(FIRST, noDebug=True, stopOnEntry=True)
    client.request("setBreakpoints", {"source": {"path": str(FIRST)}, "breakpoints": [{"line": 6}]})
    client.request("configurationDone")
    _expect_end(client, 0)
    client.none_of("stopped")
    client.request("restart", {"arguments": {"program": str(EXAMPLES / "nan_softmax.nnc"), "noDebug": True}})
    client.request("setExceptionBreakpoints", {"filters": ["nan"]})
    _expect_end(client, 0)
    fails = str(_written(tmp_path / "fails.nnc", FAILS))
    client.request("restart", {"arguments": {"program": fails, "noDebug": True, "inputs": {"x": 7}}})
    _expect_end(client, 4)
    client.none_of("stopped")


def test_stop_on_exit_stops_at_the_end(client: Client) -> None:
    client.launch(FIRST, stopOnExit=True)
    client.request("configurationDone")
    client.expect_stop("exit")
    client.move("stepBack")
    client.move("next", "exit")
    client.request("terminate")
    _expect_end(client, 130)


@pytest.mark.parametrize("where", ["configuring", "stopped", "running"])
def test_terminate_ends_a_program_in_every_state(client: Client, endless: Path, where: str) -> None:
    client.launch(endless, stopOnEntry=where == "stopped")
    if where != "configuring":
        client.request("configurationDone")
    if where == "stopped":
        client.expect_stop("entry")
    client.request("terminate")
    _expect_end(client, 130)
    client.request("terminate")
    client.request("disconnect", {"terminateDebuggee": True, "restart": False})
    client.expect_end()
    assert [each for each in _events(client) if each in ("exited 130", "terminated")] == [
        "exited 130",
        "terminated",
    ]


def test_the_capabilities_have_the_names_of_the_schema(client: Client) -> None:
    reported = client.request("initialize", {"adapterID": "nncdbg"})
    wanted = {
        "supportsConfigurationDoneRequest",
        "supportsRestartRequest",
        "supportsTerminateRequest",
        "supportTerminateDebuggee",
        "supportSuspendDebuggee",
    }
    assert {name for name in wanted if reported.get(name) is True} == wanted


def _server(cwd: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "nncdbg.terminal.main", "dap"]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd
    )


@pytest.mark.parametrize("state", ["new", "stopped", "running"])
def test_a_vanished_client_ends_its_program(tmp_path: Path, endless: Path, state: str) -> None:
    with _server(tmp_path) as process:
        assert process.stdin is not None
        client = Client(process.stdout, process.stdin)  # type: ignore[arg-type]
        if state == "stopped":
            client.start(endless)
        elif state == "running":
            client.launch(endless)
            client.request("configurationDone")
        process.stdin.close()
        assert process.wait(TIMEOUT) == 0


def test_a_long_kernel_does_not_keep_the_process_alive(tmp_path: Path, sleepy: Path) -> None:
    with _server(tmp_path) as process:
        assert process.stdin is not None
        client = Client(process.stdout, process.stdin)  # type: ignore[arg-type]
        client.launch(sleepy, opLibrary=["sleeps.py"])
        client.request("configurationDone")
        client.wait_for(lambda message: "asleep" in message.get("body", {}).get("output", ""))
        process.stdin.close()
        assert process.wait(TIMEOUT) != 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_program_and_the_server(tmp_path: Path, endless: Path, number: int) -> None:
    with _server(tmp_path) as process:
        client = Client(process.stdout, process.stdin)  # type: ignore[arg-type]
        client.launch(endless)
        client.request("configurationDone")
        client.expect_event("thread")
        os.kill(process.pid, number)
        _expect_end(client, 128 + number)
        client.expect_end()
        assert process.wait(TIMEOUT) == 128 + number
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
