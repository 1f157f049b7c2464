"""Who may be served: where a token is set, a client shows it with `attach` or `launch`, or is refused.

Until then only `initialize` is answered, which tells what this server can do and no more, and
`disconnect`, which ends this connection and touches nothing else.  A wrong token ends it too.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

import msgspec

from nncdbg.dap_server.messages import Request, decode_arguments, response
from nncdbg.engine.errors import UsageError

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session

_SHOWING = ("attach", "launch")


class _Connect(msgspec.Struct):
    token: str | None = None


class _Shown(msgspec.Struct):
    connect: _Connect | None = None
    token: str | None = None


def admitted(session: Session, request: Request) -> bool:
    """Whether to serve a request of a client that has shown no token yet; if not, it is answered here.

    Raises MessageError where the arguments cannot be read.
    """
    if request.command == "initialize":
        return True
    if request.command == "disconnect":
        session.connection.send(response(request))
        session.vanished()
        return False
    shown = _token(request) if request.command in _SHOWING else None
    if shown is None:
        hint = "give `connect.token` in the configuration of attach or launch"
        session.fail(request, UsageError("this server asks for its token first", hint=hint))
        return False
    if not _same(shown, session.token or ""):
        session.fail(request, UsageError("the token is wrong"))
        session.say("the connection is closed: the token is wrong", "important")
        session.vanished()
        return False
    session.token = None
    return True


def _token(request: Request) -> str | None:
    shown: _Shown = decode_arguments(request, _Shown, True)
    return shown.connect.token if shown.connect is not None and shown.connect.token else shown.token


def _same(shown: str, wanted: str) -> bool:
    """Compare in a time that does not tell how much of it is right."""
    return hmac.compare_digest(shown.encode(), wanted.encode())
