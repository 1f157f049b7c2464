"""A script under `nncdbg debug --listen`, beside an editor."""

import re
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from nncdbg.commands.recording.entries import read_recording  # noqa: E402
from nncdbg.commands.recording.script import EDITOR  # noqa: E402
from tests.dap_server.client import socket_client  # noqa: E402

pytestmark = pytest.mark.usefixtures("forked_processes")

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


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def configure(client, filters=(), functions=(), lines=(), folder=None, view="graph"):
    client.send("attach", {"view": view})
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
        stop = client.expect_stop("breakpoint")
        assert "train.py:41" in stop["text"]
        assert stop["hitBreakpointIds"] == [records[2]["id"]]
        client.request("continue", {"threadId": 1})
        assert client.expect_stop("function breakpoint")["hitBreakpointIds"] == [records[0]["id"]]
        assert "tanh" in client.evaluate("$op")
        assert client.evaluate("$out.shape") == "(16, 8)"

        client.move("next")
        client.request("stepBack", {"threadId": 1})
        client.expect_stop("step")
        client.request("stepBack", {"threadId": 1})
        client.expect_stop("step")
        client.request("setFunctionBreakpoints", {"breakpoints": []})
        client.request("setBreakpoints", {"source": {"path": str(tmp_path / "train.py")}, "breakpoints": []})
        # From the past of the step, it goes to the place of the script first.
        client.request("continue", {"threadId": 1})
        assert client.expect_stop("goto")["description"] == "The script is here"
        client.request("continue", {"threadId": 1})
        assert "Inf" in client.expect_stop("exception")["text"]
        client.request("setExceptionBreakpoints", {"filters": []})
        client.request("continue", {"threadId": 1})
        client.expect_end()
        assert process.wait(60) == 0
        assert process.stdout.read().count("loss") == 6


def test_a_recording_has_breakpoints_moves_and_commands_of_all_stops(tmp_path):
    """T15: a recording continues at the next stop of the script, and is refused by `nncdbg replay`."""
    with debugged(tmp_path) as (client, process):
        configure(client, functions=[{"name": "aten.tanh"}])
        client.expect_stop("function breakpoint")
        assert client.evaluate("record r.log", context="repl") == "recording to r.log"
        assert client.evaluate("1000 + 1", context="repl") == "1001"
        client.request("continue", {"threadId": 1})
        client.expect_stop("function breakpoint")
        client.evaluate("whatis $out", context="repl")
        wanted = [{"name": "aten.mean", "condition": "$step > 1"}]
        client.request("setFunctionBreakpoints", {"breakpoints": wanted})
        client.move("next")
        client.send("disconnect", {"terminateDebuggee": True})
        process.wait(60)
    recording = read_recording(str(tmp_path / "r.log"))
    texts = [each.command.text for each in recording.commands]
    assert texts[:4] == ["break aten.tanh", "uncatch uninitialized guard", "1000 + 1", "continue"]
    assert texts[4:] == ["whatis $out", "delete 1", "break aten.mean if $step > 1", "next"]
    assert [len(each.events) for each in recording.commands] == [0, 0, 1, 1, 1, 0, 0, 1]
    script = recording.setup.script
    assert script is not None
    assert script.opened_by == EDITOR
    words = [sys.executable, "-m", "nncdbg", "replay", "r.log", "--allow-python"]
    found = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 2
    assert "the session on train.py cannot be replayed: an editor was attached to the script" in found.stderr


STEPS = """import torch


def activation(x):
    h = torch.tanh(x)
    return h * 2


model = torch.nn.Identity()
w = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([w], 0.1)
for step in range(2):
    y = activation(model(w))
    loss = y.sum()
    loss.backward()
    optimizer.step()
print("ended")
"""


