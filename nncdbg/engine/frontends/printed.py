"""Stores outside of the folder of a text that this user printed from a model.

`nncdbg print` records the text and its stores in the user's own state folder.  The text can then be
opened without `--allow-store`.  A text from another user has no such record, and an edited text cannot
reach other files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from nncdbg.engine.process.state_folder import state_folder


def note_printed(text: Path, stores: Sequence[Path]) -> bool:
    """Record the files that hold the data of a printed text, replacing an earlier record.

    Return False if the record cannot be written: the text then needs `--allow-store`.
    """
    note = _note_of(text)
    try:
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = note.with_suffix(".part")
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(json.dumps([os.fspath(store.resolve()) for store in stores]).encode())
        draft.replace(note)
    except OSError:
        return False
    return True


def forget_printed(text: Path) -> None:
    """Remove the record of a text whose data is below its folder."""
    with contextlib.suppress(OSError):
        _note_of(text).unlink(missing_ok=True)


def printed_stores(text: Path) -> list[Path]:
    """Return the files that hold the data of a text, if this user printed it; else an empty list."""
    try:
        stores = json.loads(_note_of(text).read_bytes())
    except (OSError, ValueError):
        return []
    return [Path(store) for store in stores if isinstance(store, str)] if isinstance(stores, list) else []


def _note_of(text: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(text.resolve())).hexdigest()
    return state_folder() / "printed" / f"{digest}.json"
