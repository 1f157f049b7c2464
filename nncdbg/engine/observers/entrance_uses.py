"""Uses of bad inputs and constants with a finite result, such as 0 of 1 / Inf.

A use that gives NaN or Inf shows in the result. The other uses are found only if an input or a constant is
bad: then the operands of each statement are compared, by identity, with the bad values known so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from nncdbg.by_identity import ByIdentity
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.execution.findings import Finding, Report
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.observers.nonfinite import KINDS, bad_in


class EntranceUses:
    """Reports statements with a bad operand and without such a result; `to_host` converts a value."""

    def __init__(self, report: Report, to_host: Callable[[Any], Any]) -> None:
        self.report = report
        self.to_host = to_host
        self._known: ByIdentity[tuple[str, ...]] = ByIdentity()
        """The kinds of bad elements in each value."""

    def look(self, inputs: Iterable[Any], codes: Iterable[Code]) -> bool:
        """Inspect the inputs and the constants of blocks; return whether one of them is bad."""
        for value in (*inputs, *(each for code in codes for each in code.template)):
            if isinstance(self.to_host(value), (np.ndarray, np.generic)):
                self._note(value)
        return bool(len(self._known))

    def _note(self, value: Any) -> tuple[str, ...]:
        host = self.to_host(value)
        kinds = tuple(kind for kind in KINDS if bad_in(host, kind) is not None)
        if kinds:
            self._known.set(value, kinds)
        return kinds

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return the instruction with the comparison of its operands."""
        known = self._known

        def used(*inputs: Any) -> Any:
            results = execute(*inputs)
            given = {kind for value in inputs for kind in known.get(value) or ()}
            if given:
                outputs = results if binding.several else (results,)
                given -= {kind for value in outputs for kind in self._note(value)}
                for kind in given:
                    self.report(Finding(kind, binding, "", inputs, 0, result=outputs[0]))
            return results

        return used
