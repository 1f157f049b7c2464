"""Listings: files with the program text of a binary model.  The last line names the model."""

from __future__ import annotations

from pathlib import Path

FOLDER = ".nncdbg"
"""The folder of the listings, below the workspace."""

OWNER = "## the listing of "
"""The start of the last line; the path of the model follows, relative to the workspace."""


def owner_of(text: str) -> str | None:
    """Return the model named in a listing, relative to the workspace; None for any other text."""
    last = text.rstrip("\n").rpartition("\n")[2]
    return last.removeprefix(OWNER) if last.startswith(OWNER) else None


def workspace_of(path: Path) -> Path | None:
    """Return the workspace of a listing; None for a file outside of a folder of listings."""
    folder = path.absolute().parent
    return folder.parent if folder.name == FOLDER else None
