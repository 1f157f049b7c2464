"""Statistics and findings of results of backends with their own values.

Results in host memory are inspected in place, as NumPy arrays are.  The statistics of results on a device
stay there until the log is read: only `catch` waits for the ten numbers of each result, because a NaN must
stop the program at the statement that made it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np

from nncdbg.engine.backends import Backend, CompiledStatements
from nncdbg.engine.execution.findings import Finding, Report
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.execution.statistics_log import CAPACITY, COLUMNS, MASK, ROW_BYTES, StatisticsLog
from nncdbg.engine.observers.observation import Observer
from nncdbg.engine.ops.aten.operators import FLOATS
from nncdbg.ir.records import TensorType
from nncdbg.stats.inspection import FiniteTests, Flag

NAN_COLUMN, INF_COLUMNS = 4, slice(5, 7)

_NUMERIC = int(Flag.NAN | Flag.INF)
"""The flags of findings that this observer reports, with the operands of their statements."""


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
            self._backend.wait()  # Statements of other streams write to it, too.
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


class DeviceObserver(Observer):
    """An observer that reads results in host memory, and keeps other statistics on the device.

    Results that hold only elements of an operand are not inspected: no NaN originates in them, and their
    statistics are computed when they are read.
    """

    def __init__(self, backend: Backend, report: Report, log: DeviceStatisticsLog | None) -> None:
        self._compiled_inspection: Any = None
        super().__init__(report, log)
        self._backend = backend
        self._device_log = log
        self._row: Any = None
        """Destination of the statistics of a result without a log, on the device."""
        self._finite_tests = FiniteTests()
        self._flags_of = self._checked if log is None else self._logging(log)

    @property
    def watched(self) -> int:
        """Return the flags of `stats.inspection` to report."""
        return self._watched

    @watched.setter
    def watched(self, flags: int) -> None:
        self._watched = flags
        if self._compiled_inspection is not None:
            self._compiled_inspection.watched = flags & _NUMERIC

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        if binding.views:
            return execute
        compiled = self._backend.compiled_statements()
        if compiled is not None and isinstance(execute, compiled.Kernel):
            if self._compiled_inspection is None:
                self._compiled_inspection = self._inspection_of(compiled)
                self._compiled_inspection.watched = self._watched & _NUMERIC
            observed: Execute = compiled.Observed(execute, binding, self._compiled_inspection)
            return observed
        return super().wrap(binding, execute)

    def wrap_origins(self, binding: Binding, execute: Execute) -> Execute:
        compiled = self._backend.compiled_statements()
        own = compiled is not None and isinstance(execute, compiled.Kernel)
        return execute if own and _stays_finite(binding) else self.wrap(binding, execute)

    def _inspection_of(self, compiled: CompiledStatements) -> Any:
        """Return the compiled form of `_inspect`; it does itself what `_flags_of` does."""
        log = self._device_log
        if log is None:
            return compiled.Inspection(self._inspect, self._finite_tests, self._report_watched)
        return compiled.Inspection(
            self._inspect,
            self._inspectors,
            self._report_watched,
            log.positions.take,
            log.results,
            log.written,
            log.address,
            ROW_BYTES,
            MASK,
        )

    def _report_watched(self, binding: Binding, inputs: Any, index: int, result: Any, flags: int) -> None:
        if flags & self.watched:
            self._report(binding, inputs, index, result, flags)

    def _observing(self, binding: Binding, execute: Execute) -> Execute:
        inspect = self._inspect

        def observed(*inputs: Any) -> Any:
            result = execute(*inputs)
            inspect(binding, inputs, 0, result)
            return result

        return observed

    def _inspect(self, binding: Binding, inputs: Any, index: int, result: Any) -> None:
        place = self._backend.memory(result)
        if place is not None:
            self._report_watched(binding, inputs, index, result, self._flags_of(result, *place))
        elif isinstance(result, (np.ndarray, np.generic)) or not hasattr(result, "dtype"):
            if self._device_log is not None:
                self._device_log.written.discard(self._device_log.positions.written & MASK)
            super()._inspect(binding, inputs, index, result)
        else:
            self._inspect_on_device(binding, inputs, index, result)

    def _checked(self, result: Any, address: int, count: int) -> int:
        """Return the flags of a result in host memory."""
        is_finite = self._finite_tests[result.dtype]
        if is_finite is None or not address:
            return self._inspect_plainly(self._backend.to_host(result), -1)
        if is_finite(address, count):
            return 0
        compiled = self._inspectors[result.dtype]
        assert compiled is not None, "a finite test is compiled with its inspector"
        return compiled(address, count, 0, 0)

    def _logging(self, log: DeviceStatisticsLog) -> Callable[[Any, int, int], int]:
        """Return a function that logs the statistics of a result in host memory, and returns its flags."""
        take, results, rows, written = log.positions.take, log.results, log.address, log.written
        inspectors = self._inspectors

        def logged(result: Any, address: int, count: int) -> int:
            number = take() & MASK
            results[number] = ref(result)
            if written:
                written.discard(number)
            compiled = inspectors[result.dtype]
            if compiled is None or not address:
                return self._inspect_plainly(self._backend.to_host(result), number)
            return compiled(address, count, 0, rows + number * ROW_BYTES)

        return logged

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


_FINITE_IN_ALL = 240
"""No type of floats has an Inf for a number up to this one: the largest f8e4m3fnuz is 240."""


def _stays_finite(binding: Binding) -> bool:
    """Return whether results of the backend's kernel are NaN or Inf only because of such operands."""
    op, node = binding.op, binding.node
    given = [value for value in binding.attributes.values() if value is not None]
    if op.keeps_finite:
        numbers = (each for each in given if isinstance(each, (float, complex)))
        return bool(node.inputs) and all(abs(each) <= _FINITE_IN_ALL for each in numbers)
    if op.harmless_number is None or len(node.inputs) != 1 or len(given) != 1:
        return False
    floats = all(isinstance(each.type, TensorType) and each.type.dtype in FLOATS for each in node.outputs)
    return floats and type(given[0]) in (int, float) and op.harmless_number(given[0])
