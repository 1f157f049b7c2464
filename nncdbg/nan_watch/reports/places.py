"""File names in reports: relative to the root of the user's checkout if they are below it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote


def is_text(model: str) -> bool:
    """Return whether lines of the program are lines of the model's own file."""
    return Path(model).suffix == ".nnc"


def relative(path: str, root: Path) -> str:
    """Return `path` relative to `root`, with slashes; unchanged if it is not below it or is not a path."""
    if not path:
        return ""
    whole = Path(path)
    try:
        return (whole if whole.is_absolute() else Path.cwd() / whole).relative_to(root).as_posix()
    except ValueError:
        return whole.as_posix()


def uri(path: str, root: Path) -> str:
    """Return a URI reference: relative if below `root`, else absolute (`file:///...`)."""
    spelled = quote(relative(path, root).encode(errors="replace"))
    return f"file://{spelled}" if spelled.startswith("/") else spelled
