"""What the tests of the server share: a client of a real server in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dap_server.client import Client, stdio_client

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client over stdio; at the end the server must have ended by itself, without a traceback."""
    with stdio_client(cwd=tmp_path) as connected:
        yield connected
