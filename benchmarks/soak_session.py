"""One random session: launch an example, send random valid requests, and leave in a random way."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from dap_wire import FOREVER, Wire

EXAMPLES = Path(__file__).parents[1] / "examples"

TIMEOUT = 30.0
"""Seconds after which a missing response counts as a hang."""

FLAGS = (
    "supportsVariableType",
    "supportsVariablePaging",
    "supportsMemoryReferences",
    "supportsProgressReporting",
    "supportsInvalidatedEvent",
    "supportsMemoryEvent",
    "supportsANSIStyling",
)

MOVES = ("next", "next", "next", "stepIn", "stepOut", "stepBack", "stepBack", "continue", "reverseContinue")

LINES = (
    "help", "info", "list", "where", "stats %x", "hist %x", "show %x", "marks", "mark here", "goto here",
    "next", "back", "break 9", "delete", "p mean(%x)", "set %x = 0",
    "why %x", "step", "catch nan", "continue",
)  # fmt: skip
EXPRESSIONS = (
    "%x",
    "mean(%x)",
    "%x * 2",
    "stats(%x).nan",
    "shape(%x)",
    "prev(%s)",
    "%nothing",
    "$line",
    "%x[0]",
)
CONDITIONS = (None, None, "max(%x) > 0", "$iter == 2", "$op == 'Mul'")


@dataclass
class ReportBuilder:
    """Counts of requests and failures of all sessions."""

    requests: int = 0
    refused: int = 0
    hangs: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)


def write_programs(folder: Path) -> list[Path]:
    """Write the examples and an endless loop to a folder, and return their paths."""
    (folder / "forever.nnc").write_text(FOREVER)
    for each in EXAMPLES.glob("*.nnc"):
        shutil.copy(each, folder)
    return sorted(folder.glob("*.nnc"))


class RandomSession:
    """A random session; `play` runs it.  Equal `random` and responses give equal requests."""

    def __init__(self, random: Random, port: int, programs: list[Path], tally: ReportBuilder) -> None:
        self.random = random
        self.tally = tally
        self.program = random.choice(programs)
        self.done: list[str] = []
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT)
        self._reader = self.socket.makefile("rb")
        self._writer = self.socket.makefile("wb")
        self.wire = Wire(self._reader, self._writer)
        self.state = "new"
        self.pools: dict[str, list[Any]] = {}
        """Frames, references and ids from responses, for use in later requests."""
        self._pending: set[int] = set()
        self._responses: dict[int, dict[str, Any]] = {}

    def play(self) -> None:
        try:
            self._begin()
            for _ in range(self.random.randrange(2, 40)):
                if self.state == "ended" and self.random.random() < 0.5:
                    break
                self._one()
            self._leave()
        except TimeoutError:
            self.tally.hangs.append(f"no answer: {self.program.name}, state {self.state}: {self.done[-12:]}")
        except ConnectionError as error:
            self.tally.crashes.append(f"{error!r}: {self.program.name}: {self.done[-12:]}")
        finally:
            for each in (self._reader, self._writer, self.socket):
                with suppress(OSError):
                    each.close()

    # -- phases of the session ---------------------------------------------------------------

    def _begin(self) -> None:
        flags = {name: self.random.random() < 0.7 for name in FLAGS}
        self.request("initialize", {"adapterID": "nncdbg", **flags})
        if self.random.random() < 0.3:
            self.request("setBreakpoints", self._breakpoints())
        options: dict[str, Any] = {
            "stopOnEntry": self.random.random() < 0.7,
            "seed": self.random.randrange(3),
        }
        options |= {"stopOnExit": self.random.random() < 0.3, "noDebug": self.random.random() < 0.05}
        options |= {"allocator": self.random.choice([None, "debug", "arena", "poison"])}
        if self.request("launch", {"program": str(self.program), **options}) is None:
            return
        for command in ("setBreakpoints", "setFunctionBreakpoints", "setExceptionBreakpoints"):
            if self.random.random() < 0.5:
                self.request(command, CONFIGURING[command](self))
        if self.random.random() < 0.97:
            self.state = "running"
            if self.request("configurationDone", {}) is not None:
                self._settle()

    def _one(self) -> None:
        if self.state == "running":
            command = self.random.choice(["threads", "pause", "pause", *CONFIGURING, "cancel", "evaluate"])
            self.request(command, ALL[command](self))
            if command == "pause":
                self._settle()
        elif self.random.random() < 0.4 and self.state == "stopped":
            self._move()
        elif self.random.random() < 0.1:
            self._burst()
        else:
            command = self.random.choice(list(ALL))
            self.request(command, ALL[command](self))
        self._take_events()

    def _move(self) -> None:
        command = self.random.choice(
            [*MOVES, "goto", "restartFrame", "restart", "terminate", "nncdbg/reverseStepIn"]
        )
        if self.request(command, MOVING.get(command, _thread)(self)) is not None:
            self.state = "running"
            if self.random.random() < 0.8:
                self._settle()

    def _settle(self) -> None:
        """Wait until the program stops; pause the endless program."""
        if self.program.name == "forever.nnc":
            self.request("pause", _thread(self))
        self._take_events()
        while self.state == "running":
            self._take(self._read())

    def _burst(self) -> None:
        """Send several requests at once, as editors do at a stop."""
        numbers = []
        for _ in range(self.random.randrange(2, 12)):
            command = self.random.choice(READING)
            numbers.append((command, self._send(command, ALL[command](self))))
        for command, number in numbers:
            self._response(command, number)

    def _leave(self) -> None:
        way = self.random.randrange(6)
        if way == 0:
            self._send(self.random.choice(list(ALL)), {})
            # Sends a reset, like a killed client.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif way == 1:
            self._writer.write(b"Content-Length: 500\r\n\r\n{")
            self._writer.flush()
        elif way > 2:
            if way == 3:
                self.request("terminate", {})
            self.request("disconnect", {})
            while self._reader.read(1 << 16):
                pass

    # -- requests ----------------------------------------------------------------------------

    def request(self, command: str, arguments: dict[str, Any]) -> Any:
        """Send a request, and return the body of its response; None if the request failed."""
        return self._response(command, self._send(command, arguments))

    def _send(self, command: str, arguments: dict[str, Any]) -> int:
        self.tally.requests += 1
        self.done.append(f"{command} {json.dumps(arguments)[:150]}")
        number = self.wire.send(command, arguments)
        self._pending.add(number)
        return number

    def _response(self, command: str, number: int) -> Any:
        """Return the body of the response to a request; responses to others may arrive before it."""
        while number not in self._responses:
            message = self._read()
            if message["type"] == "response":
                self._take_response(message)
            else:
                self._take(message)
        message = self._responses.pop(number)
        if not message["success"]:
            return None
        body = message.get("body", {})
        self._fill_pools(command, body)
        return body

    def _take_response(self, message: dict[str, Any]) -> None:
        number = message["request_seq"]
        if number not in self._pending:
            raise ConnectionError(f"a second answer to {number}")
        self._pending.remove(number)
        self._responses[number] = message
        if not message["success"]:
            self.tally.refused += 1
            if "internal error" in message["message"]:
                self.tally.crashes.append(f"{message['message']}: {self.program.name}: {self.done[-12:]}")

    def _read(self) -> Any:
        try:
            return self.wire.read()
        except json.JSONDecodeError:
            raise ConnectionError("the server has closed the connection") from None

    def _take_events(self) -> None:
        for message in self.wire.events:
            self._take(message)
        self.wire.events.clear()

    def _take(self, message: dict[str, Any]) -> None:
        event, body = message.get("event"), message.get("body", {})
        if event in ("stopped", "terminated"):
            self.state = "stopped" if event == "stopped" and self.state != "ended" else "ended"
        if event == "continued":
            self.state = "running"
        if event == "output" and "internal error" in body["output"]:
            self.tally.crashes.append(f"{body['output']}: {self.program.name}: {self.done[-12:]}")

    def _fill_pools(self, command: str, body: dict[str, Any]) -> None:
        """Keep frames, references and ids for later requests."""
        for name, of, key in POOL_SOURCES:
            for each in body.get(of, []):
                if each.get(key):
                    self.pools.setdefault(name, []).append(each[key])
        if command == "dataBreakpointInfo" and body.get("dataId"):
            self.pools.setdefault("data", []).append(body["dataId"])

    def pick(self, name: str, otherwise: Any) -> Any:
        """Return one of the latest items of a pool, or `otherwise`."""
        return self.random.choice(self.pools[name][-8:]) if self.pools.get(name) else otherwise

    def _breakpoints(self) -> dict[str, Any]:
        lines = [self.random.randrange(1, 40) for _ in range(self.random.randrange(5))]
        wanted = [{"line": line, "condition": self.random.choice(CONDITIONS)} for line in lines]
        if wanted and self.random.random() < 0.3:
            wanted[0]["logMessage"] = "at {$line}: {mean(%x)}"
        return {"source": {"path": str(self.program)}, "breakpoints": wanted}


POOL_SOURCES = (
    ("frames", "stackFrames", "id"),
    ("addresses", "stackFrames", "instructionPointerReference"),
    ("references", "scopes", "variablesReference"),
    ("references", "variables", "variablesReference"),
    ("names", "variables", "name"),
    ("memory", "variables", "memoryReference"),
    ("locations", "variables", "declarationLocationReference"),
    ("targets", "targets", "id"),
    ("sources", "sources", "sourceReference"),
)
"""(pool, list in the body of a response, key in each of its items)."""

Make = Callable[[RandomSession], dict[str, Any]]


def _thread(session: RandomSession) -> dict[str, Any]:
    return {"threadId": 1, "granularity": session.random.choice([None, "line", "instruction"])}


def _source(session: RandomSession) -> dict[str, Any]:
    return {"source": {"path": str(session.program)}, "line": session.random.randrange(1, 40)}


def _reference(session: RandomSession) -> dict[str, Any]:
    return {"variablesReference": session.pick("references", 1000)}


def _variables(session: RandomSession) -> dict[str, Any]:
    paged = {"start": session.random.randrange(8), "count": session.random.randrange(1, 20)}
    return {**_reference(session), **(paged if session.random.random() < 0.5 else {})}


def _memory(session: RandomSession) -> dict[str, Any]:
    return {
        "memoryReference": session.pick("memory", "0x10000000000"),
        "offset": session.random.randrange(64),
    }


def _written(session: RandomSession) -> dict[str, Any]:
    return {
        **_memory(session),
        "data": base64.b64encode(session.random.randbytes(4)).decode(),
        "allowPartial": True,
    }


def _evaluated(session: RandomSession) -> dict[str, Any]:
    context = session.random.choice(["watch", "hover", "repl", "repl", "clipboard"])
    text = session.random.choice(LINES if context == "repl" else EXPRESSIONS)
    return {"expression": text, "context": context, "frameId": session.pick("frames", None)}


def _set(session: RandomSession) -> dict[str, Any]:
    return {
        **_reference(session),
        "name": session.pick("names", "%x"),
        "value": session.random.choice(["0", "%x", "1.5"]),
    }


CONFIGURING: dict[str, Make] = {
    "setBreakpoints": RandomSession._breakpoints,
    "setFunctionBreakpoints": lambda session: {
        "breakpoints": [{"name": session.random.choice(["Mul", "@layer", "No"])}]
    },
    "setExceptionBreakpoints": lambda session: {
        "filters": session.random.sample(["nan", "inf", "overflow", "guard"], 2)
    },
    "setDataBreakpoints": lambda session: {"breakpoints": [{"dataId": session.pick("data", "%h")}]},
    "setInstructionBreakpoints": lambda session: {
        "breakpoints": [{"instructionReference": session.pick("addresses", "0x0")}]
    },
}

ALL: dict[str, Make] = {
    **CONFIGURING,
    "stackTrace": lambda session: {"threadId": 1},
    "scopes": lambda session: {"frameId": session.pick("frames", 1000)},
    "variables": _variables,
    "evaluate": _evaluated,
    "source": lambda session: {"sourceReference": session.pick("sources", 0)},
    "threads": lambda session: {},
    "modules": lambda session: {},
    "loadedSources": lambda session: {},
    "locations": lambda session: {"locationReference": session.pick("locations", 1)},
    "exceptionInfo": lambda session: {"threadId": 1},
    "completions": lambda session: {"text": session.random.choice(["%", "st", "mean(", ""]), "column": 2},
    "breakpointLocations": _source,
    "gotoTargets": _source,
    "stepInTargets": lambda session: {"frameId": session.pick("frames", 1000)},
    "dataBreakpointInfo": lambda session: {"name": session.pick("names", "%x")},
    "disassemble": lambda session: {
        "memoryReference": session.pick("addresses", "0x0"), "instructionCount": 20
    },
    "readMemory": lambda session: {**_memory(session), "count": session.random.randrange(200)},
    "writeMemory": _written,
    "setVariable": _set,
    "setExpression": lambda session: {"expression": session.random.choice(["%x", "%x[0]"]), "value": "0.5"},
    "cancel": lambda session: {"requestId": session.random.randrange(40)},
    "pause": lambda session: {"threadId": 1},
    "nncdbg/stats": lambda session: {"expressions": [session.pick("names", "%x")]},
    "nncdbg/histogram": lambda session: {"expression": session.pick("names", "%x")},
    "nncdbg/slice": lambda session: {"name": session.pick("names", "%x")},
    "nncdbg/marks": lambda session: {"action": session.random.choice(["list", "set"]), "name": "here"},
}  # fmt: skip

READING = (
    "stackTrace",
    "scopes",
    "variables",
    "variables",
    "threads",
    "evaluate",
    "modules",
    "loadedSources",
)

MOVING: dict[str, Make] = {
    "goto": lambda session: {"threadId": 1, "targetId": session.pick("targets", 1)},
    "restartFrame": lambda session: {"frameId": session.pick("frames", 1000)},
    "restart": lambda session: {},
    "terminate": lambda session: {},
}
