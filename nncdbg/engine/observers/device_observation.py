"""Statistics and findings of results on a device: rows stay there until the log is read.

Only `catch` waits for the ten numbers of each result, because a NaN must stop the program at the
statement that made it.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

import numpy as np

from nncdbg.engine.backends import Backend
from nncdbg.engine.execution.findings import Finding, Report
from nncdbg.engine.execution.linking import Binding
from nncdbg.engine.execution.statistics_log import CAPACITY, COLUMNS, MASK, StatisticsLog
from nncdbg.engine.observers.observation import Observer
from nncdbg.stats.inspection import Flag

NAN_COLUMN, INF_COLUMNS = 4, slice(5, 7)


class DeviceStatisticsLog(StatisticsLog):
    """A log with rows that are written on the device and copied to `rows` when the log is read."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend
        self.block = backend.to_device(np.full((CAPACITY, COLUMNS), np.nan))
        self.written: set[int] = set()
        """The rows on the device that are not copied yet."""

    def row_of(self, array: Any) -> list[float] | None:
        self.fetch()
        return super().row_of(array)

    def fetch(self) -> None:
        """Copy new rows from the device to the host in one transfer, and wait for it."""
        if self.written:
            numbers = sorted(self.written)
            self.rows[numbers] = self._backend.to_host(self.block)[numbers]
            self.written.clear()


class DeviceObserver(Observer):
    """An observer that keeps the statistics on the device of the results."""

    def __init__(self, backend: Backend, report: Report, log: DeviceStatisticsLog | None) -> None:
        super().__init__(report, log)
        self._backend = backend
        self._device_log = log
        self._row = backend.to_device(np.full(COLUMNS, np.nan))
        """Destination of the statistics of a result without a log."""

    def _inspect(self, binding: Binding, inputs: Any, index: int, result: Any) -> None:
        if result is None or isinstance(result, (list, tuple, np.ndarray, np.generic)):
            if self._device_log is not None:
                self._device_log.written.discard(self._device_log.positions.written & MASK)
            super()._inspect(binding, inputs, index, result)
            return
        row = self._row
        if self._device_log is not None:
            number = self._device_log.positions.take() & MASK
            self._device_log.results[number] = ref(result)
            self._device_log.written.add(number)
            row = self._device_log.block[number]
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
