"""A prompt in a terminal that the client opens."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.dap_server.client import TIMEOUT, Client, Message, until

pytestmark = pytest.mark.usefixtures("forked_processes")

pexpect = pytest.importorskip("pexpect")

FLAGS = {"supportsRunInTerminalRequest": True, "supportsInvalidatedEvent": True}

MODEL = """#nncdbg 1
graph @main(%x: f32[3]) -> (%y) {
  %h: f32[3] = Add(%x, %x)
  %g: f32[3] = Mul(%h, %h)
  while @spin (%i: i64[] = 0, %s: f32[3] = %g) {
    %go: bool[] = Less(%i, 100000000)
    break unless %go
    %s.1: f32[3] = Sin(%s)
    %i.1: i64[] = Add(%i, 1)
    next %i = %i.1, %s = %s.1
  } -> (%y = %s)
  return %y
}
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "model.nnc"
    file.write_text(MODEL)
    return file


def start(client: Client, model: Path, console: str = "integratedTerminal") -> Message:
    """Launch, stop on entry, and return the arguments of `runInTerminal`."""
    options = {"inputs": {"x": "ones"}, "stopOnEntry": True, "console": console}
    client.launch(model, initialize=FLAGS, **options)
    client.request("configurationDone")
    client.expect_stop("entry")
    request = client.expect_request("runInTerminal")
    client.answer(request, {"processId": 1})
    arguments: Message = request["arguments"]
    return arguments


class Terminal:
    """The terminal that a client opens."""

    def __init__(self, arguments: Message) -> None:
        command, *rest = arguments["args"]
        self.process = pexpect.spawn(
            command, rest, cwd=arguments["cwd"], timeout=TIMEOUT, encoding="utf-8", dimensions=(40, 120)
        )

    def expect(self, text: str) -> None:
        self.process.expect_exact(text)

    def complete(self, text: str) -> None:
        """Press Tab until `text` is listed: the terminal waits for two seconds only."""
        end = time.monotonic() + TIMEOUT
        found = False
        while not found:
            assert time.monotonic() < end, f"{text} is not listed"
            self.process.send("\t")
            found = self.process.expect_exact([text, pexpect.TIMEOUT], timeout=10) == 0

    def type(self, text: str) -> None:
        self.process.sendline(text)

    def expect_end(self) -> None:
        self.process.expect(pexpect.EOF)
        self.process.wait()


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for each in opened:
        each.process.close(force=True)


def test_the_terminal_and_the_client_share_one_program(
    client: Client, model: Path, terminals: list[Terminal]
) -> None:
    arguments = start(client, model)
    assert arguments["kind"] == "integrated"
    assert "model.nnc" in arguments["title"]
    path = Path(arguments["args"][-1])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    terminal = Terminal(arguments)
    terminals.append(terminal)
    terminal.expect("model.nnc: connected to the editor's session")
    terminal.expect("Add(%x, %x)")
    terminal.expect("(nncdbg)")
    # No other client can connect.
    assert not path.exists()

    # A typed command moves the program of the client.
    terminal.type("next")
    client.expect_stop("step")
    terminal.expect("Mul(%h, %h)")
    assert client.top_frame()["line"] == 4
    # A move of the client is shown in the terminal.
    client.move("next")
    terminal.expect("while @spin")
    terminal.type("p sum(%g)")
    terminal.expect("12")
    # Completion, and an error.
    terminal.process.send("stats %g")
    terminal.complete("%go")
    terminal.type("")
    terminal.expect("%g f32[3] [4. 4. 4.]")
    terminal.expect("max       4")
    terminal.type("p %nothing")
    terminal.expect("error:")
    terminal.expect("nothing")
    # A value set in the terminal invalidates the client's variables.
    terminal.type("set %h[0] = 7")
    client.expect_event("invalidated")
    # Ctrl-C pauses.
    terminal.type("continue")
    client.expect_event("continued")
    running = psutil.Process(terminal.process.pid)
    until(lambda: running.status() == psutil.STATUS_SLEEPING, "the terminal waits for the program")
    time.sleep(0.3)
    terminal.process.sendintr()
    client.expect_stop("pause")
    terminal.expect("Paused")
    # The terminal may quit, and the session continues.
    terminal.type("quit")
    terminal.expect_end()
    assert terminal.process.exitstatus == 0
    client.move("next")


