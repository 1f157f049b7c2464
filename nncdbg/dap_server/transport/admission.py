"""Authentication of one client, and its way to the only place of a server.

Until a client is admitted, the server answers only `initialize`, with the capabilities that every server of
this release has, and `disconnect`, which ends this connection and touches nothing else.  With a token,
`launch` or `attach` must present it.  Without one, the listener has already checked the user, and any other
request admits the client.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from nncdbg.dap_server.messages import Request, decode_arguments, response
from nncdbg.engine.errors import NncdbgError, UsageError

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
