"""What the tests of the server share: a client of a real server in a folder of its own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.dap_server.client import Client, stdio_client

EXAMPLES = Path(__file__).parents[2] / "examples"

LEAVING = 5.0
"""Seconds in which what a test has begun must be gone."""


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No thread, descriptor or child process of this process outlives a test."""
    before = _held()
    yield
    deadline = time.monotonic() + LEAVING
    while (left := _held() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left, f"left behind: {sorted(left)}"


def _held() -> set[str]:
    threads = {f"thread {each.name} ({each.ident})" for each in threading.enumerate()}
    children = {f"process {each.pid}" for each in psutil.Process().children(recursive=True)}
    return threads | children | _descriptors()


def _descriptors() -> set[str]:
    found = set()
    for number in os.listdir("/dev/fd"):
        try:
            found.add(f"descriptor {number}: {os.readlink(f'/dev/fd/{number}')}")
        except OSError:
            continue  # that of the listing itself
    return found


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client over stdio; at the end the server must have ended by itself, without a traceback."""
    with stdio_client(cwd=tmp_path) as connected:
        yield connected
