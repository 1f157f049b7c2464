"""Memory that NumPy frees stays with the process, unless the user or the platform decides otherwise."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from typing import Any

import pytest

from nncdbg.engine.memory import keep_freed

FAULTS = """
import resource
import numpy as np
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.memory import allocation

allocation("plain", NumPy())

def use():
    for array in [np.ones(1 << 18, np.float32) for _ in range(50)]:
        array += 1

use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these thresholds")
def test_pages_are_not_faulted_in_again() -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}

    def faults(**more: str) -> int:
        command = [sys.executable, "-c", FAULTS]
        return int(subprocess.run(command, check=True, capture_output=True, env=clean | more).stdout)

    # 50 blocks of 1 MiB are 12,800 pages.
    assert faults() < 1000
    assert faults(MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072") > 10_000


@pytest.mark.parametrize("given", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_malloc_settings_of_the_user_are_kept(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: Any) -> None:
        raise AssertionError("the thresholds of malloc were changed")

    monkeypatch.setenv(given, "1")
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    keep_freed.__wrapped__()


def test_another_libc_is_not_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_"))]:
        monkeypatch.delenv(name)
    opened = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: opened.append(name))
    keep_freed.__wrapped__()
    assert opened == [None]
