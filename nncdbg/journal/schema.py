"""The tables of a journal, their version, and migrations from older versions."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from nncdbg.engine.errors import LoadError

APPLICATION = 0x6E6E6A31
"""`PRAGMA application_id` of a journal: "nnj1"."""

VERSION = 2
"""`PRAGMA user_version`: the number of the newest schema."""

PAGE_SIZE = 16384
"""As fast for tensors as pages of 64 KiB, and a commit of a few rows writes a quarter of the bytes."""

TABLES: tuple[str, ...] = (
    """CREATE TABLE runs (
  run INTEGER PRIMARY KEY, parent INTEGER, parent_step INTEGER, kind TEXT NOT NULL, name TEXT NOT NULL,
  status TEXT NOT NULL, started REAL NOT NULL, ended REAL, steps INTEGER NOT NULL, epochs INTEGER NOT NULL,
  seed INTEGER, configuration TEXT NOT NULL, versions TEXT NOT NULL, command TEXT NOT NULL, program TEXT,
  host TEXT NOT NULL, boot TEXT NOT NULL, process INTEGER NOT NULL, process_started TEXT NOT NULL)""",
    "CREATE TABLE programs (hash TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE steps (
  run INTEGER, step INTEGER, epoch INTEGER, seconds REAL, PRIMARY KEY (run, step)) WITHOUT ROWID""",
    """CREATE TABLE tracks (
  track INTEGER PRIMARY KEY, run INTEGER NOT NULL, name TEXT NOT NULL, part TEXT NOT NULL,
  UNIQUE (run, name, part))""",
    "CREATE TABLE points (track INTEGER, step INTEGER, value REAL, PRIMARY KEY (track, step)) WITHOUT ROWID",
    """CREATE TABLE checkpoints (
  checkpoint INTEGER PRIMARY KEY, run INTEGER NOT NULL, step INTEGER NOT NULL, epoch INTEGER,
  seconds REAL NOT NULL, bytes INTEGER NOT NULL, position TEXT NOT NULL)""",
    "CREATE INDEX checkpoints_by_run ON checkpoints (run, step)",
    """CREATE TABLE checkpoint_tensors (
  checkpoint INTEGER, name TEXT, hash BLOB NOT NULL, PRIMARY KEY (checkpoint, name)) WITHOUT ROWID""",
    "CREATE INDEX checkpoint_tensors_by_hash ON checkpoint_tensors (hash)",
    """CREATE TABLE blobs (
  blob INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, bytes INTEGER NOT NULL, codec TEXT NOT NULL,
  head BLOB NOT NULL)""",
    """CREATE TABLE chunks (
  chunk INTEGER PRIMARY KEY, blob INTEGER NOT NULL, part INTEGER NOT NULL, data BLOB NOT NULL,
  UNIQUE (blob, part))""",
    """CREATE TABLE entries (
  entry INTEGER PRIMARY KEY, run INTEGER NOT NULL, kind TEXT NOT NULL, step INTEGER, time REAL NOT NULL,
  name TEXT, text TEXT NOT NULL)""",
    "CREATE INDEX entries_by_run ON entries (run)",
    """CREATE TABLE measured (
  measured INTEGER PRIMARY KEY, run INTEGER NOT NULL, name TEXT NOT NULL, UNIQUE (run, name))""",
    """CREATE TABLE statistics_chunks (
  chunk INTEGER PRIMARY KEY, measured INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
  ordinal INTEGER NOT NULL, level INTEGER NOT NULL, rows INTEGER NOT NULL, data BLOB NOT NULL)""",
    "CREATE INDEX statistics_chunks_by_value ON statistics_chunks (measured, ordinal)",
    """CREATE TABLE recent_statistics (
  batch INTEGER PRIMARY KEY, run INTEGER NOT NULL, rows INTEGER NOT NULL, data BLOB NOT NULL)""",
    "CREATE INDEX recent_statistics_by_run ON recent_statistics (run)",
    """CREATE TABLE checksums (
  part TEXT PRIMARY KEY, rows INTEGER NOT NULL, total INTEGER NOT NULL) WITHOUT ROWID""",
    """CREATE VIEW track_values AS
  SELECT run, name, part, step, value FROM points JOIN tracks USING (track)""",
    "CREATE VIEW notes AS SELECT run, step, time, text FROM entries WHERE kind = 'note'",
    "CREATE VIEW commands AS SELECT run, step, time, text FROM entries WHERE kind = 'command'",
    "CREATE VIEW edits AS SELECT run, step, time, name, text FROM entries WHERE kind = 'edit'",
    """CREATE VIEW events AS
  SELECT run, step, time, name AS kind, text AS message FROM entries WHERE kind = 'event'""",
)

