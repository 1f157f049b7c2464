"""A script under `nncdbg debug --listen`, beside an editor."""

import re
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.dap_server.client import socket_client  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_training.py"


@contextmanager
def debugged(folder, *options, script=None, python=()):
    """Yield a client of the example, or of another script, before it starts, and its process."""
    (folder / "train.py").write_text(script or EXAMPLE.read_text())
    command = [
        sys.executable,
        *python,
        "-m",
        "nncdbg",
        "debug",
        "--listen",
        "127.0.0.1:0",
        *options,
        "train.py",
    ]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            found = re.search(r"waiting for an editor at 127\.0\.0\.1:(\d+)", process.stderr.readline())
            assert found is not None
            with socket_client(socket.create_connection(("127.0.0.1", int(found[1])))) as client:
                client.request("initialize", {"adapterID": "nncdbg"})
                yield client, process
        finally:
            process.kill()


def configure(client, filters=(), functions=(), lines=(), folder=None):
    client.send("attach", {})
    client.expect_event("initialized")
    records = client.request("setFunctionBreakpoints", {"breakpoints": [dict(each) for each in functions]})[
        "breakpoints"
    ]
    if lines:
        source = {"path": str(folder / "train.py")}
        wanted = {"source": source, "breakpoints": [{"line": line} for line in lines]}
        records += client.request("setBreakpoints", wanted)["breakpoints"]
    client.request("setExceptionBreakpoints", {"filters": [*filters]})
    client.request("configurationDone")
    return records


def test_stops_steps_and_goes_back_in_an_editor(tmp_path):
    with debugged(tmp_path, "--history") as (client, process):
        records = configure(
            client,
            filters=["inf"],
            functions=[{"name": "aten.tanh", "condition": "$step == 2"}, {"name": "aten.nothing"}],
            lines=[41],
            folder=tmp_path,
        )
        assert [each["verified"] for each in records] == [True, False, True]
        assert "torch has no operator aten.nothing" in records[1]["message"]

        # Line 41 is the update.
        assert "train.py:41" in client.expect_stop("breakpoint")["text"]
        client.request("continue", {"threadId": 1})
        client.expect_stop("breakpoint")
        assert "tanh" in client.evaluate("$op")
        assert client.evaluate("$out.shape") == "(16, 8)"

        client.move("next")
        client.request("stepBack", {"threadId": 1})
        client.expect_stop("step")
        client.request("stepBack", {"threadId": 1})
        client.expect_stop("step")
        client.request("setFunctionBreakpoints", {"breakpoints": []})
        client.request("setBreakpoints", {"source": {"path": str(tmp_path / "train.py")}, "breakpoints": []})
        client.request("continue", {"threadId": 1})
        assert "Inf" in client.expect_stop("exception")["text"]
        client.request("setExceptionBreakpoints", {"filters": []})
        client.request("continue", {"threadId": 1})
        client.expect_end()
        assert process.wait(60) == 0
        assert process.stdout.read().count("loss") == 6


LOOP = """
import os, torch

weight, steps = torch.ones(3, requires_grad=True), 0
while not os.path.exists("end"):
    weight.square().sum().backward()
    steps += 1
print("ended")
"""


def test_pause_and_disconnect(tmp_path):
    with debugged(tmp_path, script=LOOP) as (client, process):
        configure(client)
        client.expect_event("process")
        client.request("pause", {"threadId": 1})
        client.expect_stop("pause")
        assert "aten." in client.evaluate("$op")
        client.request("next", {"threadId": 1})
        client.expect_stop("step")
        (tmp_path / "end").touch()
        client.request("disconnect", {})
        assert process.wait(60) == 0
        assert process.stdout.read() == "ended\n"


def test_debugpy_pauses_the_thread_that_a_stop_holds(tmp_path, monkeypatch):
    pytest.importorskip("debugpy")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    python = ["-Xfrozen_modules=off", "-m", "debugpy", "--listen", f"127.0.0.1:{port}"]
    with (
        debugged(tmp_path, python=python) as (client, process),
        socket_client(socket.create_connection(("127.0.0.1", port))) as debugpy,
    ):
        # Its messages do not follow the schema of this server.
        monkeypatch.setattr(debugpy, "_check", lambda message: None)
        debugpy.request("initialize", {"adapterID": "debugpy", "pathFormat": "path"})
        debugpy.send("attach", {"justMyCode": True})
        debugpy.expect_event("initialized")
        debugpy.request("configurationDone")
        configure(client, functions=[{"name": "aten.tanh"}])
        client.expect_stop("breakpoint")
        threads = debugpy.request("threads")["threads"]
        assert [each["name"] for each in threads] == ["MainThread"]
        thread = {"threadId": threads[0]["id"]}
        debugpy.request("pause", thread)
        debugpy.expect_event("stopped")
        frames = debugpy.request("stackTrace", thread)["stackFrames"]
        forward = next(each for each in frames if each["name"] == "forward")
        assert forward["source"]["path"].endswith("train.py")
        shape = debugpy.request("evaluate", {"expression": "points.shape", "frameId": forward["id"]})
        assert shape["result"] == "torch.Size([16, 4])"
        debugpy.request("continue", thread)
        assert client.evaluate("$out.shape") == "(16, 8)"
        client.request("disconnect", {})
        debugpy.request("disconnect", {"terminateDebuggee": False})
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--listen", "nowhere"), "nowhere"),
        (("--listen", "127.0.0.1:0", "--catch", "nan"), "--listen takes no"),
    ],
)
def test_wrong_options(tmp_path, capsys, options, words):
    from nncdbg.terminal.main import main

    assert main(["debug", *options, str(EXAMPLE)]) == 2
    assert words in capsys.readouterr().err
