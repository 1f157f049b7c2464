"""Folders for files that outlive a run: command history, server tokens, crash reports, compiled code."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """Return `nncdbg` in the user's state folder (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "nncdbg"


def cache_folder() -> Path:
    """Return `nncdbg` in the user's cache folder: its files can be deleted at any time."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "nncdbg"