ADDED: dict[int, tuple[str, ...]] = {
    2: (
        """CREATE TABLE kept_values (
  step INTEGER, run INTEGER, name TEXT, codec TEXT NOT NULL, dtype TEXT NOT NULL, shape TEXT NOT NULL,
  bytes INTEGER NOT NULL, absolute REAL NOT NULL, relative REAL NOT NULL, rms REAL NOT NULL,
  hash BLOB NOT NULL, PRIMARY KEY (run, step, name)) WITHOUT ROWID""",
        "CREATE INDEX kept_values_by_hash ON kept_values (hash)",
    ),
}
"""The tables and indexes that each version adds to `TABLES`, which are those of version 1.

A file of an older version is read as it is; opened for writing, it gets the tables that it lacks.
"""


def no_journal(path: Path, why: str) -> LoadError:
    """Return the error of a file that is not a journal."""
    return LoadError(
        f"{path} is not a journal: {why}", hint="write one with `nncdbg run MODEL --journal run.db`"
    )


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema version of a journal; 0 for a database without tables.

    Raises LoadError for another database, and for a version newer than `VERSION`.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    has_tables = connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    if not has_tables and not application:
        return 0
    if application != APPLICATION:
        raise no_journal(path, "it is another SQLite database")
    if version > VERSION:
        raise LoadError(
            f"{path} has the schema version {version}, and this nncdbg reads versions up to {VERSION}",
            hint="install a newer nncdbg",
        )
    if version < 1:
        raise LoadError(f"the journal {path} is damaged: its schema version is {version}")
    return int(version)


def _added_after(version: int) -> list[str]:
    return [sql for number in sorted(ADDED) if number > version for sql in ADDED[number]]


def check_tables(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Raise LoadError if a table, index or view is not exactly the one of a version.

    The file may have other plain tables with their indexes.  Triggers, views and virtual tables would run
    statements of others when the file is read or written, so they are refused.
    """
    found = connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
    ).fetchall()
    expected = {
        sql: _object_name(sql)
        for sql in (*TABLES, *(sql for number in ADDED if number <= version for sql in ADDED[number]))
    }
    missing = expected.keys() - {sql for _, name, _, sql in found if expected.get(sql) == name}
    if missing:
        sql = next(each for each in expected if each in missing)
        kind = sql.split()[1].lower()
        raise LoadError(
            f"the journal {path} is damaged: the {kind} {expected[sql]} is not as in schema version {version}"
        )
    tables = {name for sql, name in expected.items() if sql.startswith("CREATE TABLE")}
    for kind, name, table, sql in found:
        plain = kind == "table" and not str(sql).upper().startswith("CREATE VIRTUAL")
        if sql not in expected and not plain and not (kind == "index" and table not in tables):
            raise LoadError(
                f"the journal {path} has the {kind} {name!r}, which nncdbg did not create",
                hint="open the file with sqlite3, review the schema, and drop what is not of nncdbg",
            )


def _object_name(sql: str) -> str:
    """Return the name of the table, index or view that a statement creates."""
    return sql.split()[2]


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables of `VERSION`, in the current transaction."""
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    for sql in (*TABLES, *_added_after(1)):
        connection.execute(sql)


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Add the tables that an older version lacks, in the current transaction."""
    for sql in _added_after(version):
        connection.execute(sql)
    connection.execute(f"PRAGMA user_version = {VERSION}")
