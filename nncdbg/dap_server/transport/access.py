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
import struct
from pathlib import Path

from nncdbg.dap_server.transport.addresses import BoundSocket, address_text
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.process.files import state_folder

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
"""TCP sockets of this network namespace.  An IPv6 socket connected to an IPv4 server is in the second."""

_CREDENTIALS = struct.Struct("3i")
"""`struct ucred`: process, user, group."""

_MAPPED = bytes(10) + b"\xff\xff"
"""Prefix of an IPv4 address in IPv6 form."""


def kernel_names_tcp_peers() -> bool:
    """Return whether this system can report the user at the other end of a TCP connection."""
    return os.access(_TABLES[0], os.R_OK)


def peer_user(connected: socket.socket) -> int | None:
    """Return the user id at the other end of a connection on this machine; None if unknown."""
    if connected.family == socket.AF_UNIX:
        return _unix_user(connected)
    try:
        near, far = connected.getsockname(), connected.getpeername()
    except OSError:  # it is closed again
        return None
    found = _tcp_entry(far, near)
    if found is None or found != _tcp_entry(far, near):
        return None
    return found[0]


def _unix_user(connected: socket.socket) -> int | None:
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    packed = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(packed)[1]
    return user


def _tcp_entry(local: tuple[str, int], remote: tuple[str, int]) -> tuple[int, int] | None:
    """(user, inode) of the open socket from `local` to `remote`.

    The kernel reports a closed socket, which has no inode any more, as root's.  Its entry is no evidence: a
    client that connects to a server of root and closes at once would be mistaken for root.  It may close
    while the entry is written, so only two equal readings count (see `peer_user`).
    """
    for table, mapped in zip(_TABLES, (False, True), strict=True):
        try:
            with open(table, encoding="ascii") as file:
                text = file.read()
        except OSError:
            continue
        pair = f": {_kernel_text(local, mapped)} {_kernel_text(remote, mapped)} "
        _, found, rest = text.partition(pair)
        if found:
            fields = rest.partition("\n")[0].split()
            user, inode = int(fields[4]), int(fields[6])
            return (user, inode) if inode else None
    return None


def _kernel_text(address: tuple[str, int], mapped: bool) -> str:
    """An address in the tables' form: 32-bit words in the machine's byte order, in hexadecimal."""
    host = address[0].partition("%")[0]
    if ":" in host:
        packed = socket.inet_pton(socket.AF_INET6, host)
        if not mapped and packed.startswith(_MAPPED):
            packed = packed.removeprefix(_MAPPED)
    else:
        packed = (_MAPPED if mapped else b"") + socket.inet_pton(socket.AF_INET, host)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"


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
