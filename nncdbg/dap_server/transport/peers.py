"""The user at the other end of a connection, as reported by the kernel."""

from __future__ import annotations

import os
import socket
import struct

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
