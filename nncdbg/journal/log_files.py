"""The files of the write-ahead log beside a journal, which the last connection removes."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

_PATIENCE = 200
"""Milliseconds that a closing writer waits for readers before it leaves its log to them."""


def log_of(path: Path) -> Path:
    """Return the path of the write-ahead log of a journal."""
    return path.with_name(f"{path.name}-wal")


def bytes_on_disk(path: Path) -> int:
    """Return the size of a journal, with the latest changes, which the log has during the writing."""
    size = path.stat().st_size
    with contextlib.suppress(FileNotFoundError):
        size += log_of(path).stat().st_size
    return size


def has_log(path: Path) -> bool:
    """Return whether a journal has a log with content."""
    log = log_of(path)
    return log.exists() and log.stat().st_size > 0


def empty_log(connection: sqlite3.Connection) -> None:
    """Copy the log into the file and shorten it to no bytes, unless other connections use it.

    A writer calls this before it closes its connection: SQLite does the same only for the last connection,
    and a reader that remains cannot.
    """
    with contextlib.suppress(sqlite3.Error):
        connection.execute(f"PRAGMA busy_timeout = {_PATIENCE}")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def remove_empty_log(path: Path) -> None:
    """Remove the files of a log without content, unless other connections use them.

    A connection that only reads creates these files and cannot remove them.  SQLite removes them when the
    last connection that may write closes; it holds the exclusive lock of the file meanwhile.  A log with
    content stays as it is: it has the last commits of a process that was killed.
    """
    with contextlib.suppress(sqlite3.Error, OSError):
        # With the journal of an interrupted transaction, a connection that may write would change the file.
        if not log_of(path).exists() or has_log(path) or path.with_name(f"{path.name}-journal").exists():
            return
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with contextlib.closing(
            sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0)
        ) as connection:
            # SQLite opens the log at the first read.
            connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
