"""The whole protocol: sessions in which each request, event and reverse request occurs."""

from __future__ import annotations

import base64
import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nncdbg.dap_server import handlers  # noqa: F401  enters the handlers into the table
from nncdbg.dap_server.protocol import EVENTS, REQUESTS, REVERSE_REQUESTS
from nncdbg.dap_server.registry import HANDLERS
from tests.dap_server.client import Client, Message, stdio_client
from tests.dap_server.servers import serving
from tests.dap_server.test_attach import Program, program

__all__ = ["program"]

FLAGS = (
    "supportsVariableType",
    "supportsVariablePaging",
    "supportsRunInTerminalRequest",
    "supportsMemoryReferences",
    "supportsProgressReporting",
    "supportsInvalidatedEvent",
    "supportsMemoryEvent",
    "supportsStartDebuggingRequest",
)

MODEL = """#nncdbg 1
opset 18

graph @main(%x: f32[4]) -> (%y) {
  %a: f32[4] = Add(%x, 1.0)
  %h: f32[4] = @layer(%a)
  %z: f32[4] = Sub(%h, %h)
  %n: f32[4] = Div(%z, %z)
  %k: f32[4] = all.Wait(%h)
  while @spin (%i: i64[] = 0, %s: f32[4] = %k) {
    %go: bool[] = Less(%i, 100000000)
    break unless %go
    %s.1: f32[4] = Sin(%s)
    %i.1: i64[] = Add(%i, 1)
    next %i = %i.1, %s = %s.1
  } -> (%y = %s)
  return %y
}

graph @layer(%p: f32[4]) -> (%q: f32[4]) {
  %m: f32[4] = Mul(%p, 2.0)
  %q: f32[4] = Softmax(%m, axis=-1)
  return %q
}
"""
ADD, LAYER, SUB, DIV, WAIT, BREAK, MUL, SOFTMAX = 5, 6, 7, 8, 9, 12, 21, 22

OPS = """
import pathlib
import time
import nncdbg

GO = pathlib.Path(__file__).with_name("go")

@nncdbg.op("all.Wait")
def wait(xp, x):
    while not GO.exists():
        time.sleep(0.01)
    return x
"""


class Seen:
    """The successful requests, events and reverse requests of several clients."""

    def __init__(self) -> None:
        self.requests: set[str] = set()
        self.events: set[str] = set()
        self.reverse: set[str] = set()

    def take(self, client: Client) -> None:
        for message in client.messages:
            if message["type"] == "response" and message["success"]:
                self.requests.add(message["command"])
            elif message["type"] == "event":
                self.events.add(message["event"])
            elif message["type"] == "request":
                self.reverse.add(message["command"])


