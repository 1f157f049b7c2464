"""Write a run: its methods hand records to the writer thread, which inserts the rows, and return."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, TypeVar

import numpy as np
from msgspec import Meta
from xxhash import xxh3_128_hexdigest

from nncdbg.dtypes import NUMPY, name_of
from nncdbg.errors import UsageError
from nncdbg.ir.records import Array
from nncdbg.journal import blobs
from nncdbg.journal.blobs import read_json, write_json
from nncdbg.journal.checksums import damaged, verified_rows
from nncdbg.journal.codecs import CODECS, EXACT, CodecError, EncodedTensor, check_codec, decode, encode
from nncdbg.journal.records import COLUMNS, LARGEST, Count, KeptValue, NewRun, Row, this_process
from nncdbg.journal.statistics import StatisticsWriter, packed
from nncdbg.journal.writing import Transaction, WriterThread
from nncdbg.stats import Summary

T = TypeVar("T")

_TABLE = "kept_values"

_AXES = 64
"""Most axes of an array of NumPy."""


def _encoded(array: Array, codec: str) -> tuple[str, Array, CodecError]:
    """Return the codec that was used, the array to store, and the error."""
    if codec != "exact":
        try:
            encoded = encode(array, codec)
        except UsageError:
            # Integers, or elements beyond the range of f16: `used` in the file says so.
            return "exact", array, EXACT
        return codec, np.frombuffer(encoded.data, np.uint8), encoded.error
    return codec, array, EXACT


def kept_value_records(connection: sqlite3.Connection, path: Path, run: int) -> list[KeptValue]:
    """Return the values that are kept of one run, by step and name."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version < 2:
        return []
    rows = verified_rows(connection, path, _TABLE, run)
    return [_record(path, row) for row in sorted(rows, key=lambda row: row[:3])]


def _record(path: Path, row: Row) -> KeptValue:
    step, run, name, codec, dtype, shape, size, absolute, relative, rms, _ = row
    if codec not in CODECS or dtype not in NUMPY or dtype == "str":
        raise damaged(path, f'the value "{name}" has an unknown codec or type')
    error = CodecError(absolute, relative, rms)
    sizes = read_json(path, f'shape of "{name}"', shape, Annotated[list[Count], Meta(max_length=_AXES)])
    return KeptValue(run, step, name, codec, dtype, tuple(sizes), size, error)


def load_kept_value(connection: sqlite3.Connection, path: Path, record: KeptValue) -> Array:
    """Return a value that is kept.  Raises LoadError if it is damaged."""
    rows = verified_rows(connection, path, _TABLE, record.run)
    digest = next(row[-1] for row in rows if row[0] == record.step and row[2] == record.name)
    stored = blobs.load(connection, path, record.name, digest)
    if record.codec == "exact":
        if (name_of(stored.dtype), stored.shape) != (record.dtype, record.shape):
            raise damaged(path, f'the value "{record.name}" has another type than its record')
        return stored
    encoded = EncodedTensor(record.codec, record.dtype, record.shape, stored.tobytes(), record.error)
    try:
        array = decode(encoded)
    except UsageError as error:
        raise damaged(path, f'the value "{record.name}" cannot be decoded: {error.message}') from None
    array.flags.writeable = False
    return array


_FIELDS = {name: number for number, name in enumerate(COLUMNS["runs"])}


