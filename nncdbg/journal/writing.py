"""The thread that writes a journal: it collects records and commits them together, with their checksums."""

from __future__ import annotations

import atexit
import os
import sqlite3
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import sleep
from typing import Any, NamedTuple, TypeVar

from nncdbg.errors import NncdbgError, RunError, UsageError
from nncdbg.journal.checksums import KEYS, Sums
from nncdbg.journal.connection import explained, open_to_write
from nncdbg.journal.records import COLUMNS, Row


class Transaction:
    """The changes of one commit."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._sums = Sums()
        self._rows: dict[tuple[str, int], list[Row]] = {}
        self._last: dict[int, Callable[[Transaction], None]] = {}
        self.committed: list[Callable[[], object]] = []
        """Functions to call when the transaction is committed."""

    def add(self, table: str, key: int, row: Row) -> None:
        """Insert a new row into a part of a table at the end of the transaction."""
        self._rows.setdefault((table, key), []).append(row)

    def replace(self, table: str, key: int, row: Row) -> None:
        """Insert a row, instead of the row with the same first two columns if there is one."""
        self._write(table, key)
        first, second = COLUMNS[table][:2]
        where = f"WHERE {first} = ? AND {second} = ?"
        self._delete(table, key, where, row[:2])
        self.add(table, key, row)

    def insert(self, table: str, key: int, row: Row) -> int:
        """Insert a row at once, with a new number instead of None in its first column; return it."""
        number_column = COLUMNS[table][0]
        (number,) = self.connection.execute(
            f"SELECT coalesce(max({number_column}), 0) + 1 FROM {table}"
        ).fetchone()
        self.connection.execute(_insertion(table), (number, *row[1:]))
        self._sums.add(table, key, [(number, *row[1:])])
        return int(number)

    def insert_rows(self, table: str, key: int, rows: Sequence[Row]) -> None:
        """Insert new rows into a part of a table at once."""
        self.connection.executemany(_insertion(table), rows)
        self._sums.add(table, key, rows)

    def update(self, table: str, key: int, row: Row) -> None:
        """Change the row with the number in the first column of `row`."""
        self._delete(table, key, f"WHERE {COLUMNS[table][0]} = ?", row[:1])
        self.connection.execute(_insertion(table), row)
        self._sums.add(table, key, [row])

    def delete(self, table: str, key: int, number: int | None = None) -> None:
        """Delete the rows of a part, or only the one with a number in its first column."""
        self._write(table, key)
        conditions = {KEYS[table]: key} if table in KEYS else {}
        if number is not None:
            conditions[COLUMNS[table][0]] = number
        where = "WHERE " + " AND ".join(f"{column} = ?" for column in conditions)
        self._delete(table, key, where, tuple(conditions.values()))

    def at_end(self, key: int, finish: Callable[[Transaction], None]) -> None:
        """Call `finish` at the end of the transaction, once per key."""
        self._last[key] = finish

    def finish(self) -> None:
        """Insert the rows that were added, and the checksums."""
        for finish in self._last.values():
            finish(self)
        for table, key in list(self._rows):
            self._write(table, key)
        self._sums.store(self.connection)

    def _write(self, table: str, key: int) -> None:
        rows = self._rows.pop((table, key), None)
        if rows:
            self.insert_rows(table, key, rows)

    def _delete(self, table: str, key: int, where: str, values: Row) -> None:
        columns = ", ".join(COLUMNS[table])
        rows = self.connection.execute(f"SELECT {columns} FROM {table} {where}", values).fetchall()
        if rows:
            self._sums.add(table, key, rows, sign=-1)
            self.connection.execute(f"DELETE FROM {table} {where}", values)


def _insertion(table: str) -> str:
    columns = COLUMNS[table]
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


INTERVAL = 0.25
"""Seconds in which records are collected for one commit."""

MOST_WAITING = 100_000
"""Records that may wait; the call that adds another waits."""

MOST_BYTES = 2 << 30
"""Bytes of tensors that may wait; the call that adds more waits."""

_PAUSE = 0.001

T = TypeVar("T")


class _Work(NamedTuple):
    """A function for the writer thread; `durable` work is on the disk when its commit returns."""

    function: Callable[..., object]
    arguments: tuple[Any, ...]
    size: int
    durable: bool


class WriterThread:
    """The only writer of a file in this process.

    After an error, the records of its commit and all later ones are not written; each later call raises
    the error.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database = open_to_write(path)
        self._process = os.getpid()
        self._waiting: deque[_Work] = deque()
        self._bytes = 0
        self._bytes_lock = threading.Lock()
        self._wake = threading.Event()
        self._urgent = threading.Event()
        self._closing = False
        self._error: NncdbgError | None = None
        self._thread = threading.Thread(target=self._run, name=f"journal {path.name}", daemon=True)
        self._thread.start()
        _OPEN.add(self)

    def put(
        self, function: Callable[..., object], *arguments: Any, size: int = 0, durable: bool = False
    ) -> None:
        """Call a function with a `Transaction` and arguments in the thread, in the order of the calls.

        Raises the error of an earlier commit, and UsageError after `close` or in a child process.
        """
        self._check()
        while len(self._waiting) >= MOST_WAITING or (
            size and self._bytes and self._bytes + size > MOST_BYTES
        ):
            self._urgent.set()
            sleep(_PAUSE)
            self._check()
        if size:
            with self._bytes_lock:
                self._bytes += size
        self._waiting.append(_Work(function, arguments, size, durable))
        if durable:
            self._urgent.set()
        if not self._wake.is_set():
            self._wake.set()

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the thread, commit, and return its result; raise what it raises."""
        results: list[T | NncdbgError] = []

        def work(transaction: Transaction) -> None:
            try:
                results.append(function(transaction, *arguments))
            except UsageError as error:
                results.append(error)

        self.put(work)
        self.flush()
        (result,) = results
        if isinstance(result, NncdbgError):
            raise result
        return result

    def flush(self) -> None:
        """Wait until all earlier records are committed.  Raises the error of a commit."""
        self._check()
        done = threading.Event()
        self.put(lambda transaction: transaction.committed.append(done.set))
        self._urgent.set()
        while not done.wait(0.05):
            self._check()

    def close(self) -> None:
        """Commit all records and end the thread.  Raises the error of a commit."""
        if self._closing or os.getpid() != self._process:
            return
        try:
            self.flush()
        finally:
            self._closing = True
            self._urgent.set()
            self._wake.set()
            self._thread.join()
            self._database.close()

    def _check(self) -> None:
        if os.getpid() != self._process:
            raise UsageError(
                f"the journal {self._path} was opened before the process forked",
                hint="write records only in the process that opened the journal",
            )
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._closing:
            raise UsageError(f"the journal {self._path} is closed")

    # -- in the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait()
            self._urgent.wait(INTERVAL)
            self._urgent.clear()
            self._wake.clear()
            while self._waiting and self._error is None:
                self._commit(self._batch())

    def _batch(self) -> list[_Work]:
        """Take the work of the next commit: up to a checkpoint, which is committed without delay."""
        batch = []
        while self._waiting:
            batch.append(self._waiting.popleft())
            if batch[-1].durable:
                break
        return batch

    def _commit(self, batch: list[_Work]) -> None:
        try:
            with self._database.lock, explained(self._path, "write"):
                finished = self._execute(batch)
        except NncdbgError as error:
            self._error = error
        except MemoryError:
            self._error = RunError(f"cannot write the journal {self._path}: out of memory")
        except Exception as error:  # noqa: BLE001  the caller raises it
            self._error = RunError(f"cannot write the journal {self._path}: {error!r}")
        else:
            for function in finished:
                function()
        with self._bytes_lock:
            self._bytes -= sum(work.size for work in batch)
        if self._error is not None:
            self._waiting.clear()

    def _execute(self, batch: list[_Work]) -> list[Callable[[], object]]:
        connection = self._database.connection
        durable = any(work.durable for work in batch)
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        connection.execute("BEGIN IMMEDIATE")
        try:
            transaction = Transaction(connection)
            for work in batch:
                work.function(transaction, *work.arguments)
            transaction.finish()
            connection.execute("COMMIT")
        except BaseException:
            connection.rollback()
            raise
        return transaction.committed


_OPEN: weakref.WeakSet[WriterThread] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for writer in list(_OPEN):
        try:
            writer.close()
        except NncdbgError as error:
            print(f"error: {error}", file=sys.stderr)
