"""Access control of a server: the user who started it, or any client with its token.

With a token, every client must present it.  Without one, a Unix socket is open to its owner only, and TCP on
this machine to clients of the same user, as the kernel reports it.  If the system cannot report it, a token
is generated and stored in a file that only the user can read, where this package's own clients find it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
from pathlib import Path

from nncdbg.dap_server.transport.addresses import BoundSocket, address_text
from nncdbg.dap_server.transport.peers import kernel_names_tcp_peers, peer_user
from nncdbg.engine.errors import NncdbgError, UsageError
from nncdbg.engine.process.state_folder import state_folder


class AccessControl:
    """Decides which clients may use the server at `place`.

    `token` is the one that a client must present, None if none; `file` holds a generated token.  Raises
    UsageError if that file cannot be written.
    """

    def __init__(self, place: BoundSocket, token: str | None) -> None:
        self.token = token
        self.file: Path | None = None
        self._same_user = token is None
        if token is None and isinstance(place.address, tuple) and not kernel_names_tcp_peers():
            self.token, self._same_user = secrets.token_urlsafe(32), False
            self.file = token_file(*place.address)
            _write(self.file, self.token)

    def refusal(self, connected: socket.socket) -> NncdbgError | None:
        """Return the reason to refuse this connection at once; None if its client may continue."""
        if not self._same_user:
            return None
        user = peer_user(connected)
        if user == os.geteuid() or (user is None and connected.family == socket.AF_UNIX):
            # Without credentials of the peer, the mode of the Unix socket keeps other users out.
            return None
        which = "another" if user is not None else "an unknown"
        hint = "start the server with --token or NNCDBG_DAP_TOKEN, and send that token"
        return NncdbgError(f"cannot accept a client from {which} user: this server has no token", hint=hint)

    def close(self) -> None:
        """Remove the file with the token."""
        if self.file is not None:
            with contextlib.suppress(FileNotFoundError):
                self.file.unlink()


def token_for(connected: socket.socket) -> str | None:
    """Return the token written by a server of this user at the other end; None if there is none."""
    if connected.family == socket.AF_UNIX:
        return None
    try:
        host, port = connected.getpeername()[:2]
        descriptor = os.open(token_file(host, port), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, encoding="ascii") as file:
        found = os.fstat(descriptor)
        private = found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077
        return file.read() if private else None


def token_file(host: str, port: int) -> Path:
    """Return the path of the file with the token that clients of this address must present, if they must."""
    return state_folder() / f"dap-{address_text((host, port))}.token"


def _write(path: Path, token: str) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A killed server may have left it; the port is now ours.
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(token)
    except OSError as error:
        raise UsageError(
            f"cannot write a token to {path}: {error.strerror}",
            hint="set a token with --token or NNCDBG_DAP_TOKEN",
        ) from None
