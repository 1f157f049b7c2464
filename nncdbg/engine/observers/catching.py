"""Findings that stop the program, and their messages: origins of NaN and Inf, and misused memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import FLOATS, name_of
from nncdbg.engine.errors import UsageError
from nncdbg.engine.execution.findings import KINDS, Finding
from nncdbg.engine.execution.linking import Binding
from nncdbg.engine.expression import Expression
from nncdbg.engine.observers.nonfinite import array_of, born_in
from nncdbg.engine.ops import Op
from nncdbg.engine.ops.influence import Application
from nncdbg.stats.inspection import Flag

_FLAGS = {
    "nan": Flag.NAN,
    "inf": Flag.INF,
    "overflow": Flag.INF,
    "uninitialized": Flag.UNWRITTEN,
    "guard": Flag.GUARD_BEFORE | Flag.GUARD_AFTER,
}


@dataclass(slots=True)
class Catches:
    """The kinds of findings that stop, each with an optional condition.

    Misused memory is always a bug of a kernel or plan, so it is caught by default.
    """

    conditions: dict[str, Expression | None] = field(
        default_factory=lambda: {"uninitialized": None, "guard": None}
    )
    to_host: Callable[[Any], Any] = lambda value: value
    """Returns an operand on the host."""

    def add(self, kind: str, condition: Expression | None = None) -> None:
        if kind not in KINDS:
            raise UsageError(f"unknown kind of finding: {kind!r}", hint=f"use one of: {', '.join(KINDS)}")
        self.conditions[kind] = condition

    @property
    def flags(self) -> int:
        """Return the inspection flags of all caught kinds."""
        watched = 0
        for kind in self.conditions:
            watched |= int(_FLAGS.get(kind, 0))
        return watched

    def qualifying(self, finding: Finding) -> Iterator[tuple[Finding, Expression | None]]:
        """Yield the finding for each caught kind, with the condition that remains to be evaluated.

        A NaN is caught where it originates: at an element that no NaN among the inputs influences. The
        same applies to `inf`; an infinity from finite inputs is an overflow unless a division by zero
        explains it.
        """
        for kind in self._kinds_of(finding):
            if kind in self.conditions:
                yield replace(finding, kind=kind, detail=self._words(kind, finding)), self.conditions[kind]

    def _kinds_of(self, finding: Finding) -> Sequence[str]:
        if finding.kind not in ("nan", "inf"):
            return (finding.kind,)
        inputs = [array_of(self.to_host(value)) for value in finding.inputs]
        if any(holds_any(value, finding.kind) for value in inputs) and not self._originates(finding, inputs):
            return ()
        if finding.kind == "nan":
            return ("nan",)
        op = finding.binding.op if isinstance(finding.binding, Binding) else None
        return ("overflow", "inf") if overflows(op, inputs) else ("inf",)

    def _words(self, kind: str, finding: Finding) -> str:
        if finding.detail:
            return finding.detail
        node = finding.binding.code.nodes[finding.binding.pc]
        name = f"%{node.outputs[finding.output or 0].name}"
        what = {"nan": "the first NaN", "inf": "the first Inf", "overflow": "an overflow to Inf"}[kind]
        has = "NaN" if kind == "nan" else "Inf"
        mixed = any(holds_any(self.to_host(value), finding.kind) for value in finding.inputs)
        of = "elements" if mixed else "operands"
        return f"{what} is in {name}: {node.op} produced it from {of} without {has}"

    def _originates(self, finding: Finding, inputs: Sequence[Any]) -> bool:
        """Whether a result element is bad although no bad input element influences it."""
        binding, index = finding.binding, finding.output or 0
        if not isinstance(binding, Binding):
            return False
        results = [None] * index + [array_of(self.to_host(finding.result))]
        application = Application(binding.op, binding.attributes, inputs, results, [None] * len(inputs))
        return bool(born_in(application, index, finding.kind).any())


def overflows(op: Op | None, inputs: Sequence[Any]) -> bool:
    """Whether an infinity from these operands is a finite number out of range of its type."""
    exact = op is not None and op.exact_infinity
    exact = exact(inputs) if callable(exact) else exact
    return not exact and not any(holds_any(value, "nan") for value in inputs)


def holds_any(value: Any, kind: str) -> bool:
    """Whether a tensor contains a NaN (kind nan) or an infinity (kind inf)."""
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.hasobject:
        return False
    if value.dtype.kind != "c" and name_of(value.dtype) not in FLOATS:
        return False
    test: Mapping[str, Any] = {"nan": np.isnan, "inf": np.isinf}
    return bool(test[kind](np.asarray(value)).any())
