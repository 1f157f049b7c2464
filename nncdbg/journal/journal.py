"""The class `Journal`: the runs of one file, read and written; SQL and data frames."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from nncdbg.errors import NncdbgError, UsageError
from nncdbg.ir.records import Array
from nncdbg.journal import blobs
from nncdbg.journal.blobs import read_json
from nncdbg.journal.checksums import damaged, verified_rows, verify_table
from nncdbg.journal.codecs import NONE, CodecError, compressor
from nncdbg.journal.connection import Database, is_damage, open_to_read
from nncdbg.journal.records import (
    COLUMNS,
    Checkpoint,
    CheckpointRecord,
    KeptValue,
    NewRun,
    Row,
    Run,
    RunCommand,
    RunEdit,
    RunEvent,
    RunNote,
    StoredTensors,
    Writer,
)
from nncdbg.journal.run_writer import RunWriter, kept_value_records, load_kept_value
from nncdbg.journal.statistics import FIELDS, names_of, read_statistics
from nncdbg.journal.writing import WriterThread
from nncdbg.representation import RichOutput
from nncdbg.text.counting import listed

_SHOWN = 10
"""Most runs, tracks, steps or names in a hint."""

LIBRARIES = ("pandas", "polars")


def _columns(journal: Journal, run: Run | int | None) -> dict[str, NDArray[Any]]:
    found = journal.run(run.number if not isinstance(run, int) and run is not None else run)
    steps = journal.steps(found)
    tracks = {pair: journal.values(found, *pair) for pair in journal.tracks(found)}
    index = np.unique(np.concatenate([steps["step"], *(each[0] for each in tracks.values())]))
    rows = np.searchsorted(index, steps["step"])
    epochs = np.full(len(index), -1, np.int64)
    epochs[rows] = steps["epoch"]
    columns = {"step": index, "epoch": epochs, "seconds": _spread(index, steps["step"], steps["seconds"])}
    for (name, part), (at, numbers) in tracks.items():
        title = name if part == "train" and name not in columns else f"{name} ({part})"
        columns[title] = _spread(index, at, numbers)
    return columns


def _spread(index: NDArray[Any], steps: NDArray[Any], numbers: NDArray[Any]) -> NDArray[Any]:
    column = np.full(len(index), np.nan)
    column[np.searchsorted(index, steps)] = numbers
    return column


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
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            for table in sorted(self._tables):
                if self._verified.get(table) != version:
                    verify_table(connection, self._path, table)
                    if table == "chunks":
                        blobs.verify_all(connection, self._path)
                    self._verified[table] = version
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

    def _statistics_rows(self, run: int, name: str) -> str:
        try:
            rows = read_statistics(self._database.connection, self._path, run, name)
        except (NncdbgError, sqlite3.Error) as error:
            self._failure = error
            raise
        return json.dumps([[figure if figure == figure else None for figure in row] for row in rows.tolist()])


def _wrong_query(error: Exception) -> UsageError:
    message = str(error)
    if "not authorized" in message or "prohibited" in message:
        return UsageError(f"cannot run the query: {message}", hint="a query can only read: begin with SELECT")
    return UsageError(
        f"cannot run the query: {message}",
        hint="some tables and views: runs, steps, track_values, statistics, checkpoints, notes, events",
    )


T = TypeVar("T")


def _before(rows: NDArray[Any], step: int) -> NDArray[Any]:
    return rows[rows["step"] < step]


class Journal(RichOutput):
    """The runs of a file, read at any time, also while another process writes.

    Every method reads one state of the file, and raises LoadError if what it reads is not what was written.
    Methods with a `run` accept a `Run`, its number, or None for the last run.  Values, checkpoints and
    statistics of a fork include those of its parents before the fork.
    """

    def __init__(self, path: Path, *, write: bool = False, compression: str = NONE) -> None:
        self.path = path
        self._compression = compression
        compressor(compression)
        self._thread = WriterThread(path) if write else None
        self._database: Database = open_to_read(path)
        self._queries: Queries | None = None

    # -- runs ---------------------------------------------------------------------------------------

    def runs(self) -> list[Run]:
        """Return all runs by number."""
        with self._database.snapshot() as connection:
            return [*self._runs(connection).values()]

    def run(self, number: int | None = None) -> Run:
        """Return a run by number, or the last one.  Raises UsageError with the numbers of all runs."""
        return self._run_of(number)

    def program(self, run: Run | int | None = None) -> str | None:
        """Return the program of a run as text; None if it was started without."""
        with self._database.snapshot() as connection:
            number = self._run_of(run).number
            rows = verified_rows(connection, self.path, "runs")
            row = next(row for row in rows if row[0] == number)
            digest = row[COLUMNS["runs"].index("program")]
            if digest is None:
                return None
            texts: dict[str, str] = dict(verified_rows(connection, self.path, "programs"))
            if digest not in texts:
                raise damaged(self.path, f"the program of run {number} is missing")
            return texts[digest]

    # -- steps and values ---------------------------------------------------------------------------

    def steps(self, run: Run | int | None = None) -> NDArray[Any]:
        """Return the steps as a structured array with the fields `step`, `epoch` and `seconds`.

        `epoch` is -1 and `seconds` is NaN for a step without.
        """

        def read(connection: sqlite3.Connection, number: int) -> NDArray[Any]:
            rows = verified_rows(connection, self.path, "steps", number)
            kept = [(step, -1 if e is None else e, np.nan if s is None else s) for _, step, e, s in rows]
            return np.array(kept, [("step", np.int64), ("epoch", np.int64), ("seconds", np.float64)])

        return np.concatenate(self._with_parents(run, read, _before))

    def tracks(self, run: Run | int | None = None) -> list[tuple[str, str]]:
        """Return the (name, part) of each tracked value, in the order of their first values."""
        parts = self._with_parents(run, self._tracks_of, lambda tracks, _: tracks)
        return list(dict.fromkeys(pair for part in parts for pair, _ in part))

    def values(
        self, run: Run | int | None, name: str, part: str = "train"
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the steps and the numbers of a tracked value.  Raises UsageError for an unknown one."""
        with self._database.snapshot():
            if (name, part) not in (tracks := self.tracks(run)):
                raise UsageError(
                    f'run {self._run_of(run).number} has no tracked value "{name}" of the part "{part}"',
                    hint=f"it has {listed([f'{name} ({part})' for name, part in tracks], _SHOWN, 'none')}",
                )
            parts = self._with_parents(
                run, lambda connection, number: self._points(connection, number, name, part), _before
            )
            points = np.concatenate(parts)
            return points["step"].copy(), points["value"].copy()

    def measured(self, run: Run | int | None = None) -> list[str]:
        """Return the names of the values with statistics."""
        parts = self._with_parents(
            run, lambda connection, number: [*names_of(connection, self.path, number)], lambda names, _: names
        )
        return [*dict.fromkeys(name for part in parts for name in part)]

    def statistics(
        self, run: Run | int | None, value: str, *, first: int | None = None, last: int | None = None
    ) -> NDArray[Any]:
        """Return the statistics of a value by step, as a structured array with the fields of `Summary`.

        `first` and `last` bound the steps, both inclusive.  Older steps are kept in part only.
        """
        parts = self._with_parents(
            run, lambda connection, number: read_statistics(connection, self.path, number, value), _before
        )
        rows = np.concatenate(parts)
        if first is not None:
            rows = rows[rows["step"] >= first]
        return rows if last is None else rows[rows["step"] <= last]

    def kept_values(self, run: Run | int | None = None, name: str | None = None) -> list[KeptValue]:
        """Return what is kept for history of all values, or of one, by step."""
        parts = self._with_parents(
            run,
            lambda connection, number: kept_value_records(connection, self.path, number),
            lambda records, before: [record for record in records if record.step < before],
        )
        return [each for part in parts for each in part if name is None or each.name == name]

    def value_of(self, run: Run | int | None, name: str, step: int) -> tuple[Array, CodecError]:
        """Return a value of a step that is kept for history, read-only, and its measured error.

        Raises UsageError with the steps that are kept if it is not one of them.
        """
        with self._database.snapshot() as connection:
            kept = self.kept_values(run)
            same = {record.step: record for record in kept if record.name == name}
            if step not in same:
                steps = [str(record.step) for record in kept if record.name == name]
                names = dict.fromkeys(record.name for record in kept)
                raise UsageError(
                    f'run {self._run_of(run).number} keeps no value of "{name}" at step {step}',
                    hint=f"it keeps the steps {listed(steps, _SHOWN)}"
                    if steps
                    else f"it keeps {listed([*names], _SHOWN, 'none')}",
                )
            return load_kept_value(connection, self.path, same[step]), same[step].error

    # -- checkpoints --------------------------------------------------------------------------------

    def checkpoints(self, run: Run | int | None = None) -> list[CheckpointRecord]:
        """Return the checkpoints by step."""

        def read(connection: sqlite3.Connection, number: int) -> list[CheckpointRecord]:
            rows = verified_rows(connection, self.path, "checkpoints", number)
            return sorted(map(_checkpoint, rows), key=lambda record: (record.step, record.number))

        # A checkpoint at the step of the fork is the state before it, which the fork shares.
        parts = self._with_parents(
            run, read, lambda records, fork: [record for record in records if record.step <= fork]
        )
        return [record for part in parts for record in part]

    def nearest(self, run: Run | int | None, step: int) -> CheckpointRecord | None:
        """Return the last checkpoint at or before the start of a step."""
        earlier = [record for record in self.checkpoints(run) if record.step <= step]
        return earlier[-1] if earlier else None

    def read(self, record: CheckpointRecord) -> Checkpoint:
        """Return a checkpoint, whose tensors are read on access.  Raises UsageError if it was removed."""
        with self._database.snapshot() as connection:
            rows = verified_rows(connection, self.path, "checkpoints", record.run)
            row = next((row for row in rows if row[0] == record.number), None)
            if row is None or _checkpoint(row) != record:
                raise UsageError(f"the checkpoint of run {record.run} at step {record.step} was removed")
            tensors = verified_rows(connection, self.path, "checkpoint_tensors", record.number)
        hashes = {name: digest for _, name, digest in tensors}
        position = read_json(self.path, f"position of the checkpoint at step {record.step}", row[6])
        return Checkpoint(record.step, record.epoch, position, StoredTensors(hashes, self._tensor))

    # -- remarks ------------------------------------------------------------------------------------

    def notes(self, run: Run | int | None = None) -> list[RunNote]:
        """Return the notes of a run, in the order in which they were written."""
        return [RunNote(run, step, when, text) for run, step, when, _, text in self._entries(run, "note")]

    def commands(self, run: Run | int | None = None) -> list[RunCommand]:
        """Return the commands that were executed in a run."""
        entries = self._entries(run, "command")
        return [RunCommand(run, step, when, text) for run, step, when, _, text in entries]

    def edits(self, run: Run | int | None = None) -> list[RunEdit]:
        """Return the values that were changed in a run."""
        return [RunEdit(*entry) for entry in self._entries(run, "edit")]

    def events(self, run: Run | int | None = None) -> list[RunEvent]:
        """Return the events of a run."""
        return [RunEvent(*entry) for entry in self._entries(run, "event")]

    # -- tables -------------------------------------------------------------------------------------

    def sql(self, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Execute a query that only reads; return the names of its columns, and its rows.

        docs/JOURNAL.md lists tables and views.  Raises UsageError with the message of SQLite.
        """
        if self._queries is None:
            self._queries = Queries(self.path)
        return self._queries.execute(query)

    def frame(self, run: Run | int | None = None, library: str = "pandas") -> Any:
        """Return the tracked values as a data frame of pandas or polars, one row per step.

        The columns are `step`, `epoch`, `seconds`, and each track under its name, or as ``name (part)`` for
        another part than "train".  A step without a value has NaN.  Raises UsageError without the library.
        """
        if library not in LIBRARIES:
            raise UsageError(f'no data frames of the library "{library}"', hint="use pandas or polars")
        try:
            module = import_module(library)
        except ImportError:
            raise UsageError(
                f"{library} is not installed", hint=f'install it: pip install "nncdbg[{library}]"'
            ) from None
        return module.DataFrame(_columns(self, run))

    # -- writing ------------------------------------------------------------------------------------

    def start(self, run_info: NewRun) -> RunWriter:
        """Start a run and return its writer.  Raises UsageError if the journal was opened only to read."""
        if self._thread is None:
            raise UsageError(
                f"the journal {self.path} is open only to read", hint="open it with `write=True`"
            )
        return RunWriter(self._thread, run_info, self._compression)

    def fork(self, run: Run | int | None, step: int, run_info: NewRun) -> RunWriter:
        """Start a run at the start of a step of another one.  Raises UsageError for an unknown step."""
        return self.start(replace(run_info, parent=self._run_of(run).number, parent_step=step))

    def flush(self) -> None:
        """Wait until all records of all runs of this object are committed."""
        if self._thread is not None:
            self._thread.flush()

    def close(self) -> None:
        """Commit all records and close the file."""
        try:
            # The last connection that closes copies the log into the file, which a reader cannot.
            if self._queries is not None:
                self._queries.close()
            self._database.close()
        finally:
            if self._thread is not None:
                self._thread.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- reading parts ------------------------------------------------------------------------------

    def _runs(self, connection: sqlite3.Connection) -> dict[int, Run]:
        """Return all runs by number.

        A fork has a greater number than its parent, so that no chain of parents is endless.
        """
        runs: dict[int, Run] = {}
        for row in verified_rows(connection, self.path, "runs"):
            run = _run(self.path, row)
            if run.parent is not None and run.parent not in runs:
                raise damaged(self.path, f"run {run.number} cannot be a fork of run {run.parent}")
            if (run.parent is None) != (run.parent_step is None):
                raise damaged(self.path, f"run {run.number} has only a part of the place of a fork")
            runs[run.number] = run
        return runs

    def _run_of(self, run: Run | int | None) -> Run:
        with self._database.snapshot() as connection:
            return self._chosen(run, self._runs(connection))

    def _chosen(self, run: Run | int | None, runs: dict[int, Run]) -> Run:
        if not runs:
            raise UsageError(f"the journal {self.path} has no runs")
        number = run.number if isinstance(run, Run) else run
        if number is None:
            return runs[max(runs)]
        if number not in runs:
            raise UsageError(
                f"the journal {self.path} has no run {number}",
                hint=f"it has the run{'s' * (len(runs) > 1)} {listed([*map(str, runs)], _SHOWN)}",
            )
        return runs[number]

    def _with_parents(
        self,
        run: Run | int | None,
        read: Callable[[sqlite3.Connection, int], T],
        before: Callable[[T, int], T],
    ) -> list[T]:
        """Call `read` for the oldest parent first; `before` cuts off the steps after a fork."""
        with self._database.snapshot() as connection:
            runs = self._runs(connection)
            current = self._chosen(run, runs)
            parts = [read(connection, current.number)]
            end: int | None = None
            while current.parent is not None:
                step = current.parent_step or 0
                end = step if end is None else min(end, step)
                current = self._chosen(current.parent, runs)
                parts.append(before(read(connection, current.number), end))
            return parts[::-1]

    def _tracks_of(self, connection: sqlite3.Connection, run: int) -> list[tuple[tuple[str, str], int]]:
        rows = verified_rows(connection, self.path, "tracks", run)
        return [((name, part), track) for track, _, name, part in rows]

    def _points(self, connection: sqlite3.Connection, run: int, name: str, part: str) -> NDArray[Any]:
        track = dict(self._tracks_of(connection, run)).get((name, part))
        rows = verified_rows(connection, self.path, "points", track) if track is not None else []
        points = [(step, np.nan if value is None else value) for _, step, value in rows]
        return np.array(points, [("step", np.int64), ("value", np.float64)])

    def _entries(self, run: Run | int | None, kind: str) -> list[Any]:
        with self._database.snapshot() as connection:
            rows = verified_rows(connection, self.path, "entries", self._run_of(run).number)
        return [
            (run, step, datetime.fromtimestamp(time), name, text)
            for _, run, found, step, time, name, text in rows
            if found == kind
        ]

    def _tensor(self, name: str, digest: bytes) -> Array:
        with self._database.snapshot() as connection:
            return blobs.load(connection, self.path, name, digest)


_DOCUMENTS = {"configuration": dict[str, Any], "versions": dict[str, str], "command": list[str]}
"""The columns of a run with JSON, and their types."""


def _run(path: Path, row: Row) -> Run:
    fields = dict(zip(COLUMNS["runs"], row, strict=True))
    status = fields["status"]
    writer = Writer(fields["host"], fields["boot"], fields["process"], fields["process_started"])
    ended = fields["ended"]
    return Run(
        number=fields["run"],
        status="lost" if status == "running" and writer.gone else status,
        started=datetime.fromtimestamp(fields["started"]),
        ended=None if ended is None else datetime.fromtimestamp(ended),
        **{
            name: read_json(path, f"{name} of run {fields['run']}", fields[name], kind)
            for name, kind in _DOCUMENTS.items()
        },
        **{
            name: fields[name]
            for name in ("parent", "parent_step", "kind", "name", "steps", "epochs", "seed")
        },
    )


def _checkpoint(row: Row) -> CheckpointRecord:
    return CheckpointRecord(*row[:6])
