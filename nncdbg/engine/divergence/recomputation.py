"""Local error of a statement: side A's statement, executed on side B's operands.

If that gives side B's result, the statement computes the same on both sides, and a difference of
its results comes from its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nncdbg.comparison.measure import measure
from nncdbg.comparison.report import NOWHERE, Key
from nncdbg.comparison.tolerance import SAME, Excess, Tolerance
from nncdbg.dtypes import FLOATS, name_of
from nncdbg.engine.backends.mixed_backends import Fallback
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.casting import cast_array
from nncdbg.engine.divergence.sides import ProgramInput, RunTrace, Source, Written, WrittenResult
from nncdbg.engine.execution.linking import Allocation, Binding, Linker
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import version_of


class Recomputation:
    """Executes statements of the program of `debugger` on other operands."""

    def __init__(self, debugger: Debugger, tolerance: Tolerance) -> None:
        self._debugger = debugger
        self._tolerance = tolerance
        backend = debugger.backend
        covers = [] if backend.on_host and backend.name == "numpy" else [Fallback(backend).cover]
        self._linker = Linker(backend, Allocation(), debugger.loaded.linker.generator, covers)
        self._bindings: dict[tuple[Code, int], Binding] = {}

    def results(self, code: Code, pc: int, operands: Sequence[Any], like: Sequence[Any]) -> list[Any] | None:
        """Return the named results on the host; None if the kernel fails or draws random numbers.

        Floats in `operands` are cast to the element type of their counterpart in `like`.
        """
        key = (code, pc)
        if key not in self._bindings:
            self._bindings[key] = self._linker.bind(code, pc, code.nodes[pc])
        binding = self._bindings[key]
        if binding.op.random:
            return None
        backend = self._debugger.backend
        given = [_as(each, other) for each, other in zip(operands, like, strict=True)]
        try:
            with np.errstate(all="ignore"):
                found = binding.kernel(*(each if each is None else backend.to_device(each) for each in given))
        except Exception:  # noqa: BLE001 - a kernel may raise anything on operands of other shapes
            return None
        results = [*found] if binding.several else [found]
        named = zip(code.nodes[pc].outputs, results, strict=False)
        return [backend.to_host(result) for value, result in named if value.name]

    def apart(
        self, code: Code, pc: int, operands: Sequence[Any], found: Sequence[Any], wanted: Sequence[Any]
    ) -> Excess:
        """Return the largest distance of the results on these operands from those of side B."""
        terms = terms_of(code, pc, operands, wanted)
        excesses = [
            measure(NOWHERE, NOWHERE, "place", pair, self._tolerance, terms).excess
            for pair in zip(found, wanted, strict=False)
        ]
        return max(excesses, key=lambda each: (each.significant, each.factor), default=SAME)

    def changes(self, one: Written, like: Sequence[Any], operands: Sequence[Any]) -> bool:
        """Return whether a statement with operands `like` gives other results on `operands`."""
        found = self.results(one.code, one.pc, operands, like)
        return found is not None and self.apart(one.code, one.pc, operands, found, one.contents).significant


def terms_of(code: Code, pc: int, operands: Sequence[Any] | None, results: Sequence[Any]) -> int:
    """Return how many numbers the op of a statement sums per element of its result."""
    node = code.nodes[pc]
    op = lookup(node.op, version_of(node.op, code.opsets))
    if op is None or op.terms is None or not operands or not results:
        return 1
    return op.terms([np.shape(operand) for operand in operands if operand is not None], np.shape(results[0]))


def _as(operand: Any, like: Any) -> Any:
    """Return the operand in the element type of its counterpart, if both are floats."""
    if not isinstance(operand, np.ndarray) or not isinstance(like, np.ndarray) or operand.dtype == like.dtype:
        return operand
    names = [name_of(each.dtype) for each in (operand, like)]
    return cast_array(operand, names[1]) if all(name in FLOATS for name in names) else operand


MISSING: Any = object()
"""In place of a value that side B does not have."""


class Substitution:
    """Values of A's program computed from side B: B's value if there is one, otherwise by A's statements.

    `result_b` and `input_b` return B's value for a result and for an input of A, or MISSING.
    """

    def __init__(
        self,
        trace: RunTrace,
        result_b: Callable[[WrittenResult], Any],
        input_b: Callable[[str], Any],
        recomputation: Recomputation,
    ) -> None:
        self._trace = trace
        self._result_b, self._input_b = result_b, input_b
        self._recomputation = recomputation
        self._computed: dict[Key, Sequence[Any]] = {}

    def operands(self, written: Written) -> list[Any]:
        """Return the operands of A's statement."""
        return [self.value(source) for source in written.sources]

    def value(self, source: Source) -> Any:
        """Return the content of one operand."""
        for key in self.between(source):
            if key not in self._computed:
                self._computed[key] = self._results(key)
        return self._known(source)

    def between(self, source: Source) -> list[Key]:
        """Return A's statements between an operand and values of side B, in order of execution."""
        found: dict[Key, int] = {}
        waiting = [source]
        while waiting:
            each = waiting.pop()
            if not isinstance(each, WrittenResult) or each.key in found:
                continue
            if self._result_b(each) is MISSING and each.key in self._trace:
                written = self._trace.at(each.key)
                found[each.key] = written.tick
                waiting.extend(written.sources)
        return sorted(found, key=found.__getitem__)

    def _known(self, source: Source) -> Any:
        if isinstance(source, WrittenResult):
            there = self._result_b(source)
            if there is not MISSING:
                return there
            computed = self._computed.get(source.key)
            if computed is not None and source.index < len(computed):
                return computed[source.index]
        elif isinstance(source, ProgramInput):
            there = self._input_b(source.name)
            if there is not MISSING:
                return there
        return self._trace.value(source)

    def _results(self, key: Key) -> Sequence[Any]:
        """Run A's statement on B's operands; for control flow and failing kernels, return A's own values."""
        written = self._trace.at(key)
        if written.operands is None:
            return written.contents
        operands = [self._known(source) for source in written.sources]
        like = self._trace.operands(written)
        found = self._recomputation.results(written.code, written.pc, operands, like)
        return written.contents if found is None else found
