"""Updates that reset a state of an optimizer: a moment or step counter that becomes 0 in all elements.

A moment that begins again at 0 changes the next steps without an error.  The check sees the new values only.
Whether the old value was another one is decided when the statement has run: its frame still has both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.execution.findings import STATE_RESET, Finding, Report
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.observers.nonfinite import array_of
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Program
from nncdbg.ir.walk import walk_nodes
from nncdbg.text.lexemes import name_text

_FIRST_STATE = 2
"""The number of the first operand of an optimizer that is a state of the parameter."""


def optimizer_states(program: Program) -> frozenset[str]:
    """Return the names of the moments and step counters: operands of optimizers."""
    found: set[str] = set()
    for node in walk_nodes(program):
        op = lookup(node.op, version_of(node.op, program.opsets))
        if op is not None and op.optimizer is not None:
            end = _FIRST_STATE + len(op.optimizer.states)
            found |= {each for each in node.inputs[_FIRST_STATE:end] if isinstance(each, str)}
    return frozenset(found)


class StateResets:
    """Reports findings of the kind `state-reset`; `to_host` returns a value as a NumPy array."""

    def __init__(self, program: Program, report: Report, to_host: Callable[[Any], Any]) -> None:
        self.report = report
        self._program, self._to_host = program, to_host
        self._names: frozenset[str] | None = None

    @property
    def names(self) -> frozenset[str]:
        """The states that are watched."""
        if self._names is None:
            self._names = optimizer_states(self._program)
        return self._names

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return the instruction of an update of such states with the check, any other one unchanged."""
        if binding.node.kind is not Kind.UPDATE or self.names.isdisjoint(
            v.name for v in binding.node.outputs
        ):
            return execute

        def checked(*inputs: Any) -> Any:
            results = execute(*inputs)
            for finding in self.zeros(binding, inputs):
                self.report(finding)
            return results

        return checked

    def zeros(self, statement: Statement, values: Sequence[Any]) -> Iterator[Finding]:
        """Yield a finding for each watched state that an update sets to 0; `values` are the new values."""
        node = statement.code.nodes[statement.pc]
        if node.kind is not Kind.UPDATE:
            return
        for number, (state, value) in enumerate(zip(node.outputs, values, strict=False)):
            if state.name in self.names and is_zero(new := array_of(self._to_host(value))):
                what = f"all of its {new.size:,} elements become 0" if new.ndim else "it becomes 0"
                detail = f"the optimizer's state %{name_text(state.name)} is reset: {what}"
                yield Finding(STATE_RESET, statement, detail, (value,), number, result=value)


def is_zero(value: Any) -> bool:
    """Return whether a tensor has elements, and all of them are 0."""
    return bool(value.size) and not (value != 0).any()


def old_slot(code: Code, pc: int, number: int) -> int | None:
    """Return the slot that has the value of an updated state, its result `number`, from before the update."""
    return code.slot_at(code.nodes[pc].outputs[number].name, pc)
