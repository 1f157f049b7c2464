"""Files as reports name them: relative to the root of the user's checkout, if they are below it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote


def is_text(model: str) -> bool:
    """Whether a line of the program is a line of the model's own file."""
    return Path(model).suffix == ".nnc"


def relative(path: str, root: Path) -> str:
    """`path` below `root` with slashes; as it was given where it is not below it, or is no path at all."""
    if not path:
        return ""
    whole = Path(path)
    try:
        return (whole if whole.is_absolute() else Path.cwd() / whole).relative_to(root).as_posix()
    except ValueError:
        return whole.as_posix()


def uri(path: str, root: Path) -> str:
    """A URI reference: relative below `root`, else absolute (`file:///...`)."""
    spelled = quote(relative(path, root).encode(errors="replace"))
    return f"file://{spelled}" if spelled.startswith("/") else spelled
