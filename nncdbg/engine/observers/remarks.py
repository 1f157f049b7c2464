"""Remarks about the results of statements while a program runs, each statement once."""

from __future__ import annotations

from typing import Any

import numpy as np

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.execution.linking import Binding, Execute


class Remarks:
    """Collects what ops say about their results; `found` has the words of each statement."""

    def __init__(self) -> None:
        self.found: dict[tuple[Code, int], str] = {}

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return the instruction with the remark of its op, or `execute` itself without one."""
        find = binding.op.remark
        if find is None:
            return execute
        code, pc = place = binding.code, binding.pc
        slots = [code.template[slot] for slot in code.operands[pc]]
        constants = {number for number, value in enumerate(slots) if isinstance(value, np.ndarray)}

        def remarked(*inputs: Any) -> Any:
            results = execute(*inputs)
            if place not in self.found:
                words = find(
                    binding.attributes, inputs, results[0] if binding.several else results, constants
                )
                if words:
                    self.found[place] = words
            return results

        return remarked
