"""Relay for a client of this server that attaches to another process: its messages pass through.

Editors that support adapters only as commands start `nncdbg dap`, and send `attach` with `connect`.  The
session then becomes a client itself, of the process that called `nncdbg.listen`: it sends the client's own
`initialize` arguments, and forwards `attach` with the token.  If that succeeds, the handlers of this process
stop serving: requests are forwarded under the client's own numbers, so that references to a request by its
number hold at both ends; messages from the process get the next number of this side.  When the process is
gone, the session returns to its state before `attach`.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from nncdbg.dap_server.messages import Answer, Request, decoding_failure
from nncdbg.dap_server.registry import capabilities
from nncdbg.dap_server.transport.access import token_for
from nncdbg.dap_server.transport.addresses import Address, address_text, prepare
from nncdbg.dap_server.transport.connection import Connection
from nncdbg.dap_server.transport.framing import FrameError
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.process.threads import BackgroundThread

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session

PATIENCE = 10.0
"""Seconds within which the process must accept the client."""

PACE = 0.05
"""Seconds between two checks that the `attach` request is not cancelled."""

Message = dict[str, Any]


class Connect(msgspec.Struct, frozen=True, kw_only=True):
    """Address of a process that called `nncdbg.listen`: `host` and `port`, or the path of a `socket`."""

    host: str = "127.0.0.1"
    port: int | None = None
    socket: str | None = None
    token: str | None = None

    @property
    def address(self) -> Address:
        """The address in the form of `nncdbg.listen`.  Raises UsageError."""
        if (self.port is None) == (self.socket is None):
            raise UsageError(
                "`connect` needs either a port or a socket path",
                hint='set `connect` to {"port": 5679}, for example',
            )
        if self.port is None:
            return os.path.expanduser(self.socket or "")
        if not 0 < self.port < 1 << 16:
            raise UsageError(f"port {self.port} is out of range", hint="use a number from 1 to 65535")
        return self.host, self.port


_RANKS = (
    "Attach to all ranks of a distributed job: true for the only one on this machine, or the port at which "
    "its ranks meet (MASTER_PORT)."
)


class AttachArguments(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Arguments of an `attach` configuration.  The process itself needs only the token and the view.

    `view` is what the stops of a PyTorch script show: its source, or the statements of its step.
    """

    connect: Connect | None = None
    ranks: Annotated[bool | int | str, msgspec.Meta(description=_RANKS)] = False
    token: str | None = None
    view: Literal["source", "graph"] = "source"