def test_the_arrow_is_in_the_script_and_steps_go_by_its_lines(tmp_path):
    with debugged(tmp_path, "--history", script=STEPS) as (client, process):
        lines = configure(client, lines=[5], folder=tmp_path, view="source")
        assert lines[0]["verified"]
        client.expect_stop("breakpoint")

        def frames():
            shown = client.request("stackTrace", {"threadId": 1})["stackFrames"]
            return [each for each in shown if each["source"].get("path") == str(tmp_path / "train.py")]

        def move(request, **arguments):
            client.request(request, {"threadId": 1, **arguments})
            client.expect_event("stopped")
            return frames()[0]["name"], frames()[0]["line"]

        assert [(each["name"], each["line"]) for each in frames()] == [("activation", 5), ("<module>", 13)]
        assert move("next") == ("activation", 6)
        names = client.request("scopes", {"frameId": frames()[0]["id"]})["scopes"][0]
        assert names["name"] == "Names"
        children = client.request("variables", {"variablesReference": names["variablesReference"]})
        shown = {each["name"]: each["value"] for each in children["variables"]}
        assert shown == {"x": "f32[3] [1. 1. 1.]", "h": "f32[3] [0.7616 0.7616 0.7616]"}
        hover = {"expression": "h", "frameId": frames()[0]["id"], "context": "hover"}
        assert client.request("evaluate", hover)["result"] == "f32[3] [0.7616 0.7616 0.7616]"
        source = {"path": str(tmp_path / "train.py")}
        wanted = {"start": 1, "end": 14, "frameId": frames()[0]["id"], "source": source}
        assert client.request("nncdbg/lines", wanted)["lines"] == [
            {"line": 5, "text": "x [1. 1. 1.], h [0.7616 0.7616 0.7616]"},
            {"line": 6, "text": "h [0.7616 0.7616 0.7616]"},
        ]
        client.request("setBreakpoints", {"source": source, "breakpoints": []})
        assert move("stepOut") == ("<module>", 14)
        assert move("next") == ("<module>", 15)
        assert move("stepIn") == ("backward of <module>", 14)
        assert move("next") == ("backward of <module>", 13)
        assert move("stepIn") == ("backward of activation", 6)
        assert move("stepBack") == ("backward of <module>", 13)
        assert move("stepBack") == ("backward of <module>", 14)
        assert move("nncdbg/reverseStepIn") == ("<module>", 15)
        assert move("stepBack", granularity="instruction") == ("<module>", 14)
        # From the past, it goes to the place of the script first.
        assert move("continue") == ("backward of <module>", 13)
        assert move("stepIn", granularity="instruction")[0] == "backward of activation"
        assert move("stepOut") == ("<module>", 16)
        assert move("stepIn") == ("<module>", 13)
        assert move("stepIn") == ("activation", 5)
        client.request("continue", {"threadId": 1})
        client.expect_end()
        assert process.wait(60) == 0
        assert process.stdout.read() == "ended\n"


@pytest.mark.parametrize(("options", "step"), [(("--history",), 2), ((), 3)])
def test_record_step_stops_with_the_whole_step(tmp_path, options, step):
    with debugged(tmp_path, *options) as (client, process):
        configure(client, functions=[{"name": "aten.tanh", "condition": "$step == 2"}])
        client.expect_stop("function breakpoint")
        assert client.evaluate("$step") == "2"
        if options:
            client.request("stepBack", {"threadId": 1})
            client.expect_stop("step")
        # The console has the same as a command.
        if options:
            assert client.request("nncdbg/recordStep")["text"].startswith("recording this step")
        else:
            assert "the script stops at its end" in client.evaluate("record step", context="repl")
        assert client.expect_stop("pause")["description"] == f"The end of step {step}"
        frames = client.request("stackTrace", {"threadId": 1})["stackFrames"]
        assert [frames[0]["name"], frames[-1]["name"]] == ["@optimizer", f"@main step {step}"]
        assert client.evaluate("$step") == str(step)
        client.request("restart", {})
        client.expect_event("stopped")
        assert "@optimizer(" in client.evaluate("ll", context="repl")
        client.request("disconnect", {"terminateDebuggee": False})
        assert process.wait(60) == 0


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
        # The operator that ran before the pause: one that wrote to its operand cannot run again.
        assert client.evaluate("$op").strip("'").startswith(("aten.", "torch.recorded"))
        client.request("next", {"threadId": 1})
        client.expect_stop("step")
        (tmp_path / "end").touch()
        client.request("disconnect", {})
        assert process.wait(60) == 0
        assert process.stdout.read() == "ended\n"


