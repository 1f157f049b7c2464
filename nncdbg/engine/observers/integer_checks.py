"""Integer faults while a program runs: checks of the operands of ops that declare such faults.

Operands are checked before the kernel runs, and only read. Statements of other ops are not wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.execution.findings import Finding, Report
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.observers.nonfinite import array_of
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.causes import RuleFailed, contained
from nncdbg.engine.ops.integer_faults import IntegerFault
from nncdbg.engine.ops.schema import for_rules, version_of


def fault_of(statement: Statement, inputs: Sequence[Any]) -> IntegerFault | None:
    """Return the integer fault of a statement over these operands (NumPy arrays); None without one.

    None also if the rule of the op fails: `IntegerChecks` reports that.
    """
    node = statement.code.nodes[statement.pc]
    version = version_of(node.op, statement.code.opsets)
    op = lookup(node.op, version)
    if op is None or op.integer_fault is None:
        return None
    attributes = for_rules(node.op, version, node.attributes)
    arrays = [*map(array_of, inputs)]
    fault = contained(lambda failed: None, op.name, _FACT, op.integer_fault, attributes, arrays)
    return cast("IntegerFault | None", fault)


_FACT = "integer_fault"
"""The fact of a declaration that finds integer faults."""


def finding_of(statement: Statement, fault: IntegerFault, inputs: Sequence[Any], result: Any) -> Finding:
    """Return the finding for an integer fault of a statement."""
    code, pc = statement.code, statement.pc
    node, name = code.nodes[pc], code.names[code.operands[pc][fault.operand]]
    where, size = f"%{name}" if name else f"operand {fault.operand + 1}", fault.elements.size
    some = where if size == 1 else f"{int(fault.elements.sum())} of {size} elements of {where}"
    detail = f"{fault.cause}: %{node.outputs[0].name} is wrong: {node.op} does not accept {some}"
    return Finding("integer", statement, detail, inputs, 0, result=result, elements=fault.results)


class IntegerChecks:
    """Reports findings of the kind `integer`; `to_host` returns an operand as a NumPy array.

    `failed` is called with each failure of a rule: the statement is not checked then.
    """

    def __init__(
        self, report: Report, to_host: Callable[[Any], Any], failed: Callable[[RuleFailed], None]
    ) -> None:
        self.report = report
        self.failed = failed
        self.to_host = to_host

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return the instruction with the check of its op, or `execute` itself without one."""
        find = binding.op.integer_fault
        if find is None:
            return execute
        to_host, failed, name = self.to_host, self.failed, binding.op.name
        version = version_of(binding.node.op, binding.code.opsets)
        attributes = for_rules(binding.node.op, version, binding.node.attributes)

        def checked(*inputs: Any) -> Any:
            fault = contained(failed, name, _FACT, find, attributes, [*map(to_host, inputs)])
            if fault is None:
                return execute(*inputs)
            results = None
            try:
                results = execute(*inputs)
            finally:
                # Some kernels refuse to divide by zero; then the fault explains the failure.
                result = results[0] if binding.several and results else results
                self.report(finding_of(binding, fault, inputs, result))
            return results

        return checked
