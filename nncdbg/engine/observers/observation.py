"""Statistics and findings for allocators that do not inspect: results are only read."""

from __future__ import annotations

from typing import Any
from weakref import ref

import numpy as np

from nncdbg.engine.execution.findings import Finding, Report
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.execution.statistics_log import MASK, ROW_BYTES, StatisticsLog
from nncdbg.engine.memory.buffers import address_of
from nncdbg.stats import summarize
from nncdbg.stats.inspection import Flag, Inspector, Inspectors, row_of

# Plain ints: the operators of an IntFlag are slow.
NAN, INF = int(Flag.NAN), int(Flag.INF)
_FINDINGS = ((NAN, "nan"), (INF, "inf"))


class Observer:
    """Wraps an instruction to log and check the summary of each result."""

    def __init__(self, report: Report, log: StatisticsLog | None) -> None:
        self.report = report
        self.log = log
        self.watched = 0
        self._inspectors = Inspectors()
        self._cells: dict[type, tuple[Any, int, Inspector]] = {}
        """For each NumPy scalar type, a cell of one element, its address, and the inspection of the dtype."""

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        return (
            self._observing_several(binding, execute)
            if binding.several
            else self._observing(binding, execute)
        )

    def wrap_origins(self, binding: Binding, execute: Execute) -> Execute:
        """Wrap an instruction without a log, if a NaN or Inf may originate in its results."""
        return self.wrap(binding, execute)

    def _observing(self, binding: Binding, execute: Execute) -> Execute:
        """Wrap an instruction with one result; a NumPy scalar is copied to a cell, as it has no address."""
        cells, log = self._cells, self.log
        results, rows = ([None], 0) if log is None else (log.results, log.address)
        position = log.positions.take if log is not None else None

        def observed_one(*inputs: Any) -> Any:
            result = execute(*inputs)
            found = cells.get(type(result))
            if found is None:
                self._inspect(binding, inputs, 0, result)
                return result
            cell, address, compiled = found
            cell[0] = result
            row = 0
            if position is not None:
                number = position() & MASK
                results[number] = None
                row = rows + number * ROW_BYTES
            flags = compiled(address, 1, 0, row)
            if flags & self.watched:
                self._report(binding, inputs, 0, result, flags)
            return result

        return observed_one

    def _observing_several(self, binding: Binding, execute: Execute) -> Execute:

        def observed(*inputs: Any) -> Any:
            results = execute(*inputs)
            for index, result in enumerate(results):
                self._inspect(binding, inputs, index, result)
            return results

        return observed

    def _inspect(self, binding: Binding, inputs: Any, index: int, result: Any) -> None:
        if not isinstance(result, (np.ndarray, np.generic)) or result.dtype.hasobject:
            return
        number = -1
        if self.log is not None:
            number = self.log.positions.take() & MASK
            # NumPy scalars, which NumPy returns for some tensors of no axes, have no weak references.
            self.log.results[number] = ref(result) if isinstance(result, np.ndarray) else None
        compiled = self._inspectors[result.dtype]
        if compiled is not None and isinstance(result, np.generic):
            cell = np.zeros(1, result.dtype)
            self._cells[result.dtype.type] = cell, address_of(cell), compiled
        found = result.__array_interface__
        # The address of a NumPy scalar is that of a copy.
        if compiled is None or isinstance(result, np.generic) or not result.flags.carray or found["strides"]:
            flags = self._inspect_plainly(result, number)
        else:
            row = self.log.address + number * ROW_BYTES if self.log is not None else 0
            flags = compiled(found["data"][0], result.size, 0, row)
        if flags & self.watched:
            self._report(binding, inputs, index, result, flags)

    def _report(self, binding: Binding, inputs: Any, index: int, result: Any, flags: int) -> None:
        for flag, kind in _FINDINGS:
            if flags & flag & self.watched:
                self.report(Finding(kind, binding, "", inputs, index, result=result))

    def _inspect_plainly(self, result: Any, number: int) -> int:
        """Do the work of the compiled pass, for any strides."""
        summary = summarize(result)
        if self.log is not None:
            self.log.rows[number] = row_of(summary)
        return NAN * bool(summary.nan) | INF * bool(summary.posinf or summary.neginf)
