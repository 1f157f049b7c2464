"""Writing one run: its methods hand records to the writer thread and return."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from xxhash import xxh3_128_hexdigest

from nncdbg.engine.errors import UsageError
from nncdbg.journal import blobs
from nncdbg.journal.codecs import check_codec
from nncdbg.journal.processes import this_process
from nncdbg.journal.records import NewRun
from nncdbg.journal.row_types import LARGEST
from nncdbg.journal.run_rows import RunRows
from nncdbg.journal.statistics import packed
from nncdbg.journal.stored_json import write_json
from nncdbg.journal.transaction import Transaction
from nncdbg.journal.writing import WriterThread
from nncdbg.stats import Summary

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
        epoch = None if epoch is None else _count(epoch)
        self._put(self._rows.step, _count(number), epoch, seconds, points)

    def value(self, name: str, step: int, number: float, part: str = "train") -> None:
        """Record a tracked value of a step; a second one of the same step replaces the first."""
        self._put(self._rows.value, _text(name), _text(part), _count(step), float(number))

    def statistics(self, step: int, value_name: str, summary: Summary) -> None:
        """Record the statistics of a value at a step."""
        self._put(self._rows.statistics, _text(value_name), packed(_count(step), summary))

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
        arrays = {_text(name): blobs.contiguous(name, value) for name, value in tensors.items()}
        size = sum(array.nbytes for array in arrays.values())
        seconds = time.time() - self._started
        record = (
            _count(step),
            None if epoch is None else _count(epoch),
            seconds,
            write_json(position, "position"),
        )
        self._check()
        self._thread.put(self._rows.checkpoint, record, arrays, size=max(size, 1), durable=True)

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
        arrays = {_text(name): blobs.contiguous(name, value) for name, value in values.items()}
        size = sum(array.nbytes for array in arrays.values())
        self._check()
        self._thread.put(self._rows.keep_values, _count(step), arrays, codec, drop, size=max(size, 1))

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
        self._put(self._rows.end, status, time.time())
        self._ended = True
        self._thread.flush()

    def remove(self) -> None:
        """Delete the run, of which no step has been recorded, and wait for the commit."""
        self._put(self._rows.remove)
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
        named = None if name is None else _text(name)
        self._put(
            self._rows.entry, kind, None if step is None else _count(step), time.time(), named, _text(text)
        )

    def _put(self, function: Any, *arguments: Any) -> None:
        self._check()
        self._thread.put(function, *arguments)

    def _check(self) -> None:
        if self._ended:
            raise UsageError(f"run {self.number} has ended", hint="start another run, or a fork of this one")


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
        _check_parent(transaction, new.parent, new.parent_step or 0)
    writer = this_process()
    head = (None, new.parent, new.parent_step, _text(new.kind), _text(new.name), "running", started, None)
    details = (
        *(new.parent_step or 0, 0, new.seed, write_json(new.configuration, "configuration")),
        *(write_json(new.versions, "versions"), json.dumps([_text(word) for word in new.command]), program),
        *(writer.host, writer.boot, writer.process, writer.started),
    )
    number = transaction.insert("runs", 0, (*head, *details))
    return RunRows((number, *head[1:], *details), compression)


def _check_parent(transaction: Transaction, parent: int, step: int) -> None:
    found = transaction.connection.execute("SELECT steps FROM runs WHERE run = ?", (parent,)).fetchone()
    if found is None:
        raise UsageError(f"there is no run {parent} to fork")
    if not 0 <= step <= found[0]:
        raise UsageError(f"run {parent} has no step {step} to fork at: it has {found[0]} steps")


def _count(number: int) -> int:
    number = int(number)
    if number < 0:
        raise UsageError(f"steps and epochs count from 0, not from {number}")
    if number >= LARGEST:
        raise UsageError(f"{number} is too large for a step or epoch")
    return number


def _text(text: str) -> str:
    """Return text that SQLite can store; lone surrogates, as in names of files, are escaped."""
    return str(text).encode("utf-8", "backslashreplace").decode()
