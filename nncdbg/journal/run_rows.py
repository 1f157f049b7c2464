"""The rows of a run, written in the writer thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from nncdbg.ir.records import Array
from nncdbg.journal import blobs, kept_values
from nncdbg.journal.row_types import COLUMNS, Row
from nncdbg.journal.statistics import StatisticsWriter
from nncdbg.journal.transaction import Transaction

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
        self._statistics = StatisticsWriter(self.number)

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

    def statistics(self, transaction: Transaction, name: str, row: bytes) -> None:
        self._statistics.add(transaction, name, row)

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
        size = kept_values.keep(transaction, self.number, step, arrays, codec, self._compression)
        for each in drop(step, size) if drop is not None else ():
            kept_values.remove(transaction, self.number, each)

    def entry(
        self, transaction: Transaction, kind: str, step: int | None, time: float, name: str | None, text: str
    ) -> None:
        transaction.insert("entries", self.number, (None, self.number, kind, step, time, name, text))

    def end(self, transaction: Transaction, status: str, time: float) -> None:
        self._row[_FIELDS["status"]] = status
        self._row[_FIELDS["ended"]] = time
        self._statistics.finish(transaction)
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
        transaction.at_end(self.number, self._update)

    def _update(self, transaction: Transaction) -> None:
        transaction.update("runs", 0, tuple(self._row))
