"""What a run of the editor needs on this machine, and how its scripts are run."""

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
    """The browser's path."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def missing() -> str | None:
    """What is not there, in a sentence; None where all is."""
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
    """The command line of a script."""
    return ["node", str(script), *map(str, arguments)]


def environment() -> dict[str, str]:
    """The environment variables of a script."""
    return {**os.environ, "NNCDBG_CHROMIUM": str(chromium())}


def end_of(script: Path, *arguments: Path) -> tuple[int, str]:
    """What a script returns and says; it is asked to end when it takes too long."""
    process = subprocess.Popen(
        command(script, *arguments),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.terminate()
        said, _ = process.communicate(timeout=30)
    return process.returncode, said
