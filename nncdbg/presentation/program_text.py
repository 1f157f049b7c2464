"""Program text files, with weight paths relative to their folder."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.process.files import new_file

if TYPE_CHECKING:
    from nncdbg.ir.records import Program


def stores_from(program: Program, folder: Path | None) -> Program:
    """Return the program with store paths relative to `folder`; absolute if the folder is unknown."""
    source = Path(program.source).parent if program.source else Path()
    stores = [
        (source / store).resolve().as_posix()
        if folder is None
        else Path(os.path.relpath(source / store, folder)).as_posix()
        for store in program.stores
    ]
    return replace(program, stores=tuple(stores))


def write_text(path: Path, text: str) -> None:
    """Write the file atomically. Raises UsageError if it cannot be written."""
    with new_file(path) as file:
        file.write(text.encode("utf-8", "surrogateescape"))