class Relay:
    """Joins the client of `session` to the process that listens at `address`.

    A separate thread connects, sends `initialize`, and then forwards messages of the process.
    """

    def __init__(self, session: Session, address: Address, token: str | None) -> None:
        request = session.queue.at_hand
        assert request is not None
        self.place = address_text(address)
        self._session = session
        self._address = address
        self._number = request.seq
        self._token = token
        self._lock = threading.Lock()
        """Guards the fields below."""
        self._far: Connection | None = None
        self._unanswered: dict[int, Request] = {}
        self._closed = False
        self._settled = threading.Event()
        self._begun = threading.Event()
        self._refusal: NncdbgError | None = None
        self._early: list[Message] = []
        """Messages received before the answer to `attach`."""
        self._terminated = False
        self._capabilities: Message = {}
        """Capabilities of the process."""
        self._thread = BackgroundThread(target=self._run, name="nncdbg-dap-relay")

    # -- on the client's threads ---------------------------------------------------------------

    def connect(self) -> None:
        """Return when the process has accepted the client.  Raises UsageError if it does not."""
        self._thread.start()
        deadline = time.monotonic() + PATIENCE
        try:
            while not self._settled.wait(PACE):
                self._session.queue.check_cancelled()
                if time.monotonic() > deadline:
                    raise UsageError(
                        f"{self.place} did not answer within {PATIENCE:.0f} s",
                        hint="check that the process called nncdbg.listen",
                    )
            if self._refusal is not None:
                raise self._refusal
        except NncdbgError:
            self.close()
            raise

    def begin(self) -> None:
        """Forward messages of the process, now that the client has the answer to `attach`."""
        _report_capabilities(self._session, _own_capabilities(), self._capabilities)
        self._begun.set()

    def forward(self, request: Request) -> bool:
        """Forward a request; return False if the process is gone."""
        with self._lock:
            far = self._far
            if self._closed or far is None:
                return False
            self._unanswered[request.seq] = request
        message: Message = {"seq": request.seq, "type": "request", "command": request.command}
        if request.arguments is not None:
            message["arguments"] = msgspec.Raw(request.arguments)
        far.send(message)
        return True

    def close(self) -> None:
        """Disconnect from the process; waiting calls return."""
        with self._lock:
            self._closed, far = True, self._far
        if far is not None:
            far.close()
        self._begun.set()

    def join(self) -> None:
        """Wait until nothing more is forwarded."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    # -- on the thread of the process ----------------------------------------------------------

    def _run(self) -> None:
        try:
            connected = self._connected()
        except NncdbgError as error:
            self._refusal = error
            self._settled.set()
            return
        with connected, connected.makefile("rb") as reader:
            far = Connection(reader, connected.sendall, lambda reading: _shut(connected))
            with self._lock:
                self._far = far
                closed = self._closed
                self._token = self._token or token_for(connected)
            if not closed:
                self._serve(far)
            far.close()

    def _connected(self) -> socket.socket:
        try:
            if isinstance(self._address, tuple):
                connected = socket.create_connection(self._address, PATIENCE)
                prepare(connected)
            else:
                connected = socket.socket(socket.AF_UNIX)
                try:
                    connected.settimeout(PATIENCE)
                    connected.connect(str(self._address))
                except OSError:
                    connected.close()
                    raise
        except (OSError, UnicodeError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise UsageError(
                f"cannot attach to {self.place}: {reason}",
                hint="set `connect` to the address that nncdbg.listen returned in the process",
            ) from None
        connected.settimeout(None)
        return connected

    def _serve(self, far: Connection) -> None:
        try:
            self._initialize(far)
        except NncdbgError as error:
            self._refusal = error
            return
        finally:
            self._settled.set()
        self._begun.wait()
        why = ""
        try:
            for message in self._early:
                self._pass_on(far, message)
            while (more := _read(far)) is not None:
                self._pass_on(far, more)
        except NncdbgError as error:
            why = f": {error.message}"
        self._gone(why)

    def _initialize(self, far: Connection) -> None:
        """Initialize the process, and attach to it."""
        self._capabilities = self._response_to(
            far, self._number - 1, "initialize", self._session.client.arguments
        )
        self._response_to(
            far, self._number, "attach", AttachArguments(token=self._token, view=self._session.view)
        )

    def _response_to(self, far: Connection, number: int, command: str, arguments: Any) -> Message:
        """Return the body of the response to a request of our own."""
        far.send({"seq": number, "type": "request", "command": command, "arguments": arguments})
        while True:
            try:
                message = _read(far)
            except NncdbgError as error:
                raise UsageError(
                    f"{self.place} is not a Debug Adapter Protocol server: {error.message}",
                    hint="use the port of a process that called nncdbg.listen",
                ) from None
            if message is None:
                raise UsageError(
                    f"{self.place} closed the connection", hint="check whether the process has ended"
                )
            if message["type"] != "response":
                self._early.append(message)
            elif message.get("success"):
                body = message.get("body")
                return body if isinstance(body, dict) else {}
            else:
                raise _refusal(self.place, message)

    def _pass_on(self, far: Connection, message: Message) -> None:
        """Forward a message of the process to the client."""
        number, kind, command = message.pop("seq", 0), message["type"], str(message.get("command"))
        if kind == "request":
            arguments = message.get("arguments")
            self._session.client.request(
                command, arguments, lambda answer: send_answer(far, number, command, answer)
            )
            return
        self._terminated |= kind == "event" and message.get("event") == "terminated"
        if kind == "response":
            with self._lock:
                self._unanswered.pop(message.get("request_seq", 0), None)
        self._session.client.connection.send(message)
        if kind == "response" and command == "disconnect" and message.get("success"):
            self._session.handle_disconnect()

    def _gone(self, why: str) -> None:
        """Return the session to its state before `attach`: the process has closed the connection."""
        session = self._session
        with self._lock:
            closed, self._closed = self._closed, True
            unanswered = [*self._unanswered.values()]
        if closed:
            return
        session.relay = None
        for request in unanswered:
            if request.command == "disconnect":
                session.submit(request)
            else:
                hint = "attach again, or disconnect"
                session.fail(request, UsageError(f"{self.place} closed the connection{why}", hint=hint))
        if not self._terminated:
            session.client.say(f"the connection to {self.place} has ended{why}", "important")
            session.client.send_event("terminated")
        _report_capabilities(session, self._capabilities, _own_capabilities())


def end_relay(session: Session) -> None:
    """Disconnect from the attached process at the end of a session."""
    relay = session.relay
    if relay is not None:
        relay.close()
        relay.join()


def _own_capabilities() -> Message:
    converted: Message = msgspec.to_builtins(capabilities())
    return converted


def _report_capabilities(session: Session, before: Message, now: Message) -> None:
    """Send the client the capabilities that differ from before."""
    changed = {
        name: now.get(name, [] if isinstance(before.get(name), list) else False)
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    }
    if changed:
        session.client.send_event("capabilities", {"capabilities": changed})


def _read(far: Connection) -> Message | None:
    """Return the next message; None at the end.  Raises NncdbgError for an invalid message."""
    body = far.read()
    if body is None:
        return None
    try:
        message = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(decoding_failure(error)) from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise FrameError("a message has no `type`")
    return message


def _refusal(place: str, message: Message) -> UsageError:
    """Return the error of a failed response, with its hint."""
    why = str(message.get("message") or "no reason given")
    hint = None if why.endswith(")") else "see how nncdbg.listen was called there"
    return UsageError(f"{place} refuses: {why}", hint=hint)


def send_answer(far: Connection, number: int, command: str, answer: Answer) -> None:
    """Send the process the client's answer to its request `number`."""
    message = {"seq": answer.seq, "type": "response", "request_seq": number, "command": command}
    message |= {"success": answer.success}
    if answer.message is not None:
        message["message"] = answer.message
    if answer.body is not None:
        message["body"] = answer.body
    far.send(message)


def _shut(connected: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        connected.shutdown(socket.SHUT_RDWR)
