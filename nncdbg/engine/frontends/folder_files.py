"""The files of a program folder.  Imports no heavy modules."""

from __future__ import annotations

import os

PROGRAM, INPUTS, DOCUMENT, README = "program.nnc", "inputs.safetensors", "nncdbg.json", "README"
STORE = "data.safetensors"
"""The store named in the text of the program."""

FILES = (PROGRAM, STORE, INPUTS, DOCUMENT, README)


def is_program_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a program folder, damaged or not."""
    return os.path.lexists(os.path.join(path, DOCUMENT))
