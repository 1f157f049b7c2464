"""Servers on sockets, each in its own process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.dap_server.client import TIMEOUT, Client, socket_client

COMMAND = [sys.executable, "-m", "nncdbg.terminal.main", "dap"]


class Server:
    """A listening server; `address` is the one it reported."""

    def __init__(self, process: subprocess.Popen[bytes], address: str) -> None:
        self.process = process
        self.address = address
        self.watched = psutil.Process(process.pid)

    def connect(self) -> socket.socket:
        """Return a new connection."""
        if self.address.startswith("unix:"):
            connected = socket.socket(socket.AF_UNIX)
            connected.settimeout(TIMEOUT)
            connected.connect(self.address.removeprefix("unix:"))
            return connected
        host, _, port = self.address.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), TIMEOUT)

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """A client that closes the connection unless the test disconnects it."""
        with socket_client(self.connect()) as client:
            yield client

    def end(self, by: signal.Signals = signal.SIGTERM) -> str:
        """End the server with a signal and return its standard error after the address."""
        self.process.send_signal(by)
        assert self.process.stderr is not None
        code = self.process.wait(TIMEOUT)
        errors = self.process.stderr.read().decode()
        assert code == 128 + by, f"the server ended with {code}: {errors}"
        return errors


@contextlib.contextmanager
def serving(*options: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> Iterator[Server]:
    """A server with these options (default: TCP on a free port); it must end cleanly."""
    command = [*COMMAND, *(options or ("--listen", "127.0.0.1:0"))]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=cwd, env={**os.environ, **(env or {})}
    ) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline().decode()
            announced = re.fullmatch(r"nncdbg dap: listening on (\S+)\n", line)
            assert announced is not None, line + process.stderr.read().decode()
            server = Server(process, announced[1])
            yield server
            if process.poll() is None:
                errors = server.end()
                assert not errors, errors
        finally:
            process.kill()


def refused_to_start(*options: str, env: dict[str, str] | None = None) -> str:
    """Return the error of a server that refuses to start, with exit code 2."""
    done = subprocess.run(
        [*COMMAND, *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == 2, done
    assert not done.stdout
    errors = done.stderr.decode()
    assert errors.startswith("error: "), errors
    return errors