@pytest.mark.usefixtures("started_processes")
def test_debugpy_pauses_the_thread_that_a_stop_holds(tmp_path, monkeypatch):
    pytest.importorskip("debugpy")
    port = free_port()
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
        line = configure(client, functions=[{"name": "aten.tanh"}], lines=[41], folder=tmp_path)[1]
        assert not line["verified"]
        assert "debugpy stops at this line" in line["message"]
        client.expect_stop("function breakpoint")
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


def test_the_console_sets_stops_of_the_script(tmp_path):
    with debugged(tmp_path) as (client, process):
        configure(client, functions=[{"name": "aten.addmm", "hitCondition": "== 1"}])
        client.expect_stop("function breakpoint")

        def enter(line):
            return client.evaluate(line, context="repl")

        assert enter("break aten.tanh") == "Breakpoint 2: op aten.tanh"
        new = client.expect_event("breakpoint", reason="new")["breakpoint"]
        assert enter("tbreak aten.mean if $step == 2").startswith("Temporary breakpoint 3")
        assert enter("catch inf") == "Caught: inf"
        assert enter("info breakpoints").splitlines() == [
            "1: op aten.addmm hits == 1, hit 1x",
            "2: op aten.tanh",
            "3: op aten.mean if $step == 2, temporary",
            "caught: inf",
        ]
        assert "not an expression" in client.refused(
            "evaluate", {"expression": "watch mean(%hidden.addmm)", "context": "repl"}
        )
        client.request("continue", {"threadId": 1})
        stop = client.expect_stop("function breakpoint")
        assert stop["hitBreakpointIds"] == [new["id"]]
        assert stop["text"] == "breakpoint 2, op aten.tanh"

        # Requests of the editor leave what the console has set.
        client.request("setFunctionBreakpoints", {"breakpoints": []})
        client.request("setExceptionBreakpoints", {"filters": ["nan"]})
        enter("delete 2")
        assert client.expect_event("breakpoint", reason="removed")["breakpoint"]["id"] == new["id"]
        client.request("continue", {"threadId": 1})
        assert client.expect_stop("breakpoint")["text"] == "breakpoint 3, op aten.mean if $step == 2"
        assert enter("info breakpoints").splitlines() == ["there are no breakpoints", "caught: nan, inf"]
        client.request("continue", {"threadId": 1})
        assert "Inf" in client.expect_stop("exception")["text"]
        assert enter("uncatch") == "Caught: nothing"
        client.request("continue", {"threadId": 1})
        client.expect_end()
        assert process.wait(60) == 0


OWN = f"""import nncdbg.torch
nncdbg.torch.debug("aten.tanh if $step == 2", catch="inf")
{EXAMPLE.read_text()}"""


