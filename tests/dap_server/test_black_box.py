"""A crash is reported with its op: by the watchdog at once, and at the next start."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import nncdbg
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.execution.crash_log import CrashLog, last_run
from nncdbg.process.crash_report_reader import read_box, sentence
from tests.dap_server.client import TIMEOUT, Client, stdio_client

pytestmark = pytest.mark.usefixtures("forked_processes")

DEATHS = {
    "segv": "os.kill(os.getpid(), signal.SIGSEGV)",
    "abort": "os.abort()",
    "exit": "os._exit(3)",
    "kill": "os.kill(os.getpid(), signal.SIGKILL)",
}

OPS = """
import os, signal, time
import nncdbg

@nncdbg.op("deadly.Op")
def deadly(xp, x, i):
    if int(i) == 3:
        {death}
    return x + 1
"""

MODEL = """#nncdbg 1
graph @main(%x: f32[4]) -> (%y) {
  while @refine (%i: i64[] = 0, %s: f32[4] = %x) {
    %go: bool[] = Less(%i, 5)
    break unless %go
    %s.1: f32[4] = deadly.Op(%s, %i)   loc("net.py":7)
    %i.1: i64[] = Add(%i, 1)
    next %i = %i.1, %s = %s.1
  } -> (%y = %s)
  return %y
}
"""

CRASH_MESSAGE = "inside deadly.Op at line 6 (%s.1, iteration 3; operands f32[4], i64[]; net.py:7)"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with its own state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def deadly(folder: Path, death: str) -> tuple[Path, Path]:
    """Return (model, library) of a program that crashes in the fourth iteration."""
    library, model = folder / "ops.py", folder / "model.nnc"
    library.write_text(OPS.format(death=death))
    model.write_text(MODEL)
    return model, library


def run(model: Path, library: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nncdbg.terminal.main", "run", str(model), "--json"]
    command += ["--input", "x=ones", "--op-library", str(library)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)


def boxes(home: Path) -> list[Path]:
    return list((home / "state" / "nncdbg" / "black_boxes").glob("*"))


@pytest.mark.parametrize("death", ["segv", "exit"])
def test_the_next_start_names_the_op_once(home: Path, death: str) -> None:
    model, library = deadly(home, DEATHS[death])
    assert run(model, library).returncode in (-11, 3)
    assert len(boxes(home)) == 1
    library.write_text(OPS.format(death="pass"))
    healthy = run(model, library)
    assert healthy.returncode == 0, healthy.stderr
    assert f"the last run ended {CRASH_MESSAGE}" in json.loads(healthy.stdout)["notes"]
    assert boxes(home) == []
    assert "the last run" not in run(model, library).stderr


def test_an_error_is_not_recorded_as_a_crash(home: Path) -> None:
    model, library = deadly(home, "raise ValueError")
    assert run(model, library).returncode == 4
    assert boxes(home) == []


@pytest.mark.parametrize("death", DEATHS)
def test_the_last_output_of_a_session_names_the_op(home: Path, death: str) -> None:
    model, library = deadly(home, DEATHS[death])
    with dying_server(home) as client:
        client.launch(model, opLibrary=[str(library)], inputs={"x": "ones"})
        client.request("configurationDone")
        # The client checks that its number follows the previous one.
        message = client.wait_for(
            lambda m: m.get("event") == "output" and m["body"]["category"] == "important"
        )
        assert message["body"]["output"] == f"the program's process ended {CRASH_MESSAGE}\n"
        client.expect_event("terminated")
        client.expect_end()
    # The next session reports the crash again, as its user may be another one.
    library.write_text(OPS.format(death="pass"))
    with stdio_client(cwd=home) as client:
        client.start(model, opLibrary=[str(library)], inputs={"x": "ones"})
        outputs = [m["body"]["output"] for m in client.messages if m.get("event") == "output"]
        assert f"the last run ended {CRASH_MESSAGE}\n" in outputs


class dying_server:  # noqa: N801  used as a function
    """A client of a server that may crash; its process is always cleaned up."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "nncdbg.terminal.main", "dap"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder
        )

    def __enter__(self) -> Client:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return Client(self.process.stdout, self.process.stdin)  # type: ignore[arg-type]

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def watchdogs(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children() if "last_message" in " ".join(child.cmdline())]


