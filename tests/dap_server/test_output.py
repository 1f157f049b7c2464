"""Output of kernels is sent as `output` events, and never mixes with messages."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dap_server.client import TIMEOUT, Client, stdio_client
from tests.dap_server.servers import COMMAND, Server, serving

pytestmark = pytest.mark.usefixtures("forked_processes")

LIBRARY = """
import ctypes, os, subprocess, sys, time
import nncdbg

C = ctypes.CDLL(None)

@nncdbg.op("com.example.Chatter")
def chatter(xp, x):
    print("from Python", sys.stdin.read() or "nothing to read")
    print("an error", file=sys.stderr)
    sys.stdout.write("no line end; ")
    os.write(1, "straight é\\n".encode())
    C.puts(b"from C")
    subprocess.run(["echo", "from a child"], check=True)
    os.write(2, b"\\xff\\xfe odd\\n")
    print("Content-Length: 5\\r\\n\\r\\n{}")
    return x + 1

@nncdbg.op("com.example.Flood")
def flood(xp, x):
    for number in range(20_000):
        print("line", number, "." * 40)
    return x + 1

@nncdbg.op("com.example.Crash")
def crash(xp, x):
    ctypes.string_at(0)
    return x + 1

@nncdbg.op("com.example.Stuck")
def stuck(xp, x):
    print("stuck", flush=True)
    C.sleep(60)
    return x + 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an op library, and a program for each of its ops."""
    (tmp_path / "ops.py").write_text(LIBRARY, encoding="utf-8")
    for name in ("Chatter", "Flood", "Crash", "Stuck"):
        text = f"""#nncdbg 1
opset 18
graph @main(%x: f32[2]) -> (%z: f32[2]) {{
  %y: f32[2] = com.example.{name}(%x)
  %z: f32[2] = Neg(%y)
  return %z
}}
"""
        (tmp_path / f"{name}.nnc").write_text(text, encoding="utf-8")
    return tmp_path


@contextlib.contextmanager
def connected(kind: str, folder: Path) -> Iterator[tuple[Client, Server | None]]:
    if kind == "stdio":
        with stdio_client(cwd=folder) as client:
            yield client, None
    else:
        with serving(cwd=folder) as server, server.client() as client:
            yield client, server


def printed(client: Client, category: str) -> str:
    """Return the text of all `output` events of a category so far."""
    bodies = [m["body"] for m in client.messages if m["type"] == "event" and m["event"] == "output"]
    return "".join(body["output"] for body in bodies if body.get("category") == category)


def expect_stuck(client: Client) -> None:
    client.wait_for(lambda message: "stuck" in message.get("body", {}).get("output", ""))


@pytest.mark.parametrize("kind", ["stdio", "tcp"])
def test_printed_text_arrives_before_the_stop(kind: str, folder: Path) -> None:
    with connected(kind, folder) as (client, _):
        client.start("Chatter.nnc", opLibrary=["ops.py"])
        client.move("next")
        out = printed(client, "stdout")
        assert out.startswith("from Python nothing to read\n")
        assert "no line end; " in out
        assert "straight é\n" in out
        assert "from C\n" in out
        assert "from a child\n" in out
        assert out.endswith("Content-Length: 5\r\n\r\n{}\n")
        assert printed(client, "stderr") == "an error\n\ufffd\ufffd odd\n"


@pytest.mark.parametrize("kind", ["stdio", "tcp"])
def test_a_flood_of_output_arrives_in_full_and_in_order(kind: str, folder: Path) -> None:
    with connected(kind, folder) as (client, _):
        client.start("Flood.nnc", opLibrary=["ops.py"])
        client.move("next")
        assert printed(client, "stdout") == "".join(f"line {n} {'.' * 40}\n" for n in range(20_000))


def test_a_crash_writes_to_the_original_standard_error(folder: Path) -> None:
    with subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        client = Client(process.stdout, process.stdin)  # type: ignore[arg-type]
        client.start("Crash.nnc", opLibrary=["ops.py"])
        client.send("next", {"threadId": 1})
        client.expect_end()
        assert process.wait() < 0
        errors = process.stderr.read().decode()
        assert "Segmentation fault" in errors
        assert "in crash" in errors


def test_a_disconnect_ends_a_server_with_an_endless_op(folder: Path) -> None:
    with subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder
    ) as process:
        client = Client(process.stdout, process.stdin)  # type: ignore[arg-type]
        client.start("Stuck.nnc", opLibrary=["ops.py"])
        client.request("next", {"threadId": 1})
        expect_stuck(client)
        client.request("disconnect")
        client.expect_end()
        assert process.wait(TIMEOUT) == 1


def test_a_signal_ends_a_server_with_an_endless_op(folder: Path) -> None:
    with connected("tcp", folder) as (client, server):
        assert server is not None
        client.start("Stuck.nnc", opLibrary=["ops.py"])
        client.request("next", {"threadId": 1})
        expect_stuck(client)
        assert not server.end()
        client.expect_end()


def test_requests_are_refused_when_too_many_are_waiting(folder: Path) -> None:
    """`pause` and `disconnect` still work."""
    with serving(cwd=folder) as server, server.client() as client:
        client.start("Stuck.nnc", opLibrary=["ops.py"])
        client.request("next", {"threadId": 1})
        expect_stuck(client)
        numbers = [client.send("setBreakpoints", {"source": {"path": "a.nnc"}}) for _ in range(1_500)]
        client.request("pause", {"threadId": 1})
        for number in numbers[1_000:]:
            answer = client.expect_response(number)
            assert "too many requests are waiting" in answer["message"]
        client.request("disconnect")
        client.expect_end()
        server.end()