def test_stops_of_the_script_itself_stay_beside_those_of_a_client(tmp_path):
    port = free_port()
    script = f"import nncdbg\nnncdbg.listen(('127.0.0.1', {port}))\nnncdbg.wait_for_client()\n{OWN}"
    (tmp_path / "own.py").write_text(script)
    with subprocess.Popen(
        [sys.executable, "own.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            with socket_client(connected(port)) as client:
                client.request("initialize", {"adapterID": "nncdbg"})
                configure(client, functions=[{"name": "aten.mean", "condition": "$step == 1"}])
                assert "aten.mean" in client.expect_stop("function breakpoint")["text"]
                client.request("setFunctionBreakpoints", {"breakpoints": []})
                client.request("setExceptionBreakpoints", {"filters": []})
                client.request("continue", {"threadId": 1})
                assert "op aten.tanh if $step == 2" in client.expect_stop("breakpoint")["text"]
                client.request("continue", {"threadId": 1})
                assert "op aten.tanh if $step == 2" in client.expect_stop("breakpoint")["text"]
                client.request("continue", {"threadId": 1})
                assert "Inf" in client.expect_stop("exception")["text"]
                client.request("disconnect", {"terminateDebuggee": False})
            assert process.wait(60) == 0
        finally:
            process.kill()


def connected(port):
    """Return a connection to a port that a process opens soon."""
    ending = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > ending:
                raise
            time.sleep(0.05)


def test_data_breakpoints_stop_at_writes_to_parameters(tmp_path):
    with debugged(tmp_path, "--history") as (client, process):
        configure(client, functions=[{"name": "aten.tanh", "condition": "$step == 2"}])
        client.expect_stop("function breakpoint")
        frame = client.top_frame()["id"]
        info = client.request("dataBreakpointInfo", {"name": "%out.weight", "frameId": frame})
        assert info["description"] == "%out.weight is written"
        refused = client.request("dataBreakpointInfo", {"name": "%tanh", "frameId": frame})
        assert "not a parameter" in refused["description"]
        client.request("setFunctionBreakpoints", {"breakpoints": []})
        wanted = [
            {"dataId": info["dataId"], "condition": "$step == 3"},
            {"dataId": info["dataId"], "accessType": "read"},
            {"dataId": "%out.wait"},
        ]
        records = client.request("setDataBreakpoints", {"breakpoints": wanted})["breakpoints"]
        assert [each["verified"] for each in records] == [True, False, False]
        assert "did you mean out.weight" in records[2]["message"]
        client.request("continue", {"threadId": 1})
        assert "parameter %out.weight if $step == 3" in client.expect_stop("breakpoint")["text"]
        assert client.evaluate("$op") == "aten.mul_.Tensor"

        # The restart goes to the start of the recorded part: the script keeps its place.
        client.request("restart", {})
        client.expect_event("stopped")
        assert "the start of step 3" in client.refused("stepBack", {"threadId": 1})
        client.request("disconnect", {"terminateDebuggee": False})
        assert process.wait(60) == 0
        assert process.stdout.read().count("loss") == 6


def test_stop_without_history_names_the_option(tmp_path):
    long = EXAMPLE.read_text().replace(
        "range(1, 7)", "range(1, 100_000)"
    )  # it does not end before the client
    with debugged(tmp_path, script=long) as (client, process):
        configure(client, functions=[{"name": "aten.tanh", "condition": "max(%no.such) > 1"}])
        assert "nothing is named %no.such" in client.expect_stop("function breakpoint")["text"]
        note = client.expect_event("output")["output"]
        assert "the step is not recorded; `nncdbg debug --history`" in note
        for _ in range(2):
            client.request("stepBack", {"threadId": 1})
            client.expect_event("stopped")
        assert "--history" in client.refused("stepBack", {"threadId": 1})
        client.request("setFunctionBreakpoints", {"breakpoints": []})
        logpoint = {"line": 40, "logMessage": "step {$step} {$nothing}"}
        source = {"path": str(tmp_path / "train.py")}
        client.request("setBreakpoints", {"source": source, "breakpoints": [logpoint]})
        client.request("continue", {"threadId": 1})
        client.expect_stop("goto")
        client.request("continue", {"threadId": 1})
        assert client.expect_event("output")["output"].startswith("step 1 <")
        client.request("disconnect", {"terminateDebuggee": True})
        assert process.wait(60) == 130
        assert "Traceback" not in process.stderr.read()


def test_breakpoint_set_while_the_script_runs_and_a_second_client(tmp_path):
    port = free_port()
    with debugged(tmp_path, "--listen", f"127.0.0.1:{port}", script=LOOP) as (client, process):
        configure(client)
        client.expect_event("process")
        with socket_client(socket.create_connection(("127.0.0.1", port))) as second:
            assert "another client is connected" in second.refused("initialize", {"adapterID": "nncdbg"})
        client.request("setFunctionBreakpoints", {"breakpoints": [{"name": "aten.pow"}]})
        assert "op aten.pow" in client.expect_stop("function breakpoint")["text"]
        client.request("disconnect", {"terminateDebuggee": True})
        assert process.wait(60) == 130


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("import torch\ntorch.ones(2) @ torch.ones(3)\n", 4),
        ("import sys\nsys.exit(3)\n", 4),
        ("import torch\ntorch.ones(2).tanh()\n", 0),
    ],
)
def test_client_gets_the_exit_code(tmp_path, script, code):
    with debugged(tmp_path, script=script) as (client, process):
        configure(client)
        client.expect_event("exited", exitCode=code)
        client.expect_event("terminated")
        assert process.wait(60) == code


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