class Scenario:
    """A session of one client, one method per part; each part starts where the previous one ends."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self.source = {"path": str(folder / "model.nnc")}
        (folder / "model.nnc").write_text(MODEL)
        (folder / "ops.py").write_text(OPS)
        self.options = {"opLibrary": [str(folder / "ops.py")], "inputs": {"x": "ones"}, "stopOnEntry": True}

    def line(self) -> int:
        found: int = self.client.top_frame()["line"]
        return found

    def break_at(self, *lines: int) -> list[Message]:
        wanted = [{"line": line} for line in lines]
        arguments = {"source": self.source, "breakpoints": wanted}
        reported: list[Message] = self.client.request("setBreakpoints", arguments)["breakpoints"]
        return reported

    def begin(self) -> None:
        client = self.client
        client.request("initialize", {"adapterID": "nncdbg", **dict.fromkeys(FLAGS, True)})
        assert [each["verified"] for each in self.break_at(MUL)] == [False]
        client.request(
            "launch",
            {
                "program": self.source["path"],
                **self.options,
                "check": "micro",
                "console": "integratedTerminal",
            },
        )
        filters = client.expect_event("capabilities")["capabilities"]["exceptionBreakpointFilters"]
        assert "micro" in [each["filter"] for each in filters]
        client.expect_event("process", startMethod="launch")
        assert client.expect_event("breakpoint", reason="changed")["breakpoint"]["verified"]
        client.expect_event("initialized")
        request = client.expect_request("runInTerminal")
        assert "repl" in request["arguments"]["args"]
        client.answer(request, success=False)
        functions = client.request("setFunctionBreakpoints", {"breakpoints": [{"name": "Softmax"}]})
        assert functions["breakpoints"][0]["verified"]
        reported = client.request("setExceptionBreakpoints", {"filters": ["nan"]})["breakpoints"]
        assert reported[0]["verified"]
        locations = client.request("breakpointLocations", {"source": self.source, "line": 1, "endLine": SUB})
        assert [each["line"] for each in locations["breakpoints"]] == [ADD, LAYER, SUB]
        client.request("configurationDone")
        client.expect_event("thread", reason="started")
        client.expect_stop("entry")
        assert self.line() == ADD

    def inspect_values(self) -> None:
        client = self.client
        assert client.request("threads")["threads"] == [{"id": 1, "name": "main"}]
        client.move("next")
        frame = client.top_frame()
        listed = client.variables("Values", frame)
        assert listed["%a"]["value"] == "f32[4] [2. 2. 2. 2.]"
        reference = listed["%a"]["declarationLocationReference"]
        assert client.request("locations", {"locationReference": reference})["line"] == ADD
        listing = client.request("source", {"source": self.source, "sourceReference": 0})["content"]
        assert listing.splitlines()[ADD - 1] == MODEL.splitlines()[ADD - 1]
        sources = client.request("loadedSources")["sources"]
        assert self.source["path"] in [each.get("path") for each in sources]
        modules = client.request("modules", {})["modules"]
        assert {"main", "layer"} <= {each["name"].lstrip("@") for each in modules}
        assert client.evaluate("mean(%a)") == "2.0"
        found = client.request("completions", {"text": "mean(%", "column": 7})["targets"]
        assert "%a" in [each.get("text", each["label"]) for each in found]

    def step_into_formula(self) -> None:
        """Step from the layer's call into its Softmax, and out again."""
        client = self.client
        client.move("stepIn", "breakpoint")
        assert self.line() == MUL
        client.expect_event("loadedSource", reason="new")
        client.move("continue", "function breakpoint")
        assert self.line() == SOFTMAX
        targets = client.request("stepInTargets", {"frameId": client.top_frame()["id"]})["targets"]
        micro = next(each for each in targets if each["label"].startswith("micro"))
        client.move("stepIn", targetId=micro["id"])
        inside = client.top_frame()
        text = client.request("source", {"sourceReference": inside["source"]["sourceReference"]})["content"]
        assert "ReduceMax" in text
        client.expect_event("module", reason="new")
        client.move("stepOut")
        client.move("stepOut")
        assert self.line() == SUB

    def step_back_and_go(self) -> None:
        client = self.client
        client.move("reverseContinue", "function breakpoint")
        assert self.line() == SOFTMAX
        client.move("restartFrame", "restart", frameId=client.top_frame()["id"])
        assert self.line() == MUL
        client.move("stepBack")
        assert self.line() == LAYER
        (target, *_) = client.request("gotoTargets", {"source": self.source, "line": ADD})["targets"]
        client.move("goto", "goto", targetId=target["id"])
        assert self.line() == ADD

    def stop_at_data_and_instructions(self) -> None:
        client = self.client
        client.request("setFunctionBreakpoints", {"breakpoints": []})
        self.break_at()
        info = client.request("dataBreakpointInfo", {"name": "%h"})
        watched = client.request("setDataBreakpoints", {"breakpoints": [{"dataId": info["dataId"]}]})
        assert watched["breakpoints"][0]["verified"]
        client.move("continue", "data breakpoint")
        assert self.line() == LAYER, "the statement that has written it"
        reference = client.top_frame()["instructionPointerReference"]
        arguments = {"memoryReference": reference, "instructionCount": 3}
        writer, _, division = client.request("disassemble", arguments)["instructions"]
        assert "@layer(" in writer["instruction"]
        assert "Div(" in division["instruction"]
        wanted = {"breakpoints": [{"instructionReference": division["address"]}]}
        assert client.request("setInstructionBreakpoints", wanted)["breakpoints"][0]["verified"]
        client.move("continue", "instruction breakpoint")
        assert self.line() == DIV
        client.request("setInstructionBreakpoints", {"breakpoints": []})
        client.request("setDataBreakpoints", {"breakpoints": []})

    def edit(self) -> None:
        client = self.client
        client.move("stepBack")
        frame = client.top_frame()
        scopes = client.request("scopes", {"frameId": frame["id"]})["scopes"]
        scope = next(each["variablesReference"] for each in scopes if each["name"] == "Values")
        new = {"variablesReference": scope, "name": "%h", "value": "%h * 0 + 3"}
        assert client.request("setVariable", new)["value"] == "f32[4] [3. 3. 3. 3.]"
        assert "variables" in client.expect_event("invalidated")["areas"]
        reference = client.variables("Values")["%h"]["memoryReference"]
        data = client.request("readMemory", {"memoryReference": reference, "count": 16})["data"]
        assert np.frombuffer(base64.b64decode(data), "f4").tolist() == [3.0] * 4
        five = base64.b64encode(np.float32(5).tobytes()).decode()
        written = client.request("writeMemory", {"memoryReference": reference, "offset": 4, "data": five})
        assert written["bytesWritten"] == 4
        assert client.expect_event("memory")["memoryReference"] == reference
        body = client.request("setExpression", {"expression": "%h[0]", "value": "7"})
        assert body["value"].endswith("7.0")
        assert client.evaluate("sum(%h)") == "18.0"

    def type_commands(self) -> None:
        client = self.client
        client.evaluate(f"break {BREAK}", "repl")
        assert client.expect_event("breakpoint", reason="new")["breakpoint"]["line"] == BREAK
        client.evaluate("next", "repl")
        client.expect_event("continued")
        client.expect_stop("step")
        assert self.line() == DIV

    def stop_at_nan(self) -> None:
        client = self.client
        client.move("continue", "exception")
        info = client.request("exceptionInfo", {"threadId": 1})
        assert info["exceptionId"] == "nan"
        assert "Sub" in info["details"]["stackTrace"]

    def enter_kernel(self) -> None:
        client = self.client
        targets = client.request("stepInTargets", {"frameId": client.top_frame()["id"]})["targets"]
        kernel = next(each["id"] for each in targets if each["label"].startswith("kernel"))
        client.request("stepIn", {"threadId": 1, "targetId": kernel})
        request = client.expect_request("startDebugging")
        assert request["arguments"]["configuration"]["type"] == "debugpy"
        client.answer(request, success=False)
        client.wait_for(lambda message: message.get("event") == "stopped")

    def continued(self) -> str:
        """Continue the program and return the id of the progress reported for it."""
        before = self.client.messages[-1]["seq"]
        self.client.request("continue", {"threadId": 1})
        started = self.client.wait_for(
            lambda message: message.get("event") == "progressStart" and message["seq"] > before
        )
        number: str = started["body"]["progressId"]
        return number

    def wait_and_pause(self) -> None:
        client = self.client
        assert self.line() == DIV, "the kernel was not debugged, so it did not run"
        number = self.continued()
        Path(self.source["path"]).with_name("go").touch()
        client.wait_for(lambda message: _is_progress(message, "progressEnd", number))
        client.expect_stop("breakpoint")
        client.evaluate("delete all", "repl")
        number = self.continued()
        client.wait_for(lambda message: _is_progress(message, "progressUpdate", number))
        client.request("cancel", {"progressId": number})
        client.expect_stop("pause")
        client.request("continue", {"threadId": 1})
        client.request("pause", {"threadId": 1})
        client.expect_stop("pause")

    def end(self) -> None:
        client = self.client
        client.request("terminateThreads", {"threadIds": [1]})
        client.expect_event("thread", reason="exited")
        client.expect_event("exited")
        client.expect_event("terminated")
        client.request("restart", {"arguments": {"program": self.source["path"], **self.options}})
        client.expect_stop("entry")
        assert self.line() == ADD
        client.request("terminate")
        client.expect_event("exited", exitCode=130)
        client.request("disconnect")
        client.expect_end()


