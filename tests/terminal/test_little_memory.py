"""A small limit of the address space is reported by every command."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from nncdbg.errors import RunError
from nncdbg.process.address_space import LEAST, check_address_space

COMMAND = [sys.executable, "-m", "nncdbg.terminal.main"]


def limited(megabytes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with an address space of `megabytes` MB."""
    limit = megabytes << 20
    return subprocess.run(
        [*COMMAND, *arguments],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize("arguments", [["dap"], ["dap", "--listen", "127.0.0.1:0"], ["run", "{model}"]])
@pytest.mark.parametrize("megabytes", [250, 300, 400])
def test_little_address_space_is_reported(arguments: list[str], megabytes: int, repository: Path) -> None:
    model = str(repository / "examples" / "first_steps.nnc")
    done = limited(megabytes, *(each.format(model=model) for each in arguments))
    assert done.returncode == RunError.exit_code
    assert done.stderr.startswith(f"error: the address space is limited to {megabytes} MB")
    assert not done.stdout


def test_enough_address_space_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (LEAST, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda which, limit=limit: (limit, limit))
        check_address_space()
