"""Changes of journals that have right checksums afterwards, as someone makes them who attacks a reader."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from nncdbg.journal.checksums import KEYS, sum_of
from nncdbg.journal.records import COLUMNS


def _rewrite_checksums(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM checksums")
    for table, columns in COLUMNS.items():
        rows = connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
        parts: dict[Any, list[Any]] = {}
        for row in rows:
            parts.setdefault(row[columns.index(KEYS[table])] if table in KEYS else 0, []).append(row)
        for key, part in parts.items():
            try:
                total = sum_of(table, part)
            except (TypeError, ValueError, OverflowError):
                total = 0
            total -= (1 << 64) * (total >= 1 << 63)
            connection.execute("INSERT INTO checksums VALUES (?, ?, ?)", (f"{table} {key}", len(part), total))


def _changed(path: Path, change: Callable[[sqlite3.Connection], None]) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        change(connection)
        _rewrite_checksums(connection)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def by_sql(*statements: str) -> Callable[[Path], None]:
    """Return a function that executes statements of SQL."""

    def execute(connection: sqlite3.Connection) -> None:
        for statement in statements:
            connection.execute(statement)

    return lambda path: _changed(path, execute)


def in_positions(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Return a function that changes the position of each checkpoint in place."""

    def execute(connection: sqlite3.Connection) -> None:
        for number, text in connection.execute("SELECT checkpoint, position FROM checkpoints").fetchall():
            position = json.loads(text)
            change(position)
            row = (json.dumps(position), number)
            connection.execute("UPDATE checkpoints SET position = ? WHERE checkpoint = ?", row)

    return lambda path: _changed(path, execute)