def _is_progress(message: Message, event: str, number: str) -> bool:
    return message.get("event") == event and message["body"]["progressId"] == number


def play(client: Client, folder: Path) -> None:
    scenario = Scenario(client, folder)
    scenario.begin()
    scenario.inspect_values()
    scenario.step_into_formula()
    scenario.step_back_and_go()
    scenario.stop_at_data_and_instructions()
    scenario.edit()
    scenario.type_commands()
    scenario.stop_at_nan()
    scenario.enter_kernel()
    scenario.wait_and_pause()
    scenario.end()


def attach(program: Any) -> Client:
    running: Program = program("""
        nncdbg.wait_for_client()
        say(debugger().run().reason)
    """)
    with running.client(lines=(5,)) as client:
        client.expect_stop("breakpoint")
        assert client.top_frame()["line"] == 5
        client.request("disconnect")
        client.expect_end()
    assert running.line() == "end", "the program continues"
    return client


@pytest.mark.parametrize("transport", ["stdio", "tcp", "unix"])
def test_every_request_event_and_reverse_request_occurs(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Any
) -> None:
    pytest.importorskip("debugpy")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    seen = Seen()
    with contextlib.ExitStack() as stack:
        if transport == "stdio":
            client = stack.enter_context(stdio_client(cwd=tmp_path))
        else:
            where = ("--socket", str(tmp_path / "s")) if transport == "unix" else ()
            client = stack.enter_context(stack.enter_context(serving(*where, cwd=tmp_path)).client())
        play(client, tmp_path)
    seen.take(client)
    seen.take(attach(program))
    assert set(REQUESTS) - seen.requests == set()
    assert set(EVENTS) - seen.events == set()
    assert set(REVERSE_REQUESTS) - seen.reverse == set()
    assert (len(REQUESTS), len(EVENTS), len(REVERSE_REQUESTS)) == (43, 17, 2)


def test_handlers_outside_the_protocol_have_the_nncdbg_prefix() -> None:
    assert set(REQUESTS) <= set(HANDLERS)
    assert all(name.startswith("nncdbg/") for name in set(HANDLERS) - set(REQUESTS))
