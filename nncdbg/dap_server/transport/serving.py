"""Clients over TCP and Unix sockets: who may connect, one at a time, and how a connection ends."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from nncdbg.dap_server.messages import MessageError, Request, output, parse_message, response
from nncdbg.dap_server.transport.addresses import Address, bind, words
from nncdbg.dap_server.transport.connection import Connection
from nncdbg.dap_server.transport.framing import FrameError
from nncdbg.engine.errors import NncdbgError

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session

MakeSession: TypeAlias = "Callable[[Connection], Session]"

TURN = 1.0
"""Seconds that a client waits for the one before it to be gone, before it is turned away."""

PATIENCE = 30.0
"""Seconds in which a client must show its token, or say why it came when another is connected."""

LINGER = 1.0
"""Seconds in which a client may still send, so that our last message is not lost by a reset."""

_TURNED_AWAY = 16
"""Clients that are told at the same time that another is connected."""


class Listener:
    """Serves the clients of an address, one after the other, on threads of its own.

        listener = Listener(("127.0.0.1", 0), make_session, token="secret")
        print(listener)   # 127.0.0.1:43215
        listener.close()

    `address` is a pair (host, port), where port 0 picks one, or the path of a Unix socket.
    `make_session(connection)` makes the session of a client that has come; the listener gives it
    the token that it has to ask for, starts it, and waits for its end.  While one client is served,
    others are told so, and turned away.

    Raises UsageError for an address that cannot be had, and for one that other machines can reach
    when no `token` guards it.
    """

    def __init__(self, address: Address, make_session: MakeSession, token: str | None = None) -> None:
        self._place = bind(address, guarded=token is not None)
        self.address: Address = self._place.address
        """The address as it is: with the port that was picked."""
        self._make_session = make_session
        self._token = token
        self._turn = threading.Condition()
        self._busy = self._closed = False
        self._session: Session | None = None
        self._clients: dict[socket.socket, threading.Thread] = {}
        self._woken, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, name="nncdbg-dap-listener", daemon=True)
        self._thread.start()

    def __str__(self) -> str:
        return words(self.address)

    def close(self) -> None:
        """Listen no more, and let the client that is connected go."""
        with self._turn:
            if self._closed:
                return
            self._closed = True
            self._turn.notify_all()
        self._wake.send(b"!")
        self._thread.join()
        self._place.close()
        with self._turn:
            session, clients = self._session, dict(self._clients)
        if session is not None:
            session.vanished()
        for client, thread in clients.items():
            if thread is not threading.current_thread():
                # Whoever still waits for this client's words comes back.
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
                thread.join()
        self._woken.close()
        self._wake.close()

    def let_go(self) -> None:
        """In a forked child: close the descriptors, which the parent goes on to use."""
        for each in (self._place.socket, self._woken, self._wake, *self._clients):
            os.close(each.detach())

    # -- clients come ------------------------------------------------------------------------

    def _accept(self) -> None:
        listening = self._place.socket
        while True:
            ready, _, _ = select.select([listening, self._woken], [], [])
            if self._woken in ready:
                return
            try:
                client, _ = listening.accept()
            except OSError as error:
                # It left before we came, or we have no descriptor for it; then wait for one.
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    time.sleep(TURN)
                continue
            self._welcome(client)

    def _welcome(self, client: socket.socket) -> None:
        client.setblocking(True)
        if client.family != socket.AF_UNIX:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        thread = threading.Thread(target=self._serve, args=(client,), name="nncdbg-dap-client", daemon=True)
        with self._turn:
            if len(self._clients) > _TURNED_AWAY:
                client.close()
                return
            self._clients[client] = thread
        thread.start()

    def _serve(self, client: socket.socket) -> None:
        reader = client.makefile("rb")
        connection = Connection(reader, client.sendall, lambda reading: _end(client, reading))
        connection.descriptor = client.fileno()
        try:
            if self._take_turn():
                self._attend(connection)
            else:
                client.settimeout(PATIENCE)
                _turn_away(connection)
            connection.close()
            _linger(client)
        finally:
            with self._turn:
                del self._clients[client]
            reader.close()
            client.close()

    def _take_turn(self) -> bool:
        with self._turn:
            self._turn.wait_for(lambda: not self._busy or self._closed, TURN)
            if self._busy or self._closed:
                return False
            self._busy = True
            return True

    def _attend(self, connection: Connection) -> None:
        """Serve the client of a connection until it is gone."""
        try:
            session = self._make_session(connection)
            session.token = self._token
            with self._turn:
                self._session = session
                closed = self._closed
            session.start()
            if closed:
                session.vanished()
            self._see_through(session)
        finally:
            with self._turn:
                self._session = None
                self._busy = False
                self._turn.notify_all()

    def _see_through(self, session: Session) -> None:
        """Wait for the end of a session; one that shows no token has to leave."""
        if session.token is not None and not session.ended(PATIENCE) and session.token is not None:
            session.say(f"the connection is closed: no token was shown in {PATIENCE:.0f} s", "important")
            session.vanished()
        session.join()


def _turn_away(connection: Connection) -> None:
    """Tell a client why it is not served, at once and as the answer to its first request."""
    refusal = NncdbgError("another client is connected", hint="end that session first")
    connection.send(output(str(refusal), "important"))
    try:
        body = connection.read()
        message = parse_message(body) if body is not None else None
    except (FrameError, MessageError):
        return
    if isinstance(message, Request):
        connection.send(response(message, error=refusal))


def _end(client: socket.socket, reading: bool) -> None:
    """Send no more; where a thread waits for the client, receive no more either, so that it comes back."""
    with contextlib.suppress(OSError):  # it has gone by itself
        client.shutdown(socket.SHUT_RDWR if reading else socket.SHUT_WR)


def _linger(client: socket.socket) -> None:
    """Take what the client still sends, for a while: to close before that would take our last words back."""
    deadline = time.monotonic() + LINGER
    with contextlib.suppress(OSError):
        while (left := deadline - time.monotonic()) > 0:
            client.settimeout(left)
            if not client.recv(1 << 16):
                return
