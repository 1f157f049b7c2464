"""The client of a session: what it supports, how it counts lines, and messages to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from nncdbg.dap_server import protocol
from nncdbg.dap_server.messages import Answer, event, output
from nncdbg.dap_server.transport.connection import Connection

MAX_NUMBER = 2**53 - 1
"""The largest number that the protocol can express."""


class Client:
    """The client of one session.

    `arguments` are those of `initialize`; before it, the client supports nothing.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arguments = protocol.InitializeRequestArguments(adapter_id="")
        self._lock = threading.Lock()
        self._answered: dict[int, Callable[[Answer], None]] = {}

    # -- lines and columns -------------------------------------------------------------------

    def incoming_line(self, line: int) -> int:
        """Return the line, counted from 1, for the client's `line`."""
        return line + (self.arguments.lines_start_at1 is False)

    def outgoing_line(self, line: int) -> int:
        """Return a line counted from 1 in the client's counting."""
        return line - (self.arguments.lines_start_at1 is False)

    def outgoing_column(self, column: int) -> int:
        """Return a column counted from 1 in the client's counting."""
        return column - (self.arguments.columns_start_at1 is False)

    # -- messages ----------------------------------------------------------------------------

    def send_event(self, name: str, body: Any = None) -> None:
        """Send an event, in the order of the calls."""
        self.connection.send(event(name, body))

    def say(self, text: str, category: str = "console") -> None:
        """Print a line in the client's console."""
        self.connection.send(output(text, category))

    def print_output(self, text: str, category: str) -> None:
        """Send output of the program; `category` is stdout or stderr."""
        self.send_event("output", {"category": category, "output": text})

    def request(self, command: str, arguments: Any, answered: Callable[[Answer], None]) -> None:
        """Send a request to the client; the reader's thread calls `answered` with the response."""
        # The answer cannot be read before the lock of `send` is free, but may be before this returns.
        with self._lock:
            seq = self.connection.send({"type": "request", "command": command, "arguments": arguments})
            self._answered[seq] = answered

    def receive(self, answer: Answer) -> None:
        """Pass the client's response to the sender of the request."""
        with self._lock:
            answered = self._answered.pop(answer.request_seq, None)
        if answered is not None:
            answered(answer)
