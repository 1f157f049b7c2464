"""Access to a listener: other users, silent clients, generated tokens, and limited resources."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nncdbg.dap_server import handlers  # noqa: F401  enters the handlers into the table
from nncdbg.dap_server.runner import Runner
from nncdbg.dap_server.session import Session
from nncdbg.dap_server.transport import access
from nncdbg.dap_server.transport.access import peer_user, token_for
from nncdbg.dap_server.transport.addresses import bind, prepare
from nncdbg.dap_server.transport.connection import Connection
from nncdbg.dap_server.transport.serving import Listener
from nncdbg.errors import UsageError
from tests.dap_server.client import TIMEOUT, Client, socket_client
from tests.dap_server.conftest import EXAMPLES

PROGRAM = EXAMPLES / "first_steps.nnc"
INITIALIZE = {"adapterID": "nncdbg"}

names_peers = pytest.mark.skipif(not access.kernel_names_tcp_peers(), reason="no /proc/net/tcp")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")

STRANGER = """
import json, os, socket, sys, time

address, count, how = json.loads(sys.argv[1])
tcp = socket.AF_INET6 if how == "mapped" else socket.AF_INET
family = socket.AF_UNIX if isinstance(address, str) else tcp
address = address if isinstance(address, str) else tuple(address)
if how == "mapped":
    address = ("::ffff:" + address[0], address[1])
os.setgroups([]); os.setgid(65534); os.setuid(65534)

def message(seq, command, arguments):
    body = json.dumps({"seq": seq, "type": "request", "command": command, "arguments": arguments}).encode()
    return b"Content-Length: %d\\r\\n\\r\\n%b" % (len(body), body)

requests = b"".join([
    message(1, "initialize", {"adapterID": "x"}),
    message(2, "attach", {}),
    message(3, "launch", {"program": "first_steps.nnc", "opLibrary": "x.py"}),
    message(4, "source", {"source": {"path": "/etc/passwd"}, "sourceReference": 0}),
    message(5, "evaluate", {"expression": "save /tmp/stranger", "context": "repl"}),
])
answers, held = [], []
for _ in range(count):
    connected = socket.socket(family)
    connected.settimeout(60)
    data = b""
    try:
        connected.connect(address)
        if how == "silent":
            held.append(connected)
            continue
        connected.sendall(requests)
        if how == "gone":
            connected.close()
            continue
        while more := connected.recv(65536):
            data += more
    except ConnectionError:
        pass
    answers.append(data.decode())
    connected.close()
print(json.dumps(answers), flush=True)
sys.stdin.read()
"""


def new_session(connection: Connection) -> Session:
    return Session(connection, Runner())


@contextlib.contextmanager
def listening(address: Any = ("127.0.0.1", 0), **options: Any) -> Iterator[Listener]:
    """A listener that runs each program in a separate thread."""
    threads: list[threading.Thread] = []

    def begin(session: Session) -> None:
        threads.append(threading.Thread(target=session.runner.run))
        threads[-1].start()

    with contextlib.closing(Listener(address, new_session, begin=begin, **options)) as listener:
        yield listener
    for thread in threads:
        thread.join(TIMEOUT)


@contextlib.contextmanager
def stranger(listener: Listener, count: int, how: str = "speaks") -> Iterator[list[str]]:
    """Open `count` connections as another user, and yield the data received on each."""
    arguments = json.dumps([listener.address, count, how])
    with subprocess.Popen(
        [sys.executable, "-c", STRANGER, arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.stdin.close()
        assert process.wait(TIMEOUT) == 0


def messages(text: str) -> list[dict[str, Any]]:
    found = []
    while text:
        head, _, rest = text.partition("\r\n\r\n")
        length = int(head.rpartition(":")[2])
        found.append(json.loads(rest[:length]))
        text = rest[length:]
    return found


def is_refusal(message: dict[str, Any]) -> bool:
    if message["type"] == "response":
        return not message["success"] and "cannot accept a client from another user" in message["message"]
    return (
        message["event"] == "output"
        and "cannot accept a client from another user" in message["body"]["output"]
    )


def connect(listener: Listener) -> socket.socket:
    address = listener.address
    if isinstance(address, tuple):
        return socket.create_connection(address, TIMEOUT)
    connected = socket.socket(socket.AF_UNIX)
    connected.settimeout(TIMEOUT)
    connected.connect(str(address))
    return connected


@contextlib.contextmanager
def client_of(listener: Listener) -> Iterator[Client]:
    with socket_client(connect(listener)) as client:
        yield client


def assert_served(listener: Listener) -> None:
    """Launch a program as the owner, and disconnect."""
    with client_of(listener) as client:
        client.launch(PROGRAM)
        client.request("threads")
        client.request("disconnect")
        client.expect_end()


# -- other users -----------------------------------------------------------------------------------


@needs_root
@names_peers
@pytest.mark.parametrize("how", ["speaks", "mapped"])
def test_another_user_gets_a_refusal_and_nothing_else_over_tcp(how: str) -> None:
    with listening() as listener:
        with stranger(listener, 200 if how == "speaks" else 20, how) as answers:
            assert_served(listener)
        received = [message for answer in answers for message in messages(answer)]
    assert len(answers) == (200 if how == "speaks" else 20)
    assert not [message for message in received if not is_refusal(message)]
    assert len(received) >= len(answers) / 2, "most refusals must arrive"


@needs_root
def test_another_user_is_refused_even_if_the_socket_mode_allows_it() -> None:
    if not hasattr(socket, "SO_PEERCRED"):
        pytest.skip("no SO_PEERCRED")
    # Not `tmp_path`: pytest keeps other users out of the folders around it.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        path.parent.chmod(0o711)
        with listening(str(path)) as listener:
            path.chmod(0o666)
            with stranger(listener, 20) as answers:
                assert_served(listener)
    received = [message for answer in answers for message in messages(answer)]
    assert received
    assert all(map(is_refusal, received))


@needs_root
@names_peers
def test_silent_connections_of_another_user_do_not_block_the_owner() -> None:
    with listening() as listener, stranger(listener, 100, "silent"):
        began = time.monotonic()
        assert_served(listener)
        assert time.monotonic() - began < 30


@needs_root
@names_peers
def test_a_closed_connection_of_another_user_is_not_attributed_to_root() -> None:
    """The kernel reports a socket without a process as root's, and these tests run as root."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(TIMEOUT)
        place = type("Place", (), {"address": server.getsockname()})
        with stranger(place, 5, "gone"):  # type: ignore[arg-type]
            for _ in range(5):
                connected, _ = server.accept()
                with connected:
                    assert peer_user(connected) is None


