"""Causes of NaN and Inf that originate in a program, with the statement of the op's micro program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nncdbg.engine.backends import Backend
from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.execution.loaded import Loaded
from nncdbg.engine.observers.operand_checks import FAULTS, faults_of
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.causes import Birth, Cause, Made
from nncdbg.engine.ops.schema import for_rules, version_of
from nncdbg.text.torch_names import is_torch

if TYPE_CHECKING:
    from nncdbg.engine.diagnosis.within import Within


_DEPTH = 6
"""Maximum depth to which formulas are read back."""

Diagnosis: TypeAlias = "tuple[Cause, Within | None]"
"""The cause of a bad value, and where it originates in the op's micro program."""


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosing:
    """Explains origins in a program; `loaded` has the micro programs of its ops.

    The kernels of another backend than NumPy are compared with NumPy's.
    """

    loaded: Loaded

    def __repr__(self) -> str:
        return f"<Diagnosing on {self.backend.name}: {self.loaded!r}>"

    @property
    def backend(self) -> Backend:
        return self.loaded.linker.backend

    def __call__(self, finding: Finding, slots: Sequence[Any]) -> Diagnosis | None:
        """Return the cause (see `cause`); None for a legal infinity (see `is_legal`)."""
        return None if self.is_legal(finding, slots) else self.cause(finding)

    def is_legal(self, finding: Finding, slots: Sequence[Any]) -> bool:
        """Whether an infinity is legal by definition, such as a constant or the maximum of an empty set.

        `slots` are those of the statement's frame at that moment.
        """
        # Imported late: the rules are many, and most runs need none.
        from nncdbg.engine.diagnosis.explaining import legal

        code, pc = finding.binding.code, finding.binding.pc
        makers = [_maker(code, slot, slots) for slot in code.operands[pc]]
        return finding.kind == "inf" and legal(self.birth(finding), makers)

    def cause(self, finding: Finding) -> Diagnosis:
        """Return the cause of a NaN, Inf or faulty operand of a statement, and where within its op."""
        from nncdbg.engine.diagnosis.explaining import cause_of_fault
        from nncdbg.engine.diagnosis.recomputed import kernel_at_fault
        from nncdbg.engine.diagnosis.within import diagnose, diagnose_overflow

        birth = self.birth(finding)
        if finding.kind in FAULTS:
            fault = dict(faults_of(finding.binding, birth.inputs))[finding.kind]
            return cause_of_fault(birth, fault), None
        inner = diagnose_overflow(birth, finding, self.loaded)
        if inner is not None:
            return inner
        # The definition of an operator of PyTorch is its own kernel.
        if self.backend.name != "numpy" and not is_torch(birth.op):
            wrong = kernel_at_fault(birth, finding.binding, self.backend.name)
            if wrong is not None:
                return wrong, None
        return diagnose(birth, finding.binding.code, finding.binding.pc, self.loaded)

    def birth(self, finding: Finding) -> Birth:
        """Collect the statement, its operands and its result on the host."""
        code, pc = finding.binding.code, finding.binding.pc
        node = code.nodes[pc]
        opset = version_of(node.op, code.opsets)
        return Birth(
            finding.kind,
            node.op,
            opset,
            for_rules(node.op, opset, node.attributes),
            [code.names[slot] for slot in code.operands[pc]],
            [*map(self.backend.to_host, finding.inputs)],
            np.asarray(self.backend.to_host(finding.result)),
            finding.output or 0,
            [made(code, slot) for slot in code.operands[pc]],
            code.graph.name or str(code.path[0]),
            _node_name(code, pc),
        )

    def at(self, kind: str, statement: Statement, slots: list[Any], output: int = 0) -> Diagnosis | None:
        """Return why NaN or Inf (`kind`) originates at a statement that has run; None if it is legal.

        `slots` are those of its frame, with its operands and results.
        """
        code, pc = statement.code, statement.pc
        result = code.results_of(pc, slots)[output]
        finding = Finding(kind, statement, "", code.operands_of(pc, slots), output, result=result)
        return self(finding, slots)

    def zeros(self, statement: Statement, slots: list[Any], output: int = 0) -> Cause:
        """Return why a result of a statement that has run is all zeros."""
        from nncdbg.engine.diagnosis.explaining import cause_of_zeros

        op, _, operands, results = self._executed(statement, slots)
        names = [statement.code.names[slot] for slot in statement.code.operands[statement.pc]]
        return cause_of_zeros(op, names, operands, results[output])

    def suspicion(self, statement: Statement, slots: list[Any]) -> str:
        """Describe what is suspicious about a statement that has run, such as its axis; empty if nothing."""
        from nncdbg.engine.diagnosis.suspicions import misaligned, suspicion

        op, attributes, operands, results = self._executed(statement, slots)
        if not results or op is None:
            return ""
        code = statement.code
        reductions = [self._reduction(code, slot, slots) for slot in code.operands[statement.pc]]
        return suspicion(op, attributes, operands, results[0]) or misaligned(op, operands, reductions)

    def _reduction(self, code: Code, slot: int, slots: list[Any]) -> tuple[Any, Sequence[int]] | None:
        """Return the array and axes that a slot was reduced from without `keepdims`; None for others."""
        from nncdbg.engine.diagnosis.suspicions import reduced_axes

        pc = code.definition[slot]
        if pc < 0 or not code.runs_kernel(pc):
            return None
        op, attributes, operands, _ = self._executed(Statement(code, pc), slots)
        axes = reduced_axes(op, attributes, operands) if op is not None else ()
        return (operands[0], axes) if axes else None

    def _executed(
        self, statement: Statement, slots: list[Any]
    ) -> tuple[Op | None, Mapping[str, Any], list[Any], list[Any]]:
        """Return the op, all attributes, the operands and the results of a statement, on the host."""
        code, pc = statement.code, statement.pc
        node = code.nodes[pc]
        version = version_of(node.op, code.opsets)
        attributes = for_rules(node.op, version, node.attributes)
        operands = [*map(self.backend.to_host, code.operands_of(pc, slots))]
        results = [*map(self.backend.to_host, code.results_of(pc, slots))]
        return lookup(node.op, version), attributes, operands, results


def _maker(code: Code, slot: int, slots: Sequence[Any]) -> tuple[str, Sequence[tuple[int, ...]]] | None:
    """Return the op that made an operand in the same block, and the shapes of its operands."""
    pc = code.definition[slot]
    if pc < 0:
        return None
    shapes = [tuple(getattr(slots[each], "shape", ())) for each in code.operands[pc]]
    return code.nodes[pc].op, shapes


def made(code: Code, slot: int, depth: int = _DEPTH) -> Made | None:
    """Return what made the value in a slot; None for inputs, constants, and results of loops and calls."""
    pc = code.definition[slot]
    if pc < 0 or not depth:
        return None
    operands = code.operands[pc]
    return Made(
        code.nodes[pc].op,
        [code.names[each] for each in operands],
        [made(code, each, depth - 1) for each in operands],
        _node_name(code, pc),
    )


def _node_name(code: Code, pc: int) -> str:
    """Return the name of a statement's node in the model; empty without one."""
    location = code.nodes[pc].location
    return (location.name or "") if location is not None else ""
