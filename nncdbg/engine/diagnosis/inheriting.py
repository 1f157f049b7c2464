"""Marks through a composite op without a row of its own: they are carried through its formula.

The formula runs once more over the operands of that moment, on NumPy and on a machine of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.compilation.linking import Allocation, Binding, Execute, Linker
from nncdbg.engine.diagnosis.step import Step, step_of
from nncdbg.engine.errors import NncdbgError
from nncdbg.engine.execution.events import Ended
from nncdbg.engine.execution.launch import Loaded, generator_of
from nncdbg.engine.execution.machine import Machine, Running
from nncdbg.engine.observers.nonfinite import array_of
from nncdbg.engine.ops import Op
from nncdbg.engine.ops.influence import EVERYTHING


def inherits(op: Op) -> bool:
    """Whether the influence of an op is that of its formula, if it has one."""
    return op.influence is EVERYTHING


@dataclass(slots=True)
class Formulas:
    """Runs the formulas of a program's statements; `carry` is called with each statement of them."""

    program: Loaded
    carry: Callable[[Step], None]
    known: Callable[[Any], Any]
    _running: Running = field(default_factory=Running)
    _loaded: Loaded = field(init=False)

    def __post_init__(self) -> None:
        linker = Linker(NumPy(), Allocation(), generator_of(self._running, 0), follow=self._follow)
        self._loaded = Loaded(self.program.program, self.program.listing, linker)

    def run(self, step: Step) -> Sequence[Any] | None:
        """The results of the statement's formula; None where it has none for these operands, or fails."""
        binding, operands = step.binding, step.application.operands
        try:
            formula = self._loaded.formula_for(binding.code, binding.pc, operands)
            if formula is None:
                return None
            given = [value for value in operands if value is not None]
            machine = Machine(formula, given, self._loaded.call, self._running)
            ended = isinstance(machine.run(), Ended)
        except NncdbgError:
            return None  # There is no formula for these operands, so the op is looked at as a whole.
        frame = machine.frames[0]
        results = [array_of(value) for value in frame.code.operands_of(-1, frame.slots)] if ended else []
        same = len(results) >= len(step.application.results)
        pairs = zip(results, step.application.results, strict=False)
        return results if same and all(np.shape(a) == np.shape(b) for a, b in pairs) else None

    def _follow(self, binding: Binding, execute: Execute) -> Execute:
        def followed(*inputs: Any) -> Any:
            results = execute(*inputs)
            known = [self.known(value) for value in inputs]
            if any(known):
                self.carry(step_of(binding, inputs, results if binding.several else (results,), known))
            return results

        return followed
