"""The file in which a model that is no text shows its listing, the same from run to run.

Its last line names the model, so that two models of one name do not overwrite each other.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from nncdbg.textual_repr.listing import Listing

FOLDER = ".nncdbg"
"""Where the listings are kept, below the workspace."""

_OWNER = "## the listing of "


def write_listing(model: Path, listing: Listing, workspace: Path) -> tuple[Path, str | None]:
    """The file with the listing of a model, written if need be, and what the user should know of it.

    Raises OSError if it cannot be written.
    """
    workspace = workspace.resolve()
    owner = Path(os.path.relpath(model.resolve(), workspace)).as_posix()
    file = workspace / FOLDER / f"{model.stem}.nnc"
    note = None
    other = _owner_of(file)
    if other is not None and other != owner and (workspace / other).exists():
        digest = hashlib.blake2b(owner.encode(), digest_size=4).hexdigest()
        file, taken = file.with_name(f"{model.stem}-{digest}.nnc"), file
        note = f"{taken} shows {other}; the listing of {owner} is in {file}"
    _write(file, "\n".join((*listing.lines, f"{_OWNER}{owner}", "")))
    return file, note


def _owner_of(file: Path) -> str | None:
    """The model whose listing a file has; None where nobody says."""
    try:
        last = file.read_text(encoding="utf-8", errors="replace").rstrip("\n").rpartition("\n")[2]
    except FileNotFoundError:
        return None
    return last.removeprefix(_OWNER) if last.startswith(_OWNER) else None


def _write(file: Path, text: str) -> None:
    """Write a file whole or not at all: an editor may be looking, or another session writing it."""
    data = text.encode()
    if file.is_file() and file.read_bytes() == data:
        return
    file.parent.mkdir(exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.stem, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(name).chmod(0o644)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