class RunRows:
    """Inserts the records of a run; its methods are called with the transaction in the writer thread."""

    def __init__(self, row: Row, compression: str) -> None:
        self._compression = compression
        self.number: int = row[0]
        self._row = list(row)
        self._parent_step: int = row[_FIELDS["parent_step"]] or 0
        self._last_step = -1
        self._tracks: dict[tuple[str, str], list[int]] = {}
        self.statistics = StatisticsWriter(self.number)

    def step(
        self,
        transaction: Transaction,
        step: int,
        epoch: int | None,
        seconds: float | None,
        values: Sequence[tuple[str, str, float]],
    ) -> None:
        put = transaction.add if step > self._last_step else transaction.replace
        put("steps", self.number, (self.number, step, epoch, seconds))
        self._last_step = max(self._last_step, step)
        self._raise("steps", step + 1, transaction)
        if epoch is not None:
            self._raise("epochs", epoch + 1, transaction)
        for name, part, number in values:
            self.value(transaction, name, part, step, number)

    def value(self, transaction: Transaction, name: str, part: str, step: int, number: float) -> None:
        track = self._tracks.get((name, part))
        if track is None:
            key = transaction.insert("tracks", self.number, (None, self.number, name, part))
            track = self._tracks[name, part] = [key, -1]
        put = transaction.add if step > track[1] else transaction.replace
        put("points", track[0], (track[0], step, number + 0.0 if number == number else None))
        track[1] = max(track[1], step)

    def checkpoint(self, transaction: Transaction, record: Row, tensors: Mapping[str, Array]) -> None:
        step, epoch, seconds, position = record
        size = sum(array.nbytes for array in tensors.values())
        row = (None, self.number, step, epoch, seconds, size, position)
        number = transaction.insert("checkpoints", self.number, row)
        for name, array in tensors.items():
            digest = blobs.store(transaction, array, self._compression)
            transaction.add("checkpoint_tensors", number, (number, name, digest))

    def remove_checkpoint(self, transaction: Transaction, step: int) -> None:
        connection = transaction.connection
        numbers = connection.execute(
            "SELECT checkpoint FROM checkpoints WHERE run = ? AND step = ?", (self.number, step)
        ).fetchall()
        for (number,) in numbers:
            digests = connection.execute(
                "SELECT DISTINCT hash FROM checkpoint_tensors WHERE checkpoint = ?", (number,)
            ).fetchall()
            transaction.delete("checkpoint_tensors", number)
            transaction.delete("checkpoints", self.number, number)
            blobs.remove_unused(transaction, [digest for (digest,) in digests])

    def keep_values(
        self,
        transaction: Transaction,
        step: int,
        arrays: Mapping[str, Array],
        codec: str,
        drop: Callable[[int, int], Iterable[int]] | None,
    ) -> None:
        """Store the values of a step instead of earlier ones of the same step.

        A tensor that the codec cannot store is stored exactly.
        """
        self._remove_kept_values(transaction, step)
        rows: list[Row] = []
        for name, array in arrays.items():
            used, stored, error = _encoded(array, codec)
            digest = blobs.store(transaction, stored, self._compression)
            figures = (error.absolute, error.relative, error.rms)
            dtype, shape = name_of(array.dtype), json.dumps(array.shape)
            rows.append((step, self.number, name, used, dtype, shape, stored.nbytes, *figures, digest))
        transaction.insert_rows(_TABLE, self.number, rows)
        for dropped in drop(step, sum(row[6] for row in rows)) if drop is not None else ():
            self._remove_kept_values(transaction, dropped)

    def _remove_kept_values(self, transaction: Transaction, step: int) -> None:
        """Delete the values of a step; their space in the file is used again."""
        found = transaction.connection.execute(
            f"SELECT DISTINCT hash FROM {_TABLE} WHERE run = ? AND step = ?", (self.number, step)
        ).fetchall()
        if found:
            transaction.delete(_TABLE, self.number, step)
            blobs.remove_unused(transaction, [digest for (digest,) in found])

    def entry(
        self, transaction: Transaction, kind: str, step: int | None, time: float, name: str | None, text: str
    ) -> None:
        transaction.insert("entries", self.number, (None, self.number, kind, step, time, name, text))

    def end(self, transaction: Transaction, status: str, time: float) -> None:
        self._row[_FIELDS["status"]] = status
        self._row[_FIELDS["ended"]] = time
        self.statistics.finish(transaction)
        self._changed(transaction)

    def remove(self, transaction: Transaction) -> None:
        """Delete the rows of a run without steps: its checkpoints, its remarks and itself."""
        found = transaction.connection.execute("SELECT step FROM checkpoints WHERE run = ?", (self.number,))
        for (step,) in found.fetchall():
            self.remove_checkpoint(transaction, step)
        transaction.delete("entries", self.number)
        transaction.delete("runs", 0, self.number)
        transaction.at_end(self.number, lambda _: None)

    def _raise(self, field: str, number: int, transaction: Transaction) -> None:
        if number > self._row[_FIELDS[field]]:
            self._row[_FIELDS[field]] = number
            self._changed(transaction)

    def _changed(self, transaction: Transaction) -> None:
        transaction.at_end(self.number, lambda last: last.update("runs", 0, tuple(self._row)))


