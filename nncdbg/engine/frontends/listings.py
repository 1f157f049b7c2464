"""Listings: files in which a model that is not text shows its program.  The last line names the model."""

from __future__ import annotations

from pathlib import Path

FOLDER = ".nncdbg"
"""The folder of the listings, below the workspace."""

OWNER = "## the listing of "
"""The last line begins so; the path of the model follows, relative to the workspace."""


def owner_of(text: str) -> str | None:
    """Return the model that a listing names, relative to the workspace; None for any other text."""
    last = text.rstrip("\n").rpartition("\n")[2]
    return last.removeprefix(OWNER) if last.startswith(OWNER) else None


def workspace_of(path: Path) -> Path | None:
    """Return the folder that a listing belongs to; None for a file that is not in a folder of listings."""
    folder = path.absolute().parent
    return folder.parent if folder.name == FOLDER else None
