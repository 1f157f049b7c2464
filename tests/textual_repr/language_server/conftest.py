"""One server for all tests of a worker; each test opens its own document."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .client import Client


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    running = Client()
    yield running
    assert running.close() == 0