ENDS = ("ended", "failed", "interrupted")


class RunWriter:
    """A run that is being written; `number` is its number in the file.

    Records are committed together, four times per second, and each checkpoint at once.  All methods raise
    the error of an earlier commit, such as a full disk, and UsageError after `end` or in a child process.
    As a context manager, it ends the run: as failed after an exception, as interrupted after Ctrl-C.
    """

    def __init__(self, thread: WriterThread, new: NewRun, compression: str) -> None:
        self._thread = thread
        self._started = time.time()
        self._ended = False
        self._rows: RunRows = thread.call(_start, new, self._started, compression)
        self.number = self._rows.number

    def step(
        self,
        number: int,
        *,
        epoch: int | None = None,
        seconds: float | None = None,
        values: Iterable[tuple[str, float, str]] = (),
    ) -> None:
        """Record that a step ran: its number, its epoch (both from 0), and how long it took.

        `values` are tracked values (name, number, part), which are in the file as soon as the step is.
        """
        points = [(_text(name), _text(part), float(value)) for name, value, part in values]
        self._put(self._rows.step, _count(number), _optional(_count, epoch), seconds, points)

    def value(self, name: str, step: int, number: float, part: str = "train") -> None:
        """Record a tracked value of a step; a second one of the same step replaces the first."""
        self._put(self._rows.value, _text(name), _text(part), _count(step), float(number))

    def statistics(self, step: int, value_name: str, summary: Summary) -> None:
        """Record the statistics of a value at a step."""
        self._put(self._rows.statistics.add, _text(value_name), packed(_count(step), summary))

    def checkpoint(
        self,
        step: int,
        *,
        epoch: int | None = None,
        position: Mapping[str, Any],
        tensors: Mapping[str, Any],
    ) -> None:
        """Record the state before `step` ran; the arrays must not change afterwards.

        `position` is a JSON object; `tensors` are arrays by name.  If more than 2 GiB wait to be written,
        the call waits.  Raises UsageError for another array or object.
        """
        arrays = _contiguous(tensors)
        seconds = time.time() - self._started
        record = (_count(step), _optional(_count, epoch), seconds, write_json(position, "position"))
        self._put(self._rows.checkpoint, record, arrays, size=_size(arrays), durable=True)

    def remove_checkpoint(self, step: int) -> None:
        """Delete the checkpoints of this run at a step; their space in the file is used again."""
        self._put(self._rows.remove_checkpoint, _count(step))

    def keep_values(
        self,
        step: int,
        values: Mapping[str, Any],
        *,
        codec: str = "exact",
        drop: Callable[[int, int], Iterable[int]] | None = None,
    ) -> None:
        """Record values of a step for history, by name, instead of earlier ones of the same step.

        The arrays must not change afterwards.  The writer thread encodes them by a codec of
        `nncdbg.journal.codecs`; what the codec cannot store is stored exactly.  `drop` receives the step and
        the number of bytes, in that thread, and returns earlier steps whose values are deleted.  Raises
        UsageError for an unknown codec, and for another object than an array of numbers.
        """
        check_codec(codec)
        arrays = _contiguous(values)
        self._put(self._rows.keep_values, _count(step), arrays, codec, drop, size=_size(arrays))

    def note(self, text: str, step: int | None = None) -> None:
        """Record a remark of the user."""
        self._entry("note", step, None, text)

    def command(self, text: str, step: int | None = None) -> None:
        """Record a command that was executed at a stop."""
        self._entry("command", step, None, text)

    def edit(self, name: str, step: int | None, text: str) -> None:
        """Record that `set` changed a value: its name, and the text of the new value."""
        self._entry("edit", step, name, text)

    def event(self, kind: str, step: int | None, message: str) -> None:
        """Record an event of a run: "nan", "inf", "received", "spike", "exception", "signal" or another."""
        self._entry("event", step, kind, message)

    def flush(self) -> None:
        """Wait until all earlier records are committed."""
        self._thread.flush()

    def end(self, status: str = "ended") -> None:
        """Record the end of the run ("ended", "failed" or "interrupted") and wait for the commit."""
        if status not in ENDS:
            raise UsageError(
                f'a run cannot end with the status "{status}"', hint=f"use one of {', '.join(ENDS)}"
            )
        self._finish(self._rows.end, status, time.time())

    def remove(self) -> None:
        """Delete the run, of which no step has been recorded, and wait for the commit."""
        self._finish(self._rows.remove)

    def _finish(self, function: Any, *arguments: Any) -> None:
        self._put(function, *arguments)
        self._ended = True
        self._thread.flush()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        failed = "interrupted" if kind is not None and issubclass(kind, KeyboardInterrupt) else "failed"
        self.end("ended" if kind is None else failed)

    def _entry(self, kind: str, step: int | None, name: str | None, text: str) -> None:
        place = _optional(_count, step), time.time(), _optional(_text, name)
        self._put(self._rows.entry, kind, *place, _text(text))

    def _put(self, function: Any, *arguments: Any, **options: Any) -> None:
        if self._ended:
            raise UsageError(f"run {self.number} has ended", hint="start another run, or a fork of this one")
        self._thread.put(function, *arguments, **options)


