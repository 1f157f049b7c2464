"""TCP and Unix sockets: access, one client at a time, and the end of sessions and servers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nncdbg.dap_server import handlers  # noqa: F401  enters the handlers into the table
from nncdbg.dap_server.runner import Runner
from nncdbg.dap_server.session import Session
from nncdbg.dap_server.transport import serving as transport_serving
from nncdbg.dap_server.transport.addresses import address_text, bind, parse_address
from nncdbg.dap_server.transport.connection import Connection
from nncdbg.dap_server.transport.serving import Listener
from nncdbg.errors import UsageError
from nncdbg.terminal.main import main
from tests.dap_server.client import TIMEOUT, socket_client, until
from tests.dap_server.conftest import EXAMPLES
from tests.dap_server.servers import Server, refused_to_start, serving

pytestmark = pytest.mark.usefixtures("forked_processes")

PROGRAM = EXAMPLES / "first_steps.nnc"
SECRET = "a secret of 26 characters."
INITIALIZE = {"adapterID": "nncdbg"}

ENDLESS = """#nncdbg 1
opset 18
graph @main(%x: f32[2]) -> (%out: f32[2]) {
  while (%s: f32[2] = %x) {
    %s.1: f32[2] = Mul(%s, 1.5)
    next %s = %s.1
  } -> (%out: f32[2] = %s)
  return %out
}
"""


@pytest.fixture(params=["tcp", "unix"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    options = ["--socket", str(tmp_path / "s")] if request.param == "unix" else []
    with serving(*options, cwd=tmp_path) as running:
        yield running


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A program that never ends."""
    path = tmp_path / "endless.nnc"
    path.write_text(ENDLESS, encoding="utf-8")
    return path


# -- addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:5679", ("127.0.0.1", 5679)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_valid_addresses_are_parsed_and_formatted(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert address_text(address) == text


@pytest.mark.parametrize(
    "text",
    ["", ":", ":5679", "localhost", "localhost:", "localhost:x", "a:65536", "a:-1", "::1:5679", "[]:1"],
)
def test_invalid_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        parse_address(text)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::ffff:0.0.0.0"])
def test_a_public_address_without_a_token_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="is reachable from other machines"):
        bind((host, 0), guarded=False)


def test_invalid_server_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = tmp_path / "notes.txt"
    plain.write_text("mine", encoding="utf-8")
    long = str(tmp_path / ("x" * 120))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cases = [
            (("--listen", "0.0.0.0:0"), "no token is set"),
            (("--listen", "nowhere"), "use HOST:PORT"),
            (("--listen", f"127.0.0.1:{taken.getsockname()[1]}"), "Address already in use"),
            (("--listen", "no-such-host.invalid:0"), "cannot listen on no-such-host.invalid:0"),
            (("--listen", "127.0.0.1:0", "--socket", "s"), "not allowed with"),
            (("--socket", str(plain)), "is not a socket"),
            (("--socket", str(tmp_path)), "is not a socket"),
            (("--socket", str(tmp_path / "none" / "s")), "No such file or directory"),
            (("--socket", long), "socket path is too long"),
            (("--socket", ""), "needs a path"),
            (("--listen", "127.0.0.1:0", "--token", ""), "--token is empty"),
            (("--token", SECRET), "--token requires --listen or --socket"),
        ]
        for options, message in cases:
            assert main(["dap", *options]) == 2, options
            captured = capsys.readouterr()
            assert captured.err.startswith("error: ")
            assert message in captured.err, options
            assert not captured.out
    assert plain.read_text(encoding="utf-8") == "mine"


def test_a_token_allows_a_public_address() -> None:
    with (
        serving("--listen", "0.0.0.0:0", env={"NNCDBG_DAP_TOKEN": SECRET}) as server,
        server.client() as client,
    ):
        client.request("initialize", INITIALIZE)
        assert "requires a token" in client.refused("launch", {"program": str(PROGRAM)})


# -- Unix sockets --------------------------------------------------------------------------------


def test_a_socket_is_private_and_removed_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving("--socket", str(path)) as server:
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
        assert "another server is already listening on" in refused_to_start("--socket", str(path))
        server.end(signal.SIGINT)
    assert not path.exists()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving("--socket", str(path)) as server:
        server.process.kill()
        server.process.wait()
    assert path.is_socket()
    with serving("--socket", str(path)) as server, server.client() as client:
        client.start(PROGRAM)


