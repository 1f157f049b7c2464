"""Statistics and findings where the allocator does not inspect: results are looked at, never touched."""

from __future__ import annotations

from typing import Any

import numpy as np

from nncdbg.engine.findings import Finding, Report
from nncdbg.engine.linking import Binding, Execute
from nncdbg.engine.statistics_log import MASK, StatisticsLog
from nncdbg.stats import summarize
from nncdbg.stats.inspection import Flag, row_of


class Observer:
    """Wraps an instruction so that the summary of each result is logged and judged."""

    def __init__(self, report: Report, log: StatisticsLog | None) -> None:
        self.report = report
        self.log = log
        self.watched = 0

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        def observed(*inputs: Any) -> Any:
            results = execute(*inputs)
            for index, result in enumerate(results if binding.several else (results,)):
                self._look(binding, inputs, index, result)
            return results

        return observed

    def _look(self, binding: Binding, inputs: Any, index: int, result: Any) -> None:
        if not isinstance(result, (np.ndarray, np.generic)) or result.dtype.hasobject:
            return
        summary = summarize(result)
        if self.log is not None:
            number = self.log.positions.take() & MASK
            self.log.owners[number] = (binding, index)
            self.log.rows[number] = row_of(summary)
        if summary.nan and self.watched & Flag.NAN:
            self.report(Finding("nan", binding, "", inputs, index))
        if (summary.posinf or summary.neginf) and self.watched & Flag.INF:
            self.report(Finding("inf", binding, "", inputs, index))
