"""The folder for files that outlive a run: the history of commands, tokens of servers, reports of crashes."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """Return `nncdbg` in the user's folder for state (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "nncdbg"
