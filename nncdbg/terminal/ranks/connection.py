"""A client of the debug adapter of one rank."""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from nncdbg.errors import NncdbgError, UsageError
from nncdbg.process.rank_notes import RankReport
from nncdbg.process.threads import BackgroundThread

_PATIENCE = 30.0
"""Seconds within which a rank must answer."""

Message = dict[str, Any]


class RankRefusal(NncdbgError):
    """A rank has refused a request."""


class RankConnection:
    """Sends requests to a rank; `heard` is called with each event, on the thread that reads.

    Raises UsageError if the rank cannot be reached.
    """

    def __init__(self, report: RankReport, heard: Callable[[int, Message], None]) -> None:
        process = report.process
        self.rank = process.rank
        self.process = process
        self.waiting = report.status.state == "waiting"
        """Whether the script waits for the client to start it."""
        self.stopped = False
        """Whether the rank is stopped in the debugger."""
        self.ended = False
        """Whether the connection has ended."""
        self._heard = heard
        self._lock = threading.Lock()
        self._sequence = 0
        self._waiting: dict[int, queue.SimpleQueue[Message | None]] = {}
        try:
            self._socket = socket.create_connection(("127.0.0.1", process.port), _PATIENCE)
        except OSError as error:
            raise UsageError(
                f"cannot attach to rank {self.rank}: {error.strerror or error}",
                hint="check whether its process has ended: nncdbg attach --ranks --report",
            ) from None
        self._socket.settimeout(None)
        BackgroundThread(target=self._read, name=f"nncdbg-rank-{self.rank}").start()

    def attach(self) -> None:
        """Attach to the rank, without breakpoints.  A rank that waits for a client still waits."""
        self.request("initialize", {"adapterID": "nncdbg", "clientID": "nncdbg-ranks"})
        token = Path(self.process.token).read_text(encoding="ascii") if self.process.token else None
        self.request("attach", {"view": "graph", **({"token": token} if token else {})})
        if not self.waiting:
            self.start()

    def start(self) -> None:
        """Let a rank that waits for a client begin."""
        self.waiting = False
        self.request("configurationDone")

    def request(self, command: str, arguments: Message | None = None) -> Message:
        """Return the body of the response.  Raises RankRefusal, UsageError if the connection has ended."""
        answers: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        with self._lock:
            self._sequence += 1
            number = self._sequence
            self._waiting[number] = answers
            message = {"seq": number, "type": "request", "command": command, "arguments": arguments or {}}
            text = json.dumps(message).encode()
            try:
                if self.ended:
                    raise OSError
                self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
            except OSError:
                self._waiting.pop(number, None)
                raise UsageError(f"rank {self.rank} has ended") from None
        try:
            answer = answers.get(timeout=_PATIENCE)
        except queue.Empty:
            raise UsageError(
                f"rank {self.rank} did not answer {command} within {_PATIENCE:.0f} s",
                hint="an operator that blocks holds the rank: info collectives",
            ) from None
        if answer is None:
            raise UsageError(f"rank {self.rank} has ended")
        if not answer.get("success"):
            variables = answer.get("body", {}).get("error", {}).get("variables", {})
            raise RankRefusal(variables.get("text") or answer.get("message") or f"{command} failed")
        body: Message = answer.get("body") or {}
        return body

    def close(self) -> None:
        """Detach: the rank runs on, without breakpoints."""
        with suppress(NncdbgError):  # The rank may have ended.
            self.request("disconnect", {"terminateDebuggee": False})
        self._socket.close()

    # -- on its own thread -------------------------------------------------------------------

    def _read(self) -> None:
        with self._socket.makefile("rb") as stream:
            try:
                while (message := _message(stream)) is not None:
                    self._take(message)
            except (OSError, ValueError):
                pass  # like a closed connection
        self.ended, self.stopped = True, False
        with self._lock:
            waiting = [*self._waiting.values()]
            self._waiting.clear()
        for each in waiting:
            each.put(None)
        self._heard(self.rank, {"event": "closed"})

    def _take(self, message: Message) -> None:
        if message.get("type") == "response":
            with self._lock:
                waiting = self._waiting.pop(message["request_seq"], None)
            if waiting is not None:
                waiting.put(message)
        elif message.get("type") == "event":
            self.stopped = {"stopped": True, "continued": False}.get(message["event"], self.stopped)
            self._heard(self.rank, message)


def _message(stream: BinaryIO) -> Message | None:
    """Return the next message; None at the end of the stream."""
    length = 0
    while (line := stream.readline()) not in (b"\r\n", b"\n"):
        if not line:
            return None
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    body = stream.read(length)
    if len(body) < length:
        return None
    message: Message = json.loads(body)
    return message
