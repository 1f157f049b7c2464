"""One commit of the writer thread: rows are inserted together at its end, with their checksums."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from nncdbg.journal.checksums import KEYS, Sums
from nncdbg.journal.row_types import COLUMNS, Row


class Transaction:
    """The changes of one commit."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._sums = Sums()
        self._rows: dict[tuple[str, int], list[Row]] = {}
        self._last: dict[int, Callable[[Transaction], None]] = {}
        self.committed: list[Callable[[], object]] = []

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

    def after_commit(self, function: Callable[[], object]) -> None:
        """Call a function when the transaction is committed."""
        self.committed.append(function)

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
