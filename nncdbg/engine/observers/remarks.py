"""Remarks about the results of statements while a program runs, each statement once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from nncdbg.engine.backends.composed import run_definition
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.ops.causes import RuleFailed, contained
from nncdbg.engine.ops.remarks import Evaluated
from nncdbg.errors import NncdbgError
from nncdbg.ir.records import Literal
from nncdbg.text.rounding import lost

MOST_WORK = 1 << 31
"""Maximum multiplications and elements of statements that are computed again in one run."""


def _rounded(literal: Literal, array: Any) -> str:
    """Return what the element type of a number in the text loses; empty for bools and texts."""
    given = np.asarray(literal.data)
    return lost(given.astype(np.float64), array, "the number") if given.dtype.kind in "if" else ""


class Remarks:
    """Collects what ops say about their results; `found` has the words of each statement."""

    def __init__(self, failed: Callable[[RuleFailed], None]) -> None:
        self.found: dict[tuple[Code, int], str] = {}
        self.failed = failed
        self._work = 0

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return the instruction with the remark of its op, or `execute` itself without one."""
        find = binding.op.remark
        code, pc = place = binding.code, binding.pc
        for operand, slot in zip(binding.node.inputs, code.operands[pc], strict=True):
            words = _rounded(operand, code.template[slot]) if isinstance(operand, Literal) else ""
            if words:
                self.found[place] = words
        if find is None:
            return execute
        slots = [code.template[slot] for slot in code.operands[pc]]
        constants = {number for number, value in enumerate(slots) if isinstance(value, np.ndarray)}

        def remarked(*inputs: Any) -> Any:
            results = execute(*inputs)
            if place not in self.found:
                result = results[0] if binding.several else results
                seen = self._evaluated(binding, inputs, result, constants)
                words = contained(self.failed, binding.op.name, "remark", find, seen)
                if words:
                    self.found[place] = words
            return results

        return remarked

    def _evaluated(
        self, binding: Binding, inputs: Sequence[Any], result: Any, constants: Collection[int]
    ) -> Evaluated:
        op, shapes = binding.op, [np.shape(each) for each in inputs]
        terms = 0 if op.terms is None else op.terms(shapes, np.shape(result))

        def again(operands: Sequence[Any]) -> Any:
            self._work += np.size(result) * max(terms, 1) + sum(map(np.size, operands))
            if self._work > MOST_WORK:
                return None
            try:
                return run_definition(binding.code, binding.pc, operands)[0]
            except NncdbgError:
                return None

        return Evaluated(binding.attributes, inputs, result, constants, terms, again)
