"""`@vscode/debugadapter-testsupport`, the test client of VS Code's adapters, drives the server.

`make e2e` installs it and runs this test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "testsupport"
PACKAGE = FOLDER / "node_modules" / "@vscode" / "debugadapter-testsupport"

NODE = 20
"""The oldest Node.js with a test runner."""


def node() -> str:
    """Return the command, or skip the test if it cannot run."""
    command = shutil.which("node")
    if command is None:
        pytest.skip("there is no Node.js on the path")
    version = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.lstrip("v").partition(".")[0]) < NODE:
        pytest.skip(f"Node.js {version.strip()} is older than {NODE}")
    if not PACKAGE.is_dir():
        pytest.skip(f"there is no {PACKAGE.relative_to(FOLDER)}; `make e2e` installs it")
    return command


@pytest.mark.e2e
def test_the_vs_code_test_client_passes_its_tests() -> None:
    command = [node(), "--test", "--test-reporter=tap"]
    nncdbg = Path(sys.executable).with_name("nncdbg")
    done = subprocess.run(
        command,
        cwd=FOLDER,
        env={**os.environ, "NNCDBG": str(nncdbg)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "# fail 0\n" in done.stdout, done.stdout
    assert "# pass 0\n" not in done.stdout, done.stdout
