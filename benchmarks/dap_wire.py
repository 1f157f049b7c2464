"""A minimal client of the Debug Adapter Protocol over stdio for benchmarks; it checks only success."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

FOREVER = """graph @main(%x: f32[4]) -> (%y: f32[4]) {
  while @spin (%s: f32[4] = %x) {
    %a: f32[4] = Mul(%s, 0.5)
    %b: f32[4] = Add(%a, 1.0)
    next %s = %b
  } -> (%y: f32[4] = %s)
  return %y
}
"""
"""An endless program."""


class Wire:
    """Send requests and return response bodies, one at a time; `events` has the other messages."""

    def __init__(self, reader: IO[bytes], writer: IO[bytes]) -> None:
        self._reader = reader
        self._writer = writer
        self._seq = 0
        self.events: list[dict[str, Any]] = []

    def send(self, command: str, arguments: Any = None) -> int:
        """Send a request, and return its number."""
        self._seq += 1
        message = {"seq": self._seq, "type": "request", "command": command, "arguments": arguments or {}}
        body = json.dumps(message).encode()
        self._writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self._writer.flush()
        return self._seq

    def read(self) -> dict[str, Any]:
        """Return the next message."""
        length = 0
        while (line := self._reader.readline()).strip():
            length = int(line.partition(b":")[2])
        message: dict[str, Any] = json.loads(self._reader.read(length))
        return message

    def request(self, command: str, arguments: Any = None) -> dict[str, Any]:
        """Send a request, and return the body of its response."""
        number = self.send(command, arguments)
        while True:
            message = self.read()
            if message["type"] == "response" and message["request_seq"] == number:
                if not message["success"]:
                    raise RuntimeError(f"{command} failed: {message['message']}")
                body: dict[str, Any] = message.get("body", {})
                return body
            self.events.append(message)

    def wait(self, event: str) -> dict[str, Any]:
        """Return the next event of a kind; a received event counts."""
        while True:
            for index, message in enumerate(self.events):
                if message.get("event") == event:
                    return self.events.pop(index)
            self.events.append(self.read())

    def start(self, program: Path, **options: Any) -> None:
        """Launch a program, and wait for its stop on entry."""
        flags = {"supportsVariablePaging": True, "supportsVariableType": True}
        self.request("initialize", {"adapterID": "nncdbg", **flags})
        self.request("launch", {"program": str(program), "stopOnEntry": True, **options})
        self.request("configurationDone")
        self.wait("stopped")


@contextmanager
def wire(folder: Path) -> Iterator[Wire]:
    """Start a server in a folder, and yield its client."""
    command = [sys.executable, "-m", "nncdbg", "dap"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        client = Wire(process.stdout, process.stdin)
        yield client
        client.request("disconnect")
        process.wait(30)