def _start(transaction: Transaction, new: NewRun, started: float, compression: str) -> RunRows:
    connection, program = transaction.connection, None
    if new.program is not None:
        text = _text(new.program)
        program = xxh3_128_hexdigest(text.encode())
        if not connection.execute("SELECT 1 FROM programs WHERE hash = ?", (program,)).fetchone():
            transaction.add("programs", 0, (program, text))
    if (new.parent is None) != (new.parent_step is None):
        raise UsageError("a fork needs both `parent` and `parent_step`")
    if new.parent is not None:
        step = new.parent_step or 0
        found = connection.execute("SELECT steps FROM runs WHERE run = ?", (new.parent,)).fetchone()
        if found is None:
            raise UsageError(f"there is no run {new.parent} to fork")
        if not 0 <= step <= found[0]:
            raise UsageError(f"run {new.parent} has no step {step} to fork at: it has {found[0]} steps")
    writer = this_process()
    head = (None, new.parent, new.parent_step, _text(new.kind), _text(new.name), "running", started, None)
    details = (
        *(new.parent_step or 0, 0, new.seed, write_json(new.configuration, "configuration")),
        *(write_json(new.versions, "versions"), json.dumps([_text(word) for word in new.command]), program),
        *(writer.host, writer.boot, writer.process, writer.started),
    )
    number = transaction.insert("runs", 0, (*head, *details))
    return RunRows((number, *head[1:], *details), compression)


def _count(number: int) -> int:
    number = int(number)
    if number < 0:
        raise UsageError(f"steps and epochs count from 0, not from {number}")
    if number >= LARGEST:
        raise UsageError(f"{number} is too large for a step or epoch")
    return number


def _optional(convert: Callable[[T], T], value: T | None) -> T | None:
    return None if value is None else convert(value)


def _contiguous(tensors: Mapping[str, Any]) -> dict[str, Array]:
    return {_text(name): blobs.contiguous(name, value) for name, value in tensors.items()}


def _size(arrays: Mapping[str, Array]) -> int:
    """Return the bytes that wait to be written; at least 1, so that they count as tensors."""
    return max(1, sum(array.nbytes for array in arrays.values()))


def _text(text: str) -> str:
    """Return text that SQLite can store; lone surrogates, as in names of files, are escaped."""
    return str(text).encode("utf-8", "backslashreplace").decode()
