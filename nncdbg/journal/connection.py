"""Connections to the file of a journal: its schema, its migrations, the errors of SQLite, and forks."""

from __future__ import annotations

import ctypes
import os
import sqlite3
import stat
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nncdbg.errors import LoadError, NncdbgError, RunError, UsageError
from nncdbg.journal.checksums import damaged
from nncdbg.journal.log_files import bytes_on_disk, empty_log, has_log, remove_empty_log

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


def check_tables(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Raise LoadError if a table, index or view is not exactly the one of a version.

    The file may have other plain tables with their indexes.  Triggers, views and virtual tables would run
    statements of others when the file is read or written, so they are refused.
    """
    found = connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
    ).fetchall()
    expected = {
        sql: sql.split()[2]
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


WAIT = 60.0
"""Seconds to wait for the transaction of another process; a large checkpoint takes some."""

_INSTRUCTIONS = (10_000_000, 32)
"""Most instructions of SQLite for a reading: so many, and so many more for each byte of the file.

A row has several bytes and takes a few instructions.  A file whose pages refer to each other in a circle or
again and again takes more.
"""

_INTERVAL = 10_000
"""Instructions of SQLite between two moments when a reading can be stopped."""

_LONGEST = 256 << 20
"""Most bytes of a value in a row."""

_WAL_BYTES = 64 << 20
"""The write-ahead log is copied into the file when it has this size, and then shortened to it."""


class Database:
    """One connection, and its lock, which a fork of the process acquires too.

    In a child process the connection cannot be used: SQLite's locks belong to the parent.
    A connection that reads is also closed when it is collected, and at the end of the process.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, *, writes: bool) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._connection: sqlite3.Connection | None = connection
        self._process = os.getpid()
        close = _close_writer if writes else _close_reader
        self._finalizer = weakref.finalize(self, close, path, connection, self.lock)
        self._finalizer.atexit = not writes
        _OPEN.add(self)

    @property
    def is_open(self) -> bool:
        """Whether the connection can be used in this process."""
        return self._connection is not None and self._process == os.getpid()

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection.  Raises UsageError if it is closed, and in a child process."""
        if self._process != os.getpid():
            raise UsageError(
                f"the journal {self.path} was opened before the process forked",
                hint="open it again in the child process",
            )
        if self._connection is None:
            raise UsageError(f"the journal {self.path} is closed")
        return self._connection

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Enter a transaction that reads one state of the file; errors of SQLite become ours."""
        with self.lock, explained(self.path, "read"):
            connection = self.connection
            if connection.in_transaction:
                yield connection
                return
            with _bounded(connection, self.path), _one_state(connection):
                yield connection

    def close(self) -> None:
        """Close the connection; in a child process, leave it as it is."""
        with self.lock:
            self._connection = None
            if self._process == os.getpid():
                self._finalizer()

    def _abandon(self) -> None:
        # Even closing the connection in the child could delete the log that the parent writes.
        self._finalizer.detach()
        if self._connection is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
            self._connection = None


def _close_writer(_: Path, connection: sqlite3.Connection, lock: threading.RLock) -> None:
    with lock:
        empty_log(connection)
        connection.close()


def _close_reader(path: Path, connection: sqlite3.Connection, lock: threading.RLock) -> None:
    """Close a connection that reads, unless another thread uses it at the end of the process."""
    if lock.acquire(blocking=False):
        try:
            connection.close()
        finally:
            lock.release()
        remove_empty_log(path)


_OPEN: weakref.WeakSet[Database] = weakref.WeakSet()
_HELD: list[Database] = []


def is_open(path: Path) -> bool:
    """Return whether this process has a connection to a file, which must then not be opened in other ways."""
    return path.exists() and any(
        database.is_open and database.path.exists() and path.samefile(database.path) for database in _OPEN
    )


def _before_fork() -> None:
    _HELD.extend(_OPEN)
    for database in _HELD:
        database.lock.acquire()


def _after_fork(*, child: bool) -> None:
    for database in _HELD:
        if child:
            database._abandon()
        database.lock.release()
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _after_fork(child=False),
        after_in_child=lambda: _after_fork(child=True),
    )


def open_to_read(path: Path) -> Database:
    """Open an existing journal.  Raises UsageError for a missing file, LoadError for an unreadable one."""
    check_file(path)
    with explained(path, "read"):
        connection = connect(path, "ro")
        try:
            with _bounded(connection, path):
                connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
        except sqlite3.OperationalError as error:
            connection.close()
            # In a folder where no files can be created, SQLite reads the file only without its log.
            if error.sqlite_errorname not in _UNWRITABLE or has_log(path):
                raise
            connection = connect(path, "ro&immutable=1")
        try:
            with _bounded(connection, path), _one_state(connection):
                version = version_of(connection, path)
                if version == 0:
                    raise no_journal(path, "it has no tables")
                check_tables(connection, path, version)
        except BaseException:
            connection.close()
            remove_empty_log(path)
            raise
    return Database(path, connection, writes=False)


