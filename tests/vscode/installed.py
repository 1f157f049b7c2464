"""Requirements of the editor tests on this machine, and runs of their scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
VSIX = Path(os.environ.get("NNCDBG_VSIX") or ROOT / "dist" / "nncdbg.vsix")
INSTALLED = Path(os.environ.get("NNCDBG_EDITOR") or FOLDER)
LIMIT = 1800.0
"""Seconds for one script."""


def chromium() -> str | None:
    """Return the browser's path."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def missing() -> str | None:
    """Return a sentence about the first missing requirement, or None."""
    for program in ("node", "rg"):
        if shutil.which(program) is None:
            return f"there is no {program} on the path"
    if chromium() is None:
        return "there is no chromium on the path"
    if not (INSTALLED / "node_modules" / "code-server").is_dir():
        return f"there is no code-server in {INSTALLED.name}/node_modules; `make e2e-editor` installs it"
    if not VSIX.is_file():
        return "the extension is not built; `make vsix` builds it"
    return None


def command(script: Path, *arguments: Path) -> list[str]:
    """Return the command line of a script."""
    return ["node", str(script), *map(str, arguments)]


def environment() -> dict[str, str]:
    """Return the environment variables of a script."""
    return {**os.environ, "NNCDBG_CHROMIUM": str(chromium())}


def run_script(script: Path, *arguments: Path) -> tuple[int, str]:
    """Return the exit code and output of a script, which is terminated after `LIMIT` seconds."""
    process = subprocess.Popen(
        command(script, *arguments),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, _ = process.communicate(timeout=30)
    return process.returncode, output
