"""Source files of the user's model, and the text of their lines."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.ir.records import digest_of

if TYPE_CHECKING:
    from nncdbg.ir.records import Location, Program


def named_file(file: str) -> str:
    """Return the name of a notebook's cell, such as `In[2]`, for a file of its code; else the file."""
    jupyter = sys.modules.get("IPython")
    shell = None if jupyter is None else jupyter.get_ipython()
    named = None if shell is None else shell.compile.format_code_name(file)
    return file if named is None else str(named[1])


def short_path(file: str) -> str:
    """Return a path relative to the current folder, or the name of a notebook's cell.

    A file outside of the folder keeps its path.
    """
    if (named := named_file(file)) != file:
        return named
    short = os.path.relpath(file)
    return file if short.startswith("..") else short


def source_file(program: Program, path: str) -> Path | None:
    """Return the file as given in the model, or beside the model file; None if there is none.

    A file with another text than the one that a step was recorded from is another file.
    """
    beside = Path(program.source).parent if program.source else Path()
    return next((each for each in (Path(path), beside / path) if is_source(program, path, each)), None)


def is_source(program: Program, path: str, file: Path) -> bool:
    """Return whether a file exists, and has the text that the program was recorded from, if that is known."""
    if not file.is_file():
        return False
    recorded = program.saved.sources.get(path)
    if recorded is None:
        return True
    return os.access(file, os.R_OK) and digest_of("\n".join(source_lines(file))) == recorded.digest


def source_lines(file: Path) -> list[str]:
    """Return the lines of a file.  Raises OSError if it cannot be read."""
    status = file.stat()
    return _lines(file, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _lines(file: Path, changed: int, size: int) -> list[str]:
    """Return the lines of a file, which is read again after a change of its time or size."""
    return file.read_text(encoding="utf-8", errors="replace").splitlines()


def source_text(program: Program, location: Location) -> str:
    """Return the text of a source line, as recorded or else from the file; "" if it cannot be read."""
    recorded = program.saved.sources.get(location.file or "")
    if recorded is not None and recorded.lines:
        return recorded.lines.get(str(location.line), "").strip()
    file = source_file(program, location.file) if location.file else None
    if file is None or location.line is None or not os.access(file, os.R_OK):
        return ""
    lines = source_lines(file)
    return lines[location.line - 1].strip() if 0 < location.line <= len(lines) else ""


def source_place(program: Program, location: Location | None) -> str:
    """Return `from train.py:27  loss = x.sqrt()`, without the text if it cannot be read; "" for no file."""
    if location is None or not location.file:
        return ""
    text = source_text(program, location)
    place = f"from {location.file}" + (f":{location.line}" if location.line is not None else "")
    return f"{place}  {text}" if text else place


def names_on(text: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return the names that a line of source mentions, and their gradients."""
    return {
        name: value
        for name, value in names.items()
        if re.search(rf"(?<![\w.]){re.escape(name.removesuffix('.grad'))}(?!\w)", text)
    }
