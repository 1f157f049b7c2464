"""Addresses of a server: TCP, or a Unix socket that only its owner can open."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from nncdbg.errors import UsageError

Address: TypeAlias = "tuple[str, int] | str | Path"
"""(host, port), where port 0 picks one, or the path of a Unix socket."""

_WAITING = 128
"""Connections that the system keeps until they are accepted."""

_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds before the first probe (under two names: Linux, macOS) and between probes; most lost probes."""

_PROBE = 1.0
"""Seconds within which a live server accepts a connection."""


@dataclass(frozen=True, slots=True)
class BoundSocket:
    """A bound address: its listening socket, and how to release it."""

    socket: socket.socket
    address: tuple[str, int] | str
    close: Callable[[], None]


def parse_address(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT`` or ``[IPv6]:PORT``.  Raises UsageError."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"{text!r} is not an address", hint="write an IPv6 host in brackets: [::1]:5679")
    if not colon or not host or not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65535:
        raise UsageError(f"{text!r} is not an address", hint="use HOST:PORT, such as 127.0.0.1:5679")
    return host, int(port)


def address_text(address: Address) -> str:
    """An address as text."""
    if not isinstance(address, tuple):
        return f"unix:{address}"
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def prepare(connected: socket.socket) -> None:
    """Make a TCP connection send at once, and detect within a minute that the other machine is gone."""
    if connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def bind(address: Address, *, guarded: bool) -> BoundSocket:
    """Listen at an address; one that other machines can reach must be `guarded` by a token.

    Raises UsageError if that fails.
    """
    try:
        return _bind_tcp(*address, guarded) if isinstance(address, tuple) else _bind_unix(str(address))
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"cannot listen on {address_text(address)}: {reason}") from None


def _bind_tcp(host: str, port: int, guarded: bool) -> BoundSocket:
    # The checked address is the bound one: a name is resolved once.
    family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if not guarded and not ipaddress.ip_address(str(target[0]).partition("%")[0]).is_loopback:
        raise UsageError(
            f"{address_text((host, port))} is reachable from other machines, but no token is set",
            hint="set --token or NNCDBG_DAP_TOKEN, or listen on 127.0.0.1",
        )
    listening = socket.create_server(target[:2], family=family, backlog=_WAITING)
    bound = listening.getsockname()
    return BoundSocket(listening, (bound[0], bound[1]), listening.close)


def _bind_unix(path: str) -> BoundSocket:
    if not path:
        raise UsageError("a Unix socket needs a path")
    _clear(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Restrict it to its owner from the start, with no gap between creation and a change of its mode.
    mask = os.umask(0o177)
    try:
        listening.bind(path)
    except OSError as error:
        listening.close()
        if error.errno is None or "too long" in str(error):
            raise UsageError(
                f"the socket path is too long ({len(os.fsencode(path))} bytes): {path}",
                hint="use a path of at most 100 bytes, for example in /tmp",
            ) from None
        raise
    finally:
        os.umask(mask)
    made = os.lstat(path)
    listening.listen(_WAITING)

    def close() -> None:
        listening.close()
        with contextlib.suppress(FileNotFoundError):
            # Another server may have its socket there by now.
            if os.path.samestat(os.lstat(path), made):
                os.unlink(path)

    return BoundSocket(listening, path, close)


def _clear(path: str) -> None:
    """Remove the socket left by a dead server; raises UsageError for anything else."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UsageError(f"{path} exists and is not a socket", hint="choose another path, or remove the file")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except TimeoutError:
            pass  # it is live, and busy
    raise UsageError(
        f"another server is already listening on {address_text(path)}", hint="choose another path"
    )
