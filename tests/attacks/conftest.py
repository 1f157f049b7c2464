"""What holds for each attack: no marker file appears, little time of the processor, little memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

MARKER = "OWNED"
"""The file that a hostile input creates if its code runs."""

SECONDS = 10
KIBIBYTES = 2**20


@pytest.fixture(autouse=True)
def harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert not list(tmp_path.rglob(f"{MARKER}*"))
    assert time.process_time() - start < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < KIBIBYTES
