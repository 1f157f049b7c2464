"""Statistics and findings where the allocator does not inspect: results are looked at, never touched."""

from __future__ import annotations

from typing import Any
from weakref import ref

import numpy as np

from nncdbg.engine.dtypes import name_of
from nncdbg.engine.findings import Finding, Report
from nncdbg.engine.linking import Binding, Execute
from nncdbg.engine.statistics_log import MASK, ROW_BYTES, StatisticsLog
from nncdbg.stats import summarize
from nncdbg.stats.inspection import Flag, Inspector, inspector, row_of

# Plain ints: the operators of an IntFlag are slow.
NAN, INF = int(Flag.NAN), int(Flag.INF)
_FINDINGS = ((NAN, "nan"), (INF, "inf"))


class Observer:
    """Wraps an instruction so that the summary of each result is logged and judged."""

    def __init__(self, report: Report, log: StatisticsLog | None) -> None:
        self.report = report
        self.log = log
        self.watched = 0
        self._inspectors: dict[np.dtype[Any], Inspector] = {}

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        def observed_one(*inputs: Any) -> Any:
            result = execute(*inputs)
            self._look(binding, inputs, 0, result)
            return result

        def observed(*inputs: Any) -> Any:
            results = execute(*inputs)
            for index, result in enumerate(results):
                self._look(binding, inputs, index, result)
            return results

        return observed if binding.several else observed_one

    def _look(self, binding: Binding, inputs: Any, index: int, result: Any) -> None:
        if not isinstance(result, (np.ndarray, np.generic)) or result.dtype.hasobject:
            return
        number = -1
        if self.log is not None:
            number = self.log.positions.take() & MASK
            # An element, which NumPy gives for some tensors of no axes, cannot be referred to.
            self.log.results[number] = ref(result) if isinstance(result, np.ndarray) else None
        compiled = self._inspectors.get(result.dtype) or self._inspector(result.dtype)
        found = result.__array_interface__
        if compiled is None or not result.flags.carray or found["strides"] is not None:
            flags = self._look_plainly(result, number)
        else:
            row = self.log.address + number * ROW_BYTES if self.log is not None else 0
            flags = compiled(found["data"][0], result.size, 0, row)
        if flags & self.watched:
            for flag, kind in _FINDINGS:
                if flags & flag & self.watched:
                    self.report(Finding(kind, binding, "", inputs, index, result=result))

    def _inspector(self, dtype: np.dtype[Any]) -> Inspector | None:
        """The compiled inspection of a dtype, kept from the moment it is there."""
        compiled = inspector(name_of(dtype))
        if compiled is not None:
            self._inspectors[dtype] = compiled
        return compiled

    def _look_plainly(self, result: Any, number: int) -> int:
        """What the compiled pass does, for any strides."""
        summary = summarize(result)
        if self.log is not None:
            self.log.rows[number] = row_of(summary)
        return NAN * bool(summary.nan) | INF * bool(summary.posinf or summary.neginf)