@contextmanager
def _bounded(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Raise LoadError if the block takes more instructions than the content of the file explains."""
    least, per_byte = _INSTRUCTIONS
    left = (least + per_byte * bytes_on_disk(path)) // _INTERVAL

    def passed() -> int:
        nonlocal left
        left -= 1
        return left < 0

    connection.set_progress_handler(passed, _INTERVAL)
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorname", "") != "SQLITE_INTERRUPT":
            raise
        # SQLite reports Ctrl-C in the handler in the same way.
        raise (damaged(path, "its tables have no end") if left < 0 else KeyboardInterrupt) from None
    finally:
        connection.set_progress_handler(None, 0)


@contextmanager
def _one_state(connection: sqlite3.Connection) -> Iterator[None]:
    """Read one state of the file in the block, whatever other processes write."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.rollback()


def open_to_write(path: Path) -> Database:
    """Open a journal for writing; create it, or migrate it from an older version.

    Raises UsageError if the file cannot be written, LoadError if it is another file or a newer version.
    """
    if path.exists() and path.stat().st_size:
        check_file(path)
    if not path.parent.is_dir():
        raise UsageError(f"cannot create the journal {path}: the folder {path.parent} does not exist")
    with explained(path, "write"):
        connection = connect(path, "rwc")
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
    return Database(path, connection, writes=True)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    with _one_state(connection):
        version = version_of(connection, path)
    if version == 0:
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    _use_log(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_BYTES // PAGE_SIZE}")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = version_of(connection, path)
        if version == 0:
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            for sql in TABLES:
                connection.execute(sql)
        if version < VERSION:
            for number in sorted(ADDED):
                for sql in ADDED[number] if number > version else ():
                    connection.execute(sql)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        check_tables(connection, path, VERSION)
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def _use_log(connection: sqlite3.Connection) -> None:
    """Change to the write-ahead log; SQLite does not wait if another process does the same."""
    end = time.monotonic() + WAIT
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > end:
                raise
            time.sleep(0.01)


def connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=WAIT)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
    query_only = "OFF" if mode == "rwc" else "ON"
    for pragma in ("trusted_schema = OFF", "cell_size_check = ON", f"query_only = {query_only}"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def check_file(path: Path) -> None:
    """Raise UsageError for a missing or unreadable file, LoadError for an empty one.

    The file is not opened: when a process closes a file, it loses all its locks on the file, also those of
    SQLite, and another process could then delete the log that this one writes.
    """
    failed = f"cannot open the journal {path}"
    try:
        status = path.stat()
    except FileNotFoundError:
        raise UsageError(f"{failed}: no such file") from None
    except OSError as error:
        raise UsageError(f"{failed}: {error.strerror or error}") from None
    if stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{failed}: it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise LoadError(f"{failed}: it is not a regular file", hint="copy its content into a file")
    for beside in ("-wal", "-shm", "-journal"):
        file = path.with_name(f"{path.name}{beside}")
        if file.exists() and not file.is_file():
            raise LoadError(f"{failed}: {file.name} is not a regular file", hint="remove that file")
    if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise UsageError(f"{failed}: permission denied")
    if not status.st_size:
        raise no_journal(path, "it is empty")


_UNWRITABLE = frozenset(
    {"SQLITE_CANTOPEN", "SQLITE_READONLY_DIRECTORY", "SQLITE_READONLY_CANTINIT", "SQLITE_READONLY_RECOVERY"}
)


@contextmanager
def explained(path: Path, verb: str) -> Iterator[None]:
    """Convert errors of SQLite: UsageError, LoadError or RunError that says what `verb` failed, and why."""
    try:
        yield
    except sqlite3.Error as error:
        raise _explanation(path, verb, error) from None
    except UnicodeDecodeError:
        # The message of SQLite quotes bytes of the file.
        raise damaged(path, "its text is not UTF-8") from None


def _explanation(path: Path, verb: str, error: sqlite3.Error) -> NncdbgError:
    code = getattr(error, "sqlite_errorname", "")
    if code == "SQLITE_NOTADB":
        return no_journal(path, "it is not an SQLite database")
    failed = f"cannot {verb} the journal {path}"
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return RunError(
            f"{failed}: another process has locked it for {WAIT:.0f} seconds",
            hint="wait until the other process has written its checkpoint, or use another file",
        )
    if code == "SQLITE_READONLY_ROLLBACK":
        return damaged(path, f"{path.name}-journal has an unfinished transaction")
    if code == "SQLITE_FULL":
        return RunError(f"{failed}: the disk or a limit on the file's size is full")
    if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        if verb == "read" and has_log(path):
            hint = (
                f"copy {path.name} and {path.name}-wal to a folder that can be written, and read them there"
            )
            return UsageError(f"{failed}: its folder cannot be written, and it was not closed", hint=hint)
        return UsageError(
            f"{failed}: the file or its folder cannot be {'written' if verb == 'write' else 'read'}"
        )
    if verb == "write" and code.startswith("SQLITE_IOERR"):
        return RunError(f"{failed}: {error} ({code.removeprefix('SQLITE_').lower()})")
    return damaged(path, str(error))


def is_damage(error: Exception) -> bool:
    """Return whether an error of SQLite comes from the content of the file, not from the query."""
    code = getattr(error, "sqlite_errorname", "")
    return code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR")) or "Could not decode" in str(
        error
    )
