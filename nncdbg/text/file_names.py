"""Names of files: the files of a program folder, and listings.  Imports no heavy modules."""

from __future__ import annotations

import os
from pathlib import Path

# -- listings --------------------------------------------------------------------------------------

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


# -- program folders -------------------------------------------------------------------------------

PROGRAM, INPUTS, DOCUMENT, README = "program.nnc", "inputs.safetensors", "nncdbg.json", "README"
STORE = "data.safetensors"
"""The store named in the text of the program."""

TRACE = "source.json"
"""How the user's source ran, for a recorded step."""

FILES = (PROGRAM, STORE, INPUTS, DOCUMENT, TRACE, README)


def is_program_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a program folder, damaged or not."""
    return os.path.lexists(os.path.join(path, DOCUMENT))