def test_a_client_of_the_same_user_is_identified() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        connected, _ = server.accept()
        with connected:
            assert peer_user(connected) == (os.geteuid() if access.kernel_names_tcp_peers() else None)


# -- waiting clients -------------------------------------------------------------------------------


def test_silent_clients_of_the_same_user_do_not_block_others() -> None:
    with listening() as listener, contextlib.ExitStack() as stack:
        for turn in range(50):
            silent = stack.enter_context(connect(listener))
            if turn % 2:
                silent.sendall(b"Content-Length: 50\r\n\r\nhalf")
        began = time.monotonic()
        assert_served(listener)
        assert time.monotonic() - began < 30


def test_of_two_initialized_clients_the_first_to_launch_is_served() -> None:
    with listening() as listener, client_of(listener) as first, client_of(listener) as second:
        first.request("initialize", INITIALIZE)
        second.request("initialize", INITIALIZE)
        second.request("launch", {"program": str(PROGRAM)})
        assert "another client is connected" in first.refused("launch", {"program": str(PROGRAM)})
        first.expect_end()
        second.request("threads")


# -- generated tokens -------------------------------------------------------------------------------


@pytest.fixture
def token_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The token folder, on a system that cannot identify the users of connections."""
    monkeypatch.setattr(access, "kernel_names_tcp_peers", lambda: False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "nncdbg"


def test_a_token_is_generated_if_users_cannot_be_identified(token_folder: Path) -> None:
    with listening() as listener:
        (file,) = token_folder.iterdir()
        assert listener.access.file == file
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(token_folder.stat().st_mode) == 0o700
        token = file.read_text()
        assert len(token) >= 40
        with client_of(listener) as client:
            client.request("initialize", INITIALIZE)
            assert "requires a token" in client.refused("launch", {"program": str(PROGRAM)})
        with connect(listener) as connected:
            assert token_for(connected) == token
        with client_of(listener) as client:
            client.launch(PROGRAM, token=token)
    assert not [*token_folder.iterdir()]


def test_an_unsafe_token_file_is_not_read(token_folder: Path, tmp_path: Path) -> None:
    with listening() as listener, connect(listener) as connected:
        (file,) = token_folder.iterdir()
        file.chmod(0o644)
        assert token_for(connected) is None
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
        (tmp_path / "elsewhere").chmod(0o600)
        assert token_for(connected) is None


def test_an_unwritable_token_file_is_an_error(token_folder: Path) -> None:
    token_folder.parent.mkdir()
    token_folder.write_text("a file where the folder should be")
    with pytest.raises(UsageError, match="cannot write a token"):
        Listener(("127.0.0.1", 0), new_session)


# -- limited resources --------------------------------------------------------------------------------

MANY_DESCRIPTORS = """
import os, resource, socket
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1500)]
import nncdbg
host, port = nncdbg.listen(("127.0.0.1", 0))
connected = socket.create_connection((host, port), 60)
body = b'{"seq":1,"type":"request","command":"initialize","arguments":{"adapterID":"x"}}'
connected.sendall(b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
reader = connected.makefile("rb")
length = int(reader.readline().removeprefix(b"Content-Length: "))
print(connected.fileno(), reader.read(2 + length).count(b'"success":true'))
"""


def test_a_process_with_more_than_1024_descriptors_is_served() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY_DESCRIPTORS], capture_output=True, text=True, timeout=TIMEOUT
    )
    number, answers = map(int, done.stdout.split())
    assert number > 1024
    assert answers == 1
    assert not done.stderr


@pytest.mark.parametrize("missing", ["thread", "descriptor"])
def test_an_endpoint_that_cannot_serve_raises(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def no_descriptor() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    place = bind(("127.0.0.1", 0), guarded=False)
    place.close()
    with monkeypatch.context() as patch:
        if missing == "thread":
            patch.setattr(threading.Thread, "start", no_thread)
        else:
            patch.setattr(socket, "socketpair", no_descriptor)
        with pytest.raises(UsageError, match="cannot serve 127"):
            Listener(place.address, new_session)
    # The address is free again.
    Listener(place.address, new_session).close()


def test_tcp_connections_are_kept_alive() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as to,
    ):
        prepare(to)
        assert to.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert to.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60
