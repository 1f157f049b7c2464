"""Statistics and findings of results of backends with their own values.

Results in host memory are inspected in place, as NumPy arrays are.  The statistics of results on a device
stay there until the log is read: only `catch` waits for the ten numbers of each result, because a NaN must
stop the program at the statement that made it.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from nncdbg.engine.backends import Backend
from nncdbg.engine.execution.findings import Finding, Report
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.execution.statistics_log import CAPACITY, COLUMNS, MASK, ROW_BYTES, StatisticsLog
from nncdbg.engine.observers.observation import Observer
from nncdbg.stats.inspection import Flag

NAN_COLUMN, INF_COLUMNS = 4, slice(5, 7)

_FEW = 256
"""Elements up to which an inspection costs less than a search for an earlier one."""


class DeviceStatisticsLog(StatisticsLog):
    """A log with rows that may be written on the device and copied to `rows` when the log is read."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend
        self._block: Any = None
        self.written: set[int] = set()
        """The rows on the device that are not copied yet."""

    def on_device(self, number: int) -> Any:
        """Return row `number` on the device, to be written there."""
        if self._block is None:
            self._block = self._backend.to_device(np.full((CAPACITY, COLUMNS), np.nan))
        self.written.add(number)
        return self._block[number]

    def row_of(self, array: Any) -> list[float] | None:
        self.fetch()
        return super().row_of(array)

    def fetch(self) -> None:
        """Copy new rows from the device to the host in one transfer, and wait for it."""
        if self.written:
            numbers = sorted(self.written)
            self.rows[numbers] = self._backend.to_host(self._block)[numbers]
            self.written.clear()


class _Inspected(NamedTuple):
    """An inspected result; while it lives, its memory is unchanged, because kernels write to no operand."""

    result: ref[Any]
    address: int
    elements: int
    dtype: Any
    position: int
    flags: int


class DeviceObserver(Observer):
    """An observer that reads results in host memory, and keeps other statistics on the device."""

    def __init__(self, backend: Backend, report: Report, log: DeviceStatisticsLog | None) -> None:
        super().__init__(report, log)
        self._backend = backend
        self._device_log = log
        self._row: Any = None
        """Destination of the statistics of a result without a log, on the device."""
        self._latest: dict[int, _Inspected] = {}
        """The latest inspected result of each owner of memory."""

    def _observing(self, binding: Binding, execute: Execute) -> Execute:
        inspect = self._inspect

        def observed(*inputs: Any) -> Any:
            result = execute(*inputs)
            inspect(binding, inputs, 0, result)
            return result

        return observed

    def _inspect(self, binding: Binding, inputs: Any, index: int, result: Any) -> None:
        if isinstance(result, (np.ndarray, np.generic)) or not hasattr(result, "dtype"):
            if self._device_log is not None:
                self._device_log.written.discard(self._device_log.positions.written & MASK)
            super()._inspect(binding, inputs, index, result)
            return
        memory = self._backend.memory(result)
        if memory is None:
            self._inspect_on_device(binding, inputs, index, result)
            return
        flags = self._inspect_in_place(result, *memory)
        if flags & self.watched:
            self._report(binding, inputs, index, result, flags)

    def _inspect_in_place(self, result: Any, address: int, count: int, owner: int) -> int:
        """Log the statistics of a result in host memory, and return its flags."""
        log, position, row = self._device_log, -1, 0
        if log is not None:
            position = log.positions.take()
            number = position & MASK
            log.results[number] = ref(result)
            log.written.discard(number)
            row = log.address + number * ROW_BYTES
        compiled = self._inspectors[result.dtype]
        if compiled is None or not address:
            return self._inspect_plainly(self._backend.to_host(result), position & MASK)
        if count <= _FEW:
            return compiled(address, count, 0, row)
        latest = self._latest.get(owner)
        if latest is not None and latest[1:4] == (address, count, result.dtype) and self._holds(latest):
            if log is not None:
                log.rows[position & MASK] = log.rows[latest.position & MASK]
            return latest.flags
        flags = compiled(address, count, 0, row)
        if len(self._latest) > CAPACITY:
            self._latest.clear()
        self._latest[owner] = _Inspected(ref(result), address, count, result.dtype, position, flags)
        return flags

    def _holds(self, latest: _Inspected) -> bool:
        """Return whether an inspected result still lives, and its row is still in the log."""
        log = self._device_log
        # The newest position, already taken, is that of the result which is inspected now.
        return latest.result() is not None and (
            log is None or log.positions.written - latest.position <= CAPACITY
        )

    def _inspect_on_device(self, binding: Binding, inputs: Any, index: int, result: Any) -> None:
        log = self._device_log
        if log is not None:
            number = log.positions.take() & MASK
            log.results[number] = ref(result)
            row = log.on_device(number)
        else:
            if self._row is None:
                self._row = self._backend.to_device(np.full(COLUMNS, np.nan))
            row = self._row
        self._backend.summarize(result, row)
        if self.watched & (Flag.NAN | Flag.INF):
            self._judge(binding, inputs, index, result, self._backend.to_host(row))

    def _judge(self, binding: Binding, inputs: Any, index: int, result: Any, row: Any) -> None:
        for flag, kind, count in (
            (Flag.NAN, "nan", row[NAN_COLUMN]),
            (Flag.INF, "inf", row[INF_COLUMNS].sum()),
        ):
            if count and self.watched & flag:
                self.report(Finding(kind, binding, "", inputs, index, result=result))
