"""Fixtures of the server tests: a client of a server process, and a check for leaks."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.dap_server.client import Client, stdio_client
from tests.dap_server.conversations import conversation

HERE = Path(__file__).parent
EXAMPLES = Path(__file__).parents[2] / "examples"

RELEASE_TIMEOUT = 30.0
"""Seconds in which the resources of a test must be released."""


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Check that no thread, descriptor or child process outlives a test."""
    before = _resources()
    yield
    deadline = time.monotonic() + RELEASE_TIMEOUT
    while (left := _resources() - before) and time.monotonic() < deadline:
        gc.collect()  # the program of a session has reference cycles, and may hold files
        time.sleep(0.01)
    assert not left, f"leaked: {sorted(left)}"


def _resources() -> set[str]:
    # The statistics are compiled once per process; on a busy machine this outlasts a test.
    alive = [each for each in threading.enumerate() if each.name != "nncdbg-compilation"]
    threads = {f"thread {each.name} ({each.ident})" for each in alive}
    children = {f"process {each.pid}" for each in psutil.Process().children(recursive=True)}
    return threads | children | _descriptors()


def _descriptors() -> set[str]:
    found = set()
    for number in os.listdir("/dev/fd"):
        try:
            path = os.readlink(f"/dev/fd/{number}")
        except OSError:
            continue  # the descriptor of the listing
        if "onnxruntime.db" not in path:  # onnxruntime keeps it open until the process ends
            found.add(f"descriptor {number}: {path}")
    return found


PROCESSES = frozenset(
    (
        "test_child.py",
        "test_lifecycle.py",
        "test_malformed.py",
        "test_output.py",
        "test_progress.py",
        "test_recorded_session.py",
        "test_relay.py",
        "test_session.py",
        "test_terminal_window.py",
    )
)
"""Files that test the process of the server; in other files, sessions run in this process."""


@pytest.fixture
def client(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[Client]:
    """A client of a session in the folder `tmp_path`; it must end by itself, without a traceback."""
    if request.path.name in PROCESSES:
        with stdio_client(cwd=tmp_path) as connected:
            yield connected
        return
    monkeypatch.chdir(tmp_path)
    with conversation() as connected:
        yield connected
        if not connected.closed:
            with suppress(BrokenPipeError):
                connected.send("disconnect")
            connected.expect_end()
    assert "Traceback" not in capfd.readouterr().err
