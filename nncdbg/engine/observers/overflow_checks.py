"""Overflows inside ops with finite results: the result is compared with one that cannot overflow.

Only ops that declare `Op.squares` are checked. The result is computed again only if a few of its
elements indicate an overflow and the operands are so large that a sum of squares may overflow. Operands
and results are only read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nncdbg.dtypes import FLOATS, name_of
from nncdbg.engine.backends.composed import run_definition
from nncdbg.engine.execution.findings import Finding, Report
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.ops.causes import RuleFailed, contained
from nncdbg.errors import NncdbgError
from nncdbg.ir.records import Array
from nncdbg.text.counting import elements
from nncdbg.text.lexemes import name_text

RELATIVE = 2.0**-6
"""Relative differences below this are rounding errors in every type."""


class OverflowChecks:
    """Reports findings of the kind `inf`, with `elements`; `to_host` returns a value as a NumPy array."""

    def __init__(
        self, report: Report, to_host: Callable[[Any], Any], failed: Callable[[RuleFailed], None]
    ) -> None:
        self.report = report
        self.failed = failed
        self.to_host = to_host

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return the instruction with the check, or `execute` itself if the op sums no squares."""
        squares = binding.op.squares
        if squares is None or not squares.when(binding.attributes):
            return execute

        def checked(*inputs: Any) -> Any:
            results = execute(*inputs)
            result = results[0] if binding.several else results
            contained(self.failed, binding.op.name, "squares", self._check, binding, inputs, result)
            return results

        return checked

    def _check(self, binding: Binding, inputs: Sequence[Any], result: Any) -> None:
        assert binding.op.squares is not None, "other ops are not wrapped"
        if not binding.op.squares.suspicious(binding.attributes, inputs, result):
            return
        wrong = overflowed(binding, [*map(self.to_host, inputs)], np.asarray(self.to_host(result)))
        if wrong is None:
            return
        node = binding.node
        which = elements(int(np.count_nonzero(wrong)), wrong.size, f"%{name_text(node.outputs[0].name)}")
        detail = f"an overflow to Inf inside {node.op}: {which} finite but wrong"
        self.report(Finding("inf", binding, detail, inputs, 0, result=result, elements=wrong))


def overflowed(binding: Binding, inputs: Sequence[Any], result: Array) -> Array | None:
    """Return the finite elements made wrong by an overflow of a sum of squares; None without one.

    They differ from the result in a wider type and, because a wider type also rounds less, from the
    result over scaled operands. An op without a kernel has no wider type than f64.
    """
    squares = binding.op.squares
    assert squares is not None
    if binding.op.kernel is None and any(_is(value, "f64") for value in inputs):
        return None
    wrong = _differs(result, _again(binding, [*map(wider, inputs)]))
    if wrong is not None and wrong.any() and squares.scale_free:
        scaled = _differs(result, _again(binding, squares.scaled(inputs)))
        wrong = None if scaled is None else wrong & scaled
    return wrong if wrong is not None and wrong.any() else None


def _is(value: Any, dtype: str) -> bool:
    return isinstance(value, np.ndarray) and name_of(value.dtype) == dtype


def wider(value: Any) -> Any:
    """Return a float array in f64, and one of f64 in NumPy's longdouble; other values as they are."""
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype == np.longdouble:
        return value
    if name_of(value.dtype) not in FLOATS:
        return value
    return value.astype(np.longdouble if value.dtype == np.float64 else np.float64)


def _again(binding: Binding, inputs: Sequence[Any]) -> Any:
    """Return the main result of the op's definition over these operands; None if it cannot run."""
    try:
        return np.asarray(run_definition(binding.code, binding.pc, inputs)[0])
    except NncdbgError:
        return None


def _differs(result: Array, expected: Any) -> Array | None:
    """Return the finite elements of `result` that differ from `expected` rounded to the same type."""
    if expected is None or expected.shape != result.shape:
        return None
    with np.errstate(all="ignore"):
        given = result.astype(np.float64)
        right = expected.astype(result.dtype).astype(np.float64)
        there = np.isfinite(given) & np.isfinite(right)
        apart, size = np.abs(given - right), np.maximum(np.abs(given), np.abs(right))
        return np.asarray(there & (apart > RELATIVE * size))