@pytest.mark.usefixtures("started_processes")
def test_a_watchdog_runs_only_for_user_kernels_and_ends_with_the_session(home: Path) -> None:
    model, library = deadly(home, "pass")
    plain = home / "plain.nnc"
    plain.write_text("#nncdbg 1\ngraph @main(%x: f32[4]) -> (%y) {\n  %y = Relu(%x)\n  return %y\n}\n")
    for program, expected in ((plain, 0), (model, 1)):
        with dying_server(home) as client:
            client.start(program, opLibrary=[str(library)], inputs={"x": "ones"})
            (server,) = [each for each in psutil.Process().children() if "dap" in each.cmdline()]
            found = watchdogs(server)
            assert len(found) == expected
            client.send("disconnect")
            client.expect_end()
            server.wait(TIMEOUT)
            assert psutil.wait_procs(found, TIMEOUT)[1] == []
            client.none_of("terminated")
    assert boxes(home) == []


@pytest.mark.usefixtures("started_processes")
def test_a_server_killed_between_kernels_reports_no_crash(home: Path) -> None:
    model, library = deadly(home, "pass")
    with dying_server(home) as client:
        client.start(model, opLibrary=[str(library)], inputs={"x": "ones"})
        (server,) = [each for each in psutil.Process().children() if "dap" in each.cmdline()]
        found = watchdogs(server)
        server.kill()
        client.expect_end()
        client.none_of("terminated")
        assert psutil.wait_procs(found, TIMEOUT)[1] == []
    assert last_run(model) is None


def test_a_black_box_names_the_running_kernel(home: Path) -> None:
    seen: list[str] = []

    @nncdbg.op("box.Peek", infer=lambda attributes, types: [types[0]], accepts_out=True)
    def peek(xp: Any, x: Any, absent: Any = None, *, out: Any = None) -> Any:
        (file,) = boxes(home)
        contents = read_box(str(file))
        assert contents.record is not None
        seen.append(sentence(contents.record))
        assert contents.record["pid"] == os.getpid()
        assert contents.record["program"] == str(home / "odd \\xff.nnc")
        return xp.add(x, 1, out=out)

    text = """#nncdbg 1
graph @main(%x: f32[2,3]) -> (%y) {
  %h: f32[2,3] = Relu(%x)
  %y: f32[2,3] = box.Peek(%h)
  return %y
}
"""
    box = CrashLog(home / "odd \udcff.nnc")
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": "ones"}, black_box=box)
    assert debugger.run().reason == "end", debugger.stop
    assert set(seen) == {"inside box.Peek at line 4 (%y; operands f32[2,3])"}
    (file,) = boxes(home)
    assert read_box(str(file)).record is None
    # A start reads only the boxes of ended processes.
    assert last_run(home / "odd \udcff.nnc") is None
    assert boxes(home) == [file]
    del debugger, box
    gc.collect()
    assert boxes(home) == []


def test_every_kernel_of_another_backend_is_recorded(home: Path) -> None:
    class Other(NumPy):
        name = "other"

    box = CrashLog(home / "m.nnc")
    program = nncdbg.parse("#nncdbg 1\ngraph @main(%x: f32[4]) -> (%y) {\n  %y = Relu(%x)\n  return %y\n}\n")
    debugger = nncdbg.Debugger(program, {"x": "ones"}, backend=Other(), black_box=box)
    assert debugger.run().reason == "end"
    (file,) = boxes(home)
    assert b'"op":"Relu"' in file.read_bytes()
    del debugger, box
    gc.collect()
    assert boxes(home) == []


def test_an_unwritable_box_is_reported(home: Path) -> None:
    (home / "state").write_text("in the way")
    model, library = deadly(home, "pass")
    ended = run(model, library)
    assert ended.returncode == 0, ended.stderr
    assert "note: cannot report crashes: cannot write to" in ended.stderr
