"""Fixtures of the server tests: a client of a server process, and a check for leaks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.dap_server.client import Client, stdio_client

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


SAMPLE = frozenset(
    (
        "test_session.py",
        "test_breakpoints.py",
        "test_variables.py",
        "test_moving.py",
        "test_framing.py",
        "test_fuzz.py",
        "test_answers.py",
        "test_children.py",
        "test_handles.py",
        "test_value_text.py",
        "test_schema.py",
        "test_protocol_records.py",
        "test_access.py",
        "test_escaping.py",
    )
)
"""Files of the default run; the others take minutes, because each test starts processes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `make adapter` runs and the default run skips."""
    for item in items:
        markers = {mark.name for mark in item.iter_markers()}
        if item.path.parent == HERE and item.path.name not in SAMPLE and not markers & {"e2e", "fuzz"}:
            item.add_marker("adapter")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client over stdio; the server must end by itself, without a traceback."""
    with stdio_client(cwd=tmp_path) as connected:
        yield connected
