"""Findings that stop the program, and their messages: origins of NaN and Inf, and misused memory.

Memory that a statement only allocates is no origin if the program writes it before it reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.execution.findings import KINDS, Finding
from nncdbg.engine.execution.linking import Binding
from nncdbg.engine.observers.nonfinite import array_of, born_in
from nncdbg.engine.ops.aten.operators import allocates_only, overwrites
from nncdbg.engine.ops.influence import Application
from nncdbg.errors import UsageError
from nncdbg.expression import Expression
from nncdbg.stats.inspection import Flag, holds
from nncdbg.text.lexemes import name_text
from nncdbg.text.torch_names import is_torch

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
                yield replace(finding, kind=kind, detail=self._detail(kind, finding)), self.conditions[kind]

    def _kinds_of(self, finding: Finding) -> Sequence[str]:
        if finding.kind not in ("nan", "inf"):
            return (finding.kind,)
        if is_written_first(finding.binding, finding.output or 0):
            return ()
        inputs = [array_of(self.to_host(value)) for value in finding.inputs]
        if any(holds(value, finding.kind) for value in inputs) and not self._originates(finding, inputs):
            return ()
        if finding.kind == "nan":
            return ("nan",)
        op = finding.binding.op if isinstance(finding.binding, Binding) else None
        exact = op is not None and op.gives_exact_infinity(inputs)
        return ("inf",) if exact or any(holds(value, "nan") for value in inputs) else ("overflow", "inf")

    def _detail(self, kind: str, finding: Finding) -> str:
        if finding.detail:
            return finding.detail
        node = finding.binding.code.nodes[finding.binding.pc]
        number = finding.output or 0
        name = (
            f"%{name_text(node.outputs[number].name)}"
            if node.outputs[number].name
            else f"result {number + 1}"
        )
        what = {"nan": "the first NaN", "inf": "the first Inf", "overflow": "an overflow to Inf"}[kind]
        has = "NaN" if kind == "nan" else "Inf"
        mixed = any(holds(self.to_host(value), finding.kind) for value in finding.inputs)
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


def is_written_first(statement: Statement, output: int) -> bool:
    """Return whether a statement only allocates a result, and nothing in its block reads what is there then.

    The backend torch fills it with NaN.  An operator that overwrites all of its first operand does not read
    that; a view is followed to its own readers.  Calls, blocks and returns read what they receive.
    """
    code, pc = statement.code, statement.pc
    if pc >= len(code.nodes) or not allocates_only(code.nodes[pc].op):
        return False
    unwritten = {code.result_slots(pc)[output]}
    for later in range(pc + 1, len(code.nodes)):
        read = unwritten & code.reads(later)
        if not read or _writes_all(code, later, read):
            continue
        if not _moves_only(code, later):
            return False
        unwritten.update(code.result_slots(later))
    return not unwritten & {*code.operands[len(code.nodes)]}


def _writes_all(code: Code, pc: int, read: set[int]) -> bool:
    """Return whether a statement overwrites the one slot among its operands that is in `read`."""
    operands = code.operands[pc]
    return overwrites(code.nodes[pc].op) and read == {operands[0]} and operands.count(operands[0]) == 1


def _moves_only(code: Code, pc: int) -> bool:
    """Return whether the results of an operator of torch hold only elements of an operand, unchanged."""
    if not is_torch(code.nodes[pc].op):
        return False
    # Imports torch, which has run the allocation.
    from nncdbg.engine.ops.aten.signatures import signature

    found = signature(code.nodes[pc].op)
    return found is not None and found.moves_only
