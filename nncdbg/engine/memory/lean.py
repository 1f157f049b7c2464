"""The allocation of a watch: results stay where kernels put them, and are checked for NaN and Inf.

The kernels of nncdbg write every element of their results and stay in bounds; its tests verify that. So
their results need no fill or guards, and a NaN cannot originate at a statement that only moves
elements. Results of `nncdbg.Empty`, and of the kernels of an op library, get the buffers of `debug`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.memory.debug import DebugAllocation
from nncdbg.engine.memory.inspected import INF, NAN
from nncdbg.engine.ops.influence import Content
from nncdbg.stats.inspection import holds, is_finite

_NONFINITE = NAN | INF


class LeanAllocation(DebugAllocation):
    """Checks every result that may contain NaN or Inf; uninitialized reads are reported as in `debug`."""

    name = "lean"
    trusts_kernels = True

    def wrap(self, binding: Binding) -> Execute:
        if binding.node.op == "nncdbg.Empty":
            return super().wrap(binding)
        return self._filling(binding) if binding.op.content is Content.UPDATED else self._running(binding)

    def _running(self, binding: Binding) -> Execute:
        if binding.op.foreign:
            return super()._running(binding)
        return self._moving(binding) if moves(binding) else self._looking(binding)

    def _moving(self, binding: Binding) -> Execute:
        """Return the instruction of a statement that only copies elements of its operands."""
        kernel, unwritten = binding.kernel, self.unwritten.by_id

        def execute(*inputs: Any) -> Any:
            if unwritten:
                self._check_reads(binding, inputs)
            return kernel(*inputs)

        return execute

    def _looking(self, binding: Binding) -> Execute:
        kernel, unwritten, report = binding.kernel, self.unwritten.by_id, self._report_nonfinite

        def execute_one(*inputs: Any) -> Any:
            if unwritten:
                self._check_reads(binding, inputs)
            result = kernel(*inputs)
            if self.watched & _NONFINITE and not is_finite(result):
                report(binding, inputs, 0, result)
            return result

        def execute_several(*inputs: Any) -> Any:
            if unwritten:
                self._check_reads(binding, inputs)
            results = kernel(*inputs)
            for index, result in enumerate(results):
                if self.watched & _NONFINITE and not is_finite(result):
                    report(binding, inputs, index, result)
            return results

        return execute_several if binding.several else execute_one

    def _report_nonfinite(self, binding: Binding, inputs: Sequence[Any], index: int, result: Any) -> None:
        """Report NaN and Inf in a result."""
        for flag, kind in ((NAN, "nan"), (INF, "inf")):
            if flag & self.watched and holds(result, kind):
                self.report(Finding(kind, binding, "", inputs, index, result=result))


def moves(binding: Binding) -> bool:
    """Whether a statement only moves elements, or makes finite constants."""
    if binding.op.content not in (Content.MOVED, Content.CONSTANT):
        return False
    return all(is_finite(np.asarray(value)) for value in binding.attributes.values() if _is_data(value))


def _is_data(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic, float))
