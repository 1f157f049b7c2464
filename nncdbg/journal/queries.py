"""SQL on a journal: only reading, and only rows that match their checksums."""

from __future__ import annotations

import json
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

from nncdbg.engine.errors import NncdbgError, UsageError
from nncdbg.journal import blobs
from nncdbg.journal.checksums import verify_table
from nncdbg.journal.connection import Database, is_damage, open_to_read
from nncdbg.journal.statistics import FIELDS, read_statistics

_VIEW = f"""CREATE TEMP VIEW statistics AS
  SELECT run, name, json_extract(value, '$[0]') AS step,
  {", ".join(f"json_extract(value, '$[{n}]') AS {field}" for n, field in enumerate(FIELDS, 1))}
  FROM measured, json_each(_statistics_rows(run, name))"""

_READING = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)

_PRAGMAS = frozenset({"table_info", "table_xinfo", "table_list", "index_list", "index_info"})

_STEPS = 100_000
"""Instructions of SQLite's machine between two moments when Ctrl-C can stop a query."""


class Queries:
    """A connection for queries, with the view `statistics`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: Database = open_to_read(path)
        self._tables: set[str] = set()
        self._failure: Exception | None = None
        connection = self._database.connection
        connection.create_function("_statistics_rows", 2, self._statistics_rows)
        connection.execute("PRAGMA query_only = OFF")
        connection.execute(_VIEW)
        connection.execute("PRAGMA query_only = ON")
        self._verified: dict[str, int] = {}
        """The state of the file in which each table was verified."""

    def execute(self, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return the names of the columns, and the rows.

        Raises UsageError with the message of SQLite for a wrong query; LoadError if a table that the query
        reads is damaged.
        """
        if not query.strip():
            raise UsageError("cannot run the query: it is empty")
        with self._database.snapshot() as connection:
            self._tables.clear()
            self._failure = None
            connection.set_authorizer(self._authorize)
            with suppress(sqlite3.Error, sqlite3.Warning):
                # Only to learn the tables; the query itself reports its errors.
                connection.execute(f"EXPLAIN {query}")
            connection.set_authorizer(None)
            self._verify(connection)
            # A query may take any time; Ctrl-C stops it.
            connection.set_progress_handler(lambda: 0, _STEPS)
            connection.set_authorizer(self._authorize)
            try:
                cursor = connection.execute(query)
                names = [column[0] for column in cursor.description or ()]
                return names, cursor.fetchall()
            except (sqlite3.Error, sqlite3.Warning) as error:
                if self._failure is not None:
                    raise self._failure from None
                if is_damage(error) or getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT":
                    raise
                raise _wrong_query(error) from None
            finally:
                connection.set_authorizer(None)

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_READ and first:
            self._tables.add(first)
        allowed = action in _READING or (action == sqlite3.SQLITE_PRAGMA and first in _PRAGMAS)
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def _verify(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        for table in sorted(self._tables):
            if self._verified.get(table) != version:
                verify_table(connection, self._path, table)
                if table == "chunks":
                    blobs.verify_all(connection, self._path)
                self._verified[table] = version

    def _statistics_rows(self, run: int, name: str) -> str:
        try:
            rows = read_statistics(self._database.connection, self._path, run, name)
        except (NncdbgError, sqlite3.Error) as error:
            self._failure = error
            raise
        return json.dumps([[_number(figure) for figure in row] for row in rows.tolist()])


def _number(figure: float | int) -> float | int | None:
    return figure if figure == figure else None


def _wrong_query(error: Exception) -> UsageError:
    message = str(error)
    if "not authorized" in message or "prohibited" in message:
        return UsageError(f"cannot run the query: {message}", hint="a query can only read: begin with SELECT")
    return UsageError(
        f"cannot run the query: {message}",
        hint="some tables and views: runs, steps, track_values, statistics, checkpoints, notes, events",
    )