def test_the_end_of_the_session_ends_the_terminal(
    client: Client, model: Path, terminals: list[Terminal]
) -> None:
    arguments = start(client, model, "externalTerminal")
    assert arguments["kind"] == "external"
    terminal = Terminal(arguments)
    terminals.append(terminal)
    terminal.expect("(nncdbg)")
    client.request("disconnect")
    client.expect_end()
    terminal.expect("the session has ended")
    terminal.expect_end()
    assert terminal.process.exitstatus == 0
    assert not Path(arguments["args"][-1]).parent.exists()


def test_a_killed_terminal_does_not_affect_the_session(
    client: Client, model: Path, terminals: list[Terminal]
) -> None:
    terminal = Terminal(start(client, model))
    terminals.append(terminal)
    terminal.expect("(nncdbg)")
    os.kill(terminal.process.pid, signal.SIGKILL)
    terminal.expect_end()
    for _ in range(2):
        client.move("next")


def test_a_terminal_that_reads_nothing_does_not_block_the_session(client: Client, model: Path) -> None:
    arguments = start(client, model)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(arguments["args"][-1])
        silent.sendall(b"no JSON\n" + b'{"line": 5}\n' + b'{"line": "help"}\n' * 2000)
        client.move("next")
        client.move("next")


def test_a_client_without_terminal_support_gets_a_message(client: Client, model: Path) -> None:
    client.launch(model, inputs={"x": "ones"}, stopOnEntry=True, console="integratedTerminal")
    client.request("configurationDone")
    client.expect_stop("entry")
    outputs = [m["body"]["output"] for m in client.messages if m.get("event") == "output"]
    assert any("this client does not support it" in each for each in outputs), outputs


def test_a_terminal_that_fails_to_open_is_reported(client: Client, model: Path) -> None:
    client.launch(
        model, initialize=FLAGS, inputs={"x": "ones"}, console="integratedTerminal", stopOnEntry=True
    )
    request = client.expect_request("runInTerminal")
    client.answer(request, success=False)
    client.wait_for(lambda m: "cannot open a terminal" in m.get("body", {}).get("output", ""))
    socket_folder = Path(request["arguments"]["args"][-1]).parent
    until(lambda: not socket_folder.exists(), "the socket's folder is removed")
    client.request("configurationDone")
    client.expect_stop("entry")


def test_an_invalid_console_value_is_refused(client: Client, model: Path) -> None:
    client.request("initialize", {"adapterID": "nncdbg"})
    assert "console" in client.refused("launch", {"program": str(model), "console": "window"})


@pytest.mark.parametrize(
    ("arguments", "code", "message"), [((), 2, "--connect"), (("--connect", "nowhere"), 2, "terminal")]
)
def test_the_repl_command_without_a_session_is_an_error(
    arguments: tuple[str, ...], code: int, message: str
) -> None:
    command: list[Any] = [sys.executable, "-m", "nncdbg.terminal.main", "repl", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert (ended.returncode, message in ended.stderr) == (code, True), ended.stderr


def test_the_repl_command_after_the_session_is_an_error(tmp_path: Path) -> None:
    arguments = ["-m", "nncdbg.terminal.main", "repl", "--connect", str(tmp_path / "gone")]
    process = pexpect.spawn(sys.executable, arguments, timeout=TIMEOUT, encoding="utf-8")
    process.expect_exact("no session is listening")
    process.expect(pexpect.EOF)
    process.close()
    assert process.exitstatus == 3
