"""Addresses of runs and steps in a journal, such as `run.db#2`, `run.db@38`, `run.db@epoch:3`, `run.db@nan`.

Imports no heavy modules: each command line is inspected for an address.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from nncdbg.errors import LoadError, UsageError

_MAGIC = b"SQLite format 3\x00"

_APPLICATION = slice(68, 72)
"""The bytes of the application id in the header of an SQLite file."""

_JOURNAL = b"nnj1"

_REST = re.compile(r"(?:#(?P<run>[^@]*))?(?:@(?P<at>.*))?", re.DOTALL)

_FORMS = "write FILE#RUN@STEP, such as run.db@38, run.db#2@38, run.db@epoch:3 or run.db@nan"


@dataclass(frozen=True, slots=True)
class Address:
    """A place in a journal: run `run` (None: the last one), at the start of `step` or of `epoch`.

    With `nan`, the place is the start of the first step with a NaN or Inf.  Without all of them, the address
    is that of the whole run.
    """

    file: str
    run: int | None = None
    step: int | None = None
    epoch: int | None = None
    nan: bool = False

    @property
    def at_step(self) -> bool:
        """Whether the address is that of a step."""
        return self.nan or self.step is not None or self.epoch is not None

    def __str__(self) -> str:
        run = "" if self.run is None else f"#{self.run}"
        if self.nan:
            return f"{self.file}{run}@nan"
        if self.epoch is not None:
            return f"{self.file}{run}@epoch:{self.epoch}"
        return f"{self.file}{run}" + ("" if self.step is None else f"@{self.step}")


def is_journal(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a journal, by its header.

    After a kill, the header may still be in the log beside the file.
    """
    # A file with a connection in this process must not be opened: closing it would drop SQLite's locks.
    connections = sys.modules.get("nncdbg.journal.connection")
    if connections is not None and connections.is_open(Path(path)):
        return True
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            header = file.read(_APPLICATION.stop)
    except (OSError, ValueError):
        return False
    if not header.startswith(_MAGIC):
        return False
    logged = os.path.isfile(f"{path}-wal") and not os.path.lexists(f"{path}-journal")
    return header[_APPLICATION] == _JOURNAL or (logged and _is_logged_journal(path))


def _is_logged_journal(path: str | os.PathLike[str]) -> bool:
    import sqlite3

    try:
        with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as connection:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
    except sqlite3.Error:
        return False
    return int(application) == int.from_bytes(_JOURNAL, "big")


def read_address(text: str, folder: Path = Path()) -> Address | None:
    """Return the address in a text, with a file relative to `folder`; None for another path.

    A text is an address if the file before `#` or `@` is a journal, or if the name of that file ends with
    `.db`.  Names of files may contain these characters: the longest name of a journal counts.

    Raises UsageError for a run or place that is malformed, LoadError if there is no such file, and for a file
    `.db` that is not a journal.
    """
    if os.path.lexists(folder / text):
        if is_journal(folder / text):
            return Address(text)
        if text.endswith(".db") and not os.path.isdir(folder / text):
            raise _no_journal(text, folder)
        return None
    files = [text[: found.start()] for found in re.finditer("[#@]", text)]
    for file in reversed(files):
        if is_journal(folder / file):
            return _address(text, file)
    for file in (*files, text):
        if file.endswith(".db"):
            if not os.path.lexists(folder / file):
                raise LoadError(
                    f"there is no file {file}",
                    hint=f"searched {os.path.dirname(os.path.abspath(folder / file))}",
                )
            raise _no_journal(file, folder)
    return None


def resumed_by_script(address: Address) -> UsageError:
    """Return the error of a fork of a PyTorch training."""
    return UsageError(
        f"{address} is of a PyTorch training, which only its script continues or forks",
        hint=f"in the script: nncdbg.torch.resume(model, optimizer, {str(address)!r})",
    )


def _no_journal(file: str, folder: Path) -> LoadError:
    why = ": it is not a regular file"
    if os.path.isfile(folder / file):
        why = "" if os.path.getsize(folder / file) else ": it is empty"
    return LoadError(
        f"{file} is not a journal{why}",
        hint="write one with `nncdbg run MODEL --journal run.db`",
    )


def _address(text: str, file: str) -> Address:
    parts = _REST.fullmatch(text[len(file) :])
    if parts is None:
        raise UsageError(f"{text}: the address is malformed", hint=_FORMS)
    run, at = parts["run"], parts["at"]
    if run is not None and not (_is_number(run) and int(run)):
        raise UsageError(f'{text}: the run "{run}" is not a number from 1', hint=_FORMS)
    number = None if run is None else int(run)
    if at is None:
        return Address(file, number)
    if at == "nan":
        return Address(file, number, nan=True)
    if _is_number(at):
        return Address(file, number, step=int(at))
    word, _, epoch = at.partition(":")
    if word == "epoch" and _is_number(epoch):
        return Address(file, number, epoch=int(epoch))
    raise UsageError(f'{text}: "@{at}" is not a step', hint=_FORMS)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16
