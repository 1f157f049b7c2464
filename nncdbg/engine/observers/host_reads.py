"""Host reads while a program runs: another number than the recorded one is reported.

Only statements that declare a host read are wrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nncdbg.engine.execution.findings import HOST_READ, Finding, Report
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.values.host_reads import changed_read


class HostReads:
    """Reports findings of the kind `HOST_READ`; `to_host` returns a value as a NumPy array."""

    def __init__(self, report: Report, to_host: Callable[[Any], Any]) -> None:
        self.report = report
        self.to_host = to_host

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return the instruction with the comparison, or `execute` itself for any other op."""
        if not binding.op.host_read:
            return execute

        def compared(*inputs: Any) -> Any:
            results = execute(*inputs)
            result = results[0] if binding.several else results
            sentence = changed_read(binding, self.to_host(result))
            if sentence is not None:
                self.report(Finding(HOST_READ, binding, sentence, inputs, result=result))
            return results

        return compared
