"""Clients over TCP and Unix sockets: admission, one client at a time, and the end of a connection.

The user of a connection is checked first (see `access`).  The connection is then *pending* until its client
presents the token or sends a request (see `Admission`), and then takes the only place.  Several may be
pending at once, so a silent client does not block others.

Until a client is admitted, the server answers only `initialize`, with the capabilities that every server of
this release has, and `disconnect`, which ends this connection and touches nothing else.  With a token,
`launch` or `attach` must present it.  Without one, the listener has already checked the user, and any other
request admits the client.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from nncdbg.dap_server.messages import (
    MessageError,
    Request,
    decode_arguments,
    output,
    parse_message,
    response,
)
from nncdbg.dap_server.transport.access import AccessControl
from nncdbg.dap_server.transport.addresses import Address, address_text, bind, prepare
from nncdbg.dap_server.transport.connection import Connection
from nncdbg.dap_server.transport.framing import FrameError
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.process.threads import BackgroundThread

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session

_SHOWING = ("attach", "launch")


def occupied() -> NncdbgError:
    """Return the refusal for a client that connects while another one is served."""
    return NncdbgError("another client is connected", hint="end that session first")


class _Connect(msgspec.Struct):
    token: str | None = None


class _Shown(msgspec.Struct):
    connect: _Connect | None = None
    token: str | None = None


class Admission:
    """Checks that a client must pass before it is served.

    `token` is the one that it must present, None if none.  `take_place(session)` gives it the only place of
    the server; False if another client keeps it.
    """

    def __init__(self, token: str | None, take_place: Callable[[Session], bool]) -> None:
        self._token = token
        self._take_place = take_place

    def admits(self, session: Session, request: Request) -> bool:
        """Return whether to serve this request; if not, it is answered here.

        Raises MessageError if the arguments are unreadable.
        """
        if request.command == "initialize":
            return True
        if request.command == "disconnect":
            session.client.connection.send(response(request))
            session.handle_disconnect()
            return False
        if self._token is not None and not self._shows(session, request, self._token):
            return False
        if not self._take_place(session):
            session.fail(request, occupied())
            session.handle_disconnect()
            return False
        with session.queue.turn:
            session.admission = None
            session.queue.turn.notify_all()
        return True

    def _shows(self, session: Session, request: Request, token: str) -> bool:
        shown = _token(request) if request.command in _SHOWING else None
        if shown is None:
            hint = "set `connect.token` in the attach or launch configuration"
            session.fail(request, UsageError("this server requires a token", hint=hint))
            return False
        # Compare in constant time.
        if not hmac.compare_digest(shown.encode(), token.encode()):
            session.fail(request, UsageError("the token is wrong"))
            session.client.say("the connection is closed: the token is wrong", "important")
            session.handle_disconnect()
            return False
        return True


def _token(request: Request) -> str | None:
    shown: _Shown = decode_arguments(request, _Shown, True)
    return shown.connect.token if shown.connect is not None and shown.connect.token else shown.token


MakeSession: TypeAlias = "Callable[[Connection], Session]"

TURN = 1.0
"""Seconds that a client waits for its predecessor to disconnect before it is refused."""

PATIENCE = 30.0
"""Seconds within which a client must be admitted, or send a request to be refused."""

LINGER = 1.0
"""Seconds in which a client may still send, so that our last message is not lost by a reset."""

MOST_WAITING = 32
"""Connections that are pending or being refused; one more replaces the oldest."""

_MOST_THREADS = 4 * MOST_WAITING
"""Connections with a thread, including closing ones; one more is closed at once."""

_ONE_CONNECTION = (errno.ECONNABORTED, errno.EAGAIN, errno.EPROTO, errno.EINTR, errno.EPERM)
"""Errors of `accept` that concern one connection; after others (no descriptor is left) it waits."""


@dataclass(eq=False, slots=True)
class _Client:
    """A connection, its thread, and the session of one that is not refused."""

    socket: socket.socket
    refusal: NncdbgError | None
    thread: threading.Thread = field(init=False)
    session: Session | None = None
    leaving: bool = False

    def shut(self) -> None:
        """Wake the thread that reads from this client."""
        self.leaving = True
        with contextlib.suppress(OSError):  # it is closed already
            self.socket.shutdown(socket.SHUT_RDWR)


def _nothing(session: Session) -> None:
    pass


class Listener:
    """Serves the clients of an address, one after the other, on its own threads.

        listener = Listener(("127.0.0.1", 0), make_session, token="secret")
        print(listener)   # 127.0.0.1:43215
        listener.close()

    `address` is a pair (host, port), where port 0 picks one, or the path of a Unix socket.
    `make_session(connection)` makes the session of a new client; the listener sets its admission, starts it,
    and waits for its end.  `begin(session)` is called when the client is admitted.  While one client is
    served, others are refused with that reason.

    Raises UsageError for an unavailable address, for one that other machines can reach without a `token`, and
    if this process cannot serve it (no descriptor or thread left).
    """

    def __init__(
        self,
        address: Address,
        make_session: MakeSession,
        token: str | None = None,
        begin: Callable[[Session], None] = _nothing,
    ) -> None:
        self._bound = bind(address, guarded=token is not None)
        self.address: Address = self._bound.address
        """The actual address: with the port that was picked."""
        self._make_session = make_session
        self._begin = begin
        self._turn = threading.Condition()
        """Guards the fields below."""
        self._closed = False
        self._served: Session | None = None
        """The session that has the place."""
        self._clients: list[_Client] = []
        """All connections, the oldest first."""
        try:
            self.access = AccessControl(self._bound, token)
            self._start()
        except UsageError:
            self._bound.close()
            raise

    def _start(self) -> None:
        try:
            self._woken, self._wake = socket.socketpair()
        except OSError as error:
            raise self._unable(error) from None
        self._thread = BackgroundThread(target=self._accept, name="nncdbg-dap-listener")
        try:
            self._thread.start()
        except RuntimeError as error:
            self._woken.close()
            self._wake.close()
            raise self._unable(error) from None

    def _unable(self, error: Exception) -> UsageError:
        self.access.close()
        return UsageError(
            f"cannot serve {self}: {error}", hint="close open files or end threads in this process"
        )

    def __str__(self) -> str:
        return address_text(self.address)

    def close(self) -> None:
        """Stop listening, and disconnect all clients."""
        with self._turn:
            if self._closed:
                return
            self._closed = True
            self._turn.notify_all()
        self._wake.send(b"!")
        self._thread.join()
        self._bound.close()
        self.access.close()
        with self._turn:
            clients = [*self._clients]
        for client in clients:
            if client.session is not None:
                client.session.handle_disconnect()
        for client in clients:
            if client.thread is not threading.current_thread():
                client.shut()
                client.thread.join()
        self._woken.close()
        self._wake.close()

    def close_descriptors(self) -> None:
        """Close the descriptors in a forked child; the parent still uses them."""
        for each in (
            self._bound.socket,
            self._woken,
            self._wake,
            *(client.socket for client in self._clients),
        ):
            os.close(each.detach())

    # -- new clients -------------------------------------------------------------------------

    def _accept(self) -> None:
        listening = self._bound.socket
        listening.setblocking(False)
        # Unlike `select`, this has no limit on the number of a descriptor.
        with selectors.PollSelector() as selector:
            selector.register(listening, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not any(key.fileobj is self._woken for key, _ in selector.select()):
                try:
                    connected, _ = listening.accept()
                except OSError as error:
                    if error.errno not in _ONE_CONNECTION:
                        time.sleep(TURN)
                else:
                    self._add_client(connected)

    def _add_client(self, connected: socket.socket) -> None:
        try:
            connected.setblocking(True)
            prepare(connected)
        except OSError:  # it is closed again
            connected.close()
            return
        client = _Client(connected, self.access.refusal(connected))
        client.thread = BackgroundThread(target=self._attend, args=(client,), name="nncdbg-dap-client")
        with self._turn:
            room = self._make_room(client)
            if room:
                self._clients.append(client)
        try:
            if room:
                client.thread.start()
        except RuntimeError:  # no thread is left
            room = False
            with self._turn:
                self._clients.remove(client)
        if not room:
            connected.close()

    def _make_room(self, coming: _Client) -> bool:
        """Return whether one more may wait; the oldest one of its kind is dropped.  The caller holds `_turn`.

        Refused clients are counted separately: they take no room from others.
        """
        if len(self._clients) >= _MOST_THREADS:
            return False
        refused = coming.refusal is not None
        same = [each for each in self._clients if not each.leaving and (each.refusal is not None) == refused]
        waiting = [each for each in same if each.session is None or each.session is not self._served]
        if len(waiting) >= MOST_WAITING:
            if refused:
                return False
            waiting[0].shut()
        return True

    def _attend(self, client: _Client) -> None:
        connected = client.socket
        reader = connected.makefile("rb")
        connection = Connection(reader, connected.sendall, lambda reading: _end(connected, reading))
        connection.descriptor = connected.fileno()
        try:
            if client.refusal is not None:
                connected.settimeout(LINGER)
                _refuse(connection, client.refusal)
            elif not self._place_is_free():
                connected.settimeout(PATIENCE)
                _refuse(connection, occupied())
            else:
                self._serve(client, connection)
            connection.close()
            _receive_rest(connected)
        finally:
            with self._turn:
                self._clients.remove(client)
            reader.close()
            connected.close()

    def _place_is_free(self) -> bool:
        with self._turn:
            self._turn.wait_for(lambda: self._served is None or self._closed, TURN)
            return self._served is None and not self._closed

    def _serve(self, client: _Client, connection: Connection) -> None:
        """Serve a client until it is gone."""
        session = self._make_session(connection)
        session.admission = Admission(self.access.token, self._take_place)
        try:
            with self._turn:
                client.session = session
                closed = self._closed
            session.start()
            if closed:
                session.handle_disconnect()
            if not session.admitted(PATIENCE):
                missing = "launch or attach" if self.access.token is None else "token"
                session.client.say(
                    f"the connection is closed: no {missing} within {PATIENCE:.0f} s", "important"
                )
                session.handle_disconnect()
            session.join()
        finally:
            with self._turn:
                if self._served is session:
                    self._served = None
                    self._turn.notify_all()

    def _take_place(self, session: Session) -> bool:
        """Give an authenticated client the only place, once its predecessor has disconnected."""
        with self._turn:
            self._turn.wait_for(lambda: self._served is None or self._closed, TURN)
            if self._served is not None or self._closed:
                return False
            self._served = session
        self._begin(session)
        return True


def _refuse(connection: Connection, refusal: NncdbgError) -> None:
    """Report the refusal to a client, at once and as the answer to its first request."""
    connection.send(output(str(refusal), "important"))
    try:
        body = connection.read()
        message = parse_message(body) if body is not None else None
    except (FrameError, MessageError):
        return
    if isinstance(message, Request):
        connection.send(response(message, error=refusal))


def _end(client: socket.socket, reading: bool) -> None:
    """End sending; if a thread waits for the client, end receiving too, so that it returns."""
    with contextlib.suppress(OSError):  # it is closed already
        client.shutdown(socket.SHUT_RDWR if reading else socket.SHUT_WR)


def _receive_rest(client: socket.socket) -> None:
    """Receive the client's remaining data for a while: closing earlier would discard our last message."""
    deadline = time.monotonic() + LINGER
    with contextlib.suppress(OSError):
        while (left := deadline - time.monotonic()) > 0:
            client.settimeout(left)
            if not client.recv(1 << 16):
                return