def test_a_socket_is_created_with_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket is never accessible to others, not even before a change of its mode."""
    modes = []
    listen = socket.socket.listen

    def record_mode_and_listen(self: socket.socket, backlog: int) -> None:
        modes.append(stat.S_IMODE(os.stat(self.getsockname()).st_mode))
        listen(self, backlog)

    monkeypatch.setattr(socket.socket, "listen", record_mode_and_listen)
    monkeypatch.setattr(os, "chmod", None)
    before = os.umask(0)
    try:
        place = bind(tmp_path / "s", guarded=False)
        place.close()
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert modes == [0o600]
    assert not (tmp_path / "s").exists()


def test_a_socket_of_another_server_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    place = bind(path, guarded=False)
    path.unlink()
    other = bind(path, guarded=False)
    place.close()
    assert path.is_socket()
    other.close()
    assert not path.exists()


# -- tokens --------------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Server]:
    with serving("--listen", "127.0.0.1:0", "--token", SECRET, cwd=tmp_path) as running:
        yield running


def test_nothing_is_served_before_the_token(guarded: Server) -> None:
    with guarded.client() as client:
        assert "supportsConfigurationDoneRequest" in client.request("initialize", INITIALIZE)
        for command, arguments in [
            ("threads", None),
            ("evaluate", {"expression": "1"}),
            ("launch", {"program": str(PROGRAM)}),
            ("launch", {"program": str(PROGRAM), "token": None}),
            ("launch", {"program": str(PROGRAM), "connect": {}}),
            ("attach", {"connect": {"token": ""}}),
            ("setBreakpoints", {"source": {"path": "a"}, "token": SECRET}),
            ("nonsense", None),
        ]:
            assert "requires a token" in client.refused(command, arguments), command
        assert "Expected `str | null`" in client.refused("launch", {"connect": {"token": 5}})
        assert "requires a token" in client.refused("launch")
        client.request("launch", {"program": str(PROGRAM), "connect": {"token": SECRET}})
        client.expect_event("initialized")
        client.request("threads")


@pytest.mark.parametrize("wrong", ["x", SECRET + "x", SECRET[:-1], "gehéim \0 𝄞", "x" * 100_000])
def test_a_wrong_token_ends_the_connection(guarded: Server, wrong: str) -> None:
    with guarded.client() as client:
        client.request("initialize", INITIALIZE)
        assert client.refused("attach", {"connect": {"token": wrong}}) == "the token is wrong"
        assert "the token is wrong" in client.expect_event("output", category="important")["output"]
        client.expect_end()
    with guarded.client() as client:
        client.launch(PROGRAM, token=SECRET)


def test_a_client_without_a_token_may_only_disconnect(guarded: Server) -> None:
    with guarded.client() as client:
        client.request("disconnect", {"terminateDebuggee": True})
        client.expect_end()


# -- one client at a time ------------------------------------------------------------------------


def test_clients_are_served_one_after_the_other(server: Server) -> None:
    """A second client is refused without effect on the first; the next one may connect at once."""
    for leaves in (True, False, True):
        with server.client() as client:
            client.start(PROGRAM)
            with server.client() as second:
                message = second.expect_event("output", category="important")["output"]
                assert "another client is connected" in message
                assert "another client is connected" in second.refused("initialize", INITIALIZE)
                second.expect_end()
            client.move("next")
            if leaves:
                client.request("disconnect")
                client.expect_end()


def test_silent_second_clients_do_not_affect_the_first(server: Server) -> None:
    with server.client() as client, server.connect(), server.connect() as broken:
        broken.sendall(b"GET / HTTP/1.1\r\n\r\n")
        client.start(PROGRAM)
        client.move("next")


def test_many_sessions_leak_nothing_in_the_server(server: Server, endless: Path) -> None:
    def session(turn: int) -> None:
        with server.client() as client:
            if turn == 0:
                client.start(PROGRAM)
            elif turn == 1:  # the client vanishes while its endless program runs
                client.launch(endless)
                client.request("configurationDone")
            else:
                client.send_bytes(b"Content-Length: 50\r\n\r\nhalf a mess")

    def resources() -> tuple[int, int, int]:
        watched = server.watched
        return watched.num_fds(), watched.num_threads(), len(watched.children())

    for turn in range(3):
        session(turn)
    time.sleep(1)
    before = resources()
    for turn in range(12):
        session(turn % 3)
    until(
        lambda: all(now <= then for now, then in zip(resources(), before, strict=True)),
        "no resource is leaked",
    )


# -- the end of a server -------------------------------------------------------------------------


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_while_a_program_runs(
    server: Server, endless: Path, by: signal.Signals
) -> None:
    with server.client() as client:
        client.launch(endless)
        client.request("configurationDone")
        assert not server.end(by)
        client.expect_end()


def test_packets_are_sent_at_once(server: Server) -> None:
    """With Nagle's algorithm, each request would take 40 ms."""
    with server.client() as client:
        client.start(PROGRAM)
        took = []
        for _ in range(10):
            began = time.perf_counter()
            for _ in range(10):
                client.request("threads")
            took.append(time.perf_counter() - began)
        assert min(took) < 0.3


def test_a_client_that_does_not_read_cannot_block_the_shutdown(server: Server) -> None:
    body = b'{"seq":1,"type":"request","command":"threads"}'
    requests = b"Content-Length: %d\r\n\r\n%b" % (len(body), body) * 100_000
    with server.connect() as connected:
        connected.settimeout(1)
        with pytest.raises(TimeoutError):
            connected.sendall(requests)
        assert not server.end()


# -- a listener in this process ------------------------------------------------------------------


def new_session(connection: Connection) -> Session:
    return Session(connection, Runner())


def _client_threads() -> int:
    return sum(each.name == "nncdbg-dap-client" for each in threading.enumerate())


def test_a_listener_closes_with_its_clients() -> None:
    """The fixture `no_leaks` checks that their resources are released."""
    listener = Listener(("127.0.0.1", 0), new_session)
    assert isinstance(listener.address, tuple)
    host, port = listener.address
    assert str(listener) == f"{host}:{port}"
    with socket_client(socket.create_connection((host, port), TIMEOUT)) as client:
        client.request("initialize", INITIALIZE)
        with socket_client(socket.create_connection((host, port), TIMEOUT)) as waiting:
            until(lambda: _client_threads() == 2, "both clients have a thread")
            listener.close()
            listener.close()
            waiting.expect_end()
        client.expect_end()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, port))


def test_a_client_without_a_token_is_disconnected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(transport_serving, "PATIENCE", 0.3)
    listener = Listener(tmp_path / "s", new_session, token=SECRET)
    with contextlib.closing(listener), socket.socket(socket.AF_UNIX) as connected:
        connected.connect(str(tmp_path / "s"))
        with socket_client(connected) as client:
            client.request("initialize", INITIALIZE)
            assert "no token within" in client.expect_event("output", category="important")["output"]
            client.expect_end()
