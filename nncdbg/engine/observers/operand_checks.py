"""Faulty operands while a program runs: integer faults, and broken contracts of ops.

Operands are checked before the kernel runs, and only read. Statements of ops without a check are not wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.execution.findings import Finding, Report
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.observers.nonfinite import array_of
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.causes import RuleFailed, contained
from nncdbg.engine.ops.contracts import BrokenContract, IntegerFault
from nncdbg.engine.ops.schema import for_rules, version_of
from nncdbg.ir.records import Node
from nncdbg.text.lexemes import name_text

OperandFault: TypeAlias = "IntegerFault | BrokenContract"

FAULTS = ("integer", "contract")
"""The kinds of findings that operands alone show."""


def faults_of(statement: Statement, inputs: Sequence[Any]) -> Iterator[tuple[str, OperandFault]]:
    """Yield the faults of a statement over these operands (NumPy arrays), each with its kind.

    A rule that fails yields nothing: `OperandChecks` reports that.
    """
    node = statement.code.nodes[statement.pc]
    version = version_of(node.op, statement.code.opsets)
    op = lookup(node.op, version)
    if op is not None and (op.integer_fault or op.contract):
        attributes = _attributes(op, node, version)
        yield from _found(op, attributes, [*map(array_of, inputs)], lambda failed: None)


def _attributes(op: Op, node: Node, version: int) -> Mapping[str, Any]:
    return op.arguments(for_rules(node.op, version, node.attributes), version, len(node.outputs))


def _found(
    op: Op, attributes: Mapping[str, Any], inputs: Sequence[Any], failed: Callable[[RuleFailed], None]
) -> Iterator[tuple[str, OperandFault]]:
    rules = {"integer": ("integer_fault", op.integer_fault), "contract": ("contract", op.contract)}
    for kind in FAULTS:
        fact, find = rules[kind]
        fault = None if find is None else contained(failed, op.name, fact, find, attributes, inputs)
        if fault is not None:
            yield kind, fault


def finding_of(
    statement: Statement, kind: str, fault: OperandFault, inputs: Sequence[Any], result: Any
) -> Finding:
    """Return the finding for a fault of a statement."""
    code, pc = statement.code, statement.pc
    node, name = code.nodes[pc], code.names[code.operands[pc][fault.operand]]
    where, size = f"%{name_text(name)}" if name else f"operand {fault.operand + 1}", fault.elements.size
    if isinstance(fault, BrokenContract):
        detail = f"{fault.cause}: {where}{fault.evidence}"
    else:
        some = where if size == 1 else f"{int(fault.elements.sum())} of {size} elements of {where}"
        detail = (
            f"{fault.cause}: %{name_text(node.outputs[0].name)} is wrong: {node.op} does not accept {some}"
        )
    return Finding(kind, statement, detail, inputs, 0, result=result, elements=fault.results)


class OperandChecks:
    """Reports findings of the kinds `FAULTS`; `to_host` returns an operand as a NumPy array.

    `failed` is called with each failure of a rule: the statement is not checked then.
    """

    def __init__(
        self, report: Report, to_host: Callable[[Any], Any], failed: Callable[[RuleFailed], None]
    ) -> None:
        self.report = report
        self.failed = failed
        self.to_host = to_host

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return the instruction with the checks of its op, or `execute` itself without any."""
        op, to_host, failed = binding.op, self.to_host, self.failed
        if op.integer_fault is None and op.contract is None:
            return execute
        version = version_of(binding.node.op, binding.code.opsets)
        attributes = _attributes(op, binding.node, version)

        def checked(*inputs: Any) -> Any:
            faults = [*_found(op, attributes, [*map(to_host, inputs)], failed)]
            if not faults:
                return execute(*inputs)
            results = None
            try:
                results = execute(*inputs)
            finally:
                # Some kernels refuse such operands; then the fault explains the failure.
                result = results[0] if binding.several and results else results
                for kind, fault in faults:
                    self.report(finding_of(binding, kind, fault, inputs, result))
            return results

        return checked
