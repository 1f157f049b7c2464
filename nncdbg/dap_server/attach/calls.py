"""Debug graphs inside your own program, from an editor that attaches to it.

import nncdbg

nncdbg.listen(("127.0.0.1", 5679))
nncdbg.wait_for_client()
nncdbg.breakpoint()              # stops before the next statement of a graph
nncdbg.Debugger(program).run()
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, overload

from nncdbg.errors import UsageError

if TYPE_CHECKING:
    from nncdbg.dap_server.attach.process import Attachment
    from nncdbg.dap_server.transport.addresses import Address
    from nncdbg.dap_server.transport.serving import Listener

_attachment: Attachment | None = None
_listener: Listener | None = None
_entry: Path | None = None
_exit_code: int | None = None
"""The exit code of `nncdbg debug`; None for a script that Python runs itself."""


@overload
def listen(address: tuple[str, int], token: str | None = None) -> tuple[str, int]: ...


@overload
def listen(address: str | Path, token: str | None = None) -> str: ...


def listen(address: Address, token: str | None = None) -> Address:
    """Let editors attach to this process over the Debug Adapter Protocol, and return the address.

    `address` is (host, port), port 0 for a free one, or the path of a Unix socket.  With `token`, clients
    must present it; it is needed if other machines can connect.  Without one, only clients of this process's
    user are served.  On a system that cannot identify the user of a connection (macOS) a token is generated,
    and standard error names the file that has it.  `listen` does not wait, and without a client nothing
    changes for the program.  A file in the state folder lists the process for the attach picker of VS Code
    until it ends.  In an editor: ``{"request": "attach", "connect": {"host": "127.0.0.1", "port": 5679}}``.

    Raises UsageError if this process cannot listen or serve there, and at a second call.
    """
    global _attachment, _listener, _entry
    if _listener is not None:
        raise UsageError(
            f"this process is already listening on {_listener}", hint="call nncdbg.listen only once"
        )
    from nncdbg.dap_server import handlers  # noqa: F401  enters the handlers into the table
    from nncdbg.dap_server.attach.entries import enter
    from nncdbg.dap_server.attach.process import Attachment
    from nncdbg.dap_server.runner import Runner
    from nncdbg.dap_server.session import Session
    from nncdbg.dap_server.transport.connection import Connection
    from nncdbg.dap_server.transport.serving import Listener
    from nncdbg.target.script import supervise

    made = Attachment()

    def make_session(connection: Connection) -> Session:
        return Session(connection, Runner(patient=False), made)

    _listener = Listener(address, make_session, token)
    _attachment = made
    supervise(made.supervise)
    if _listener.access.file is not None:
        print(f"nncdbg: clients must show the token in {_listener.access.file}", file=sys.stderr)
    try:
        _entry = enter(_listener.address)
    except OSError as error:
        print(f"nncdbg: editors cannot list this process: {error}", file=sys.stderr)
    atexit.register(_ended)
    os.register_at_fork(after_in_child=_forked)
    return _listener.address


def wait_for_client(timeout: float | None = None) -> bool:
    """Wait until a client is attached and has set its breakpoints; return whether one is.

    Waits at most `timeout` seconds; Ctrl-C ends the wait.  Raises UsageError before `listen`.
    """
    if _attachment is None:
        raise UsageError("this process is not listening", hint="call nncdbg.listen first")
    return _attachment.wait(timeout)


def is_client_connected() -> bool:
    """Return whether a client is attached."""
    return _attachment is not None and _attachment.session is not None


def attachment() -> Attachment | None:
    """Return the clients of this process; None before `listen`."""
    return _attachment


def stop_here(words: str) -> bool:
    """Stop this thread in the attached editor, if there is one; return whether this process listens.

    `words` say why.
    """
    if _attachment is not None:
        _attachment.stop_here(words)
    return _attachment is not None


def exit_with(code: int) -> None:
    """Report this exit code when the process ends."""
    global _exit_code
    _exit_code = code


def end_process(code: int) -> None:
    """Report the end of the process now: `os._exit` calls no exit functions."""
    exit_with(code)
    _ended()


def _ended() -> None:
    """Report the end of the process.  The code given to `sys.exit` is unavailable, only an uncaught error."""
    code = _exit_code
    if code is None:
        code = 1 if getattr(sys, "last_value", None) is not None else 0
    if _attachment is not None and _listener is not None:
        _attachment.ended(code)
        _listener.close()
    if _entry is not None:
        from nncdbg.dap_server.attach.entries import remove

        remove(_entry)


def _forked() -> None:
    """Reset a forked child: it has none of the serving threads, so no client is attached to it."""
    global _attachment, _listener, _entry
    if _attachment is None or _listener is None:
        return
    from nncdbg.target.script import supervise

    supervise(None)
    _attachment.forget()
    _listener.close_descriptors()
    _attachment = _listener = _entry = None
