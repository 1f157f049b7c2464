"""Causes of NaN and Inf that originate in a program, and statements that are suspicious.

A cause comes with the statement of the op's micro program.  A suspicious statement is legal and finite, but
often a mistake, such as a wrong axis or a broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nncdbg.dtypes import FLOATS, name_of
from nncdbg.engine.backends import Backend
from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.execution.loaded import Loaded
from nncdbg.engine.observers.statement_checks import FAULTS, faults_of
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.causes import Birth, Cause, Made
from nncdbg.engine.ops.schema import for_rules, version_of
from nncdbg.ir.records import Array
from nncdbg.text.torch_names import is_torch

if TYPE_CHECKING:
    from nncdbg.engine.diagnosis.composite_op_origin import Within

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
        from nncdbg.engine.diagnosis.composite_op_origin import diagnose, diagnose_overflow
        from nncdbg.engine.diagnosis.explaining import cause_of_fault, kernel_at_fault

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
        op, attributes, operands, results = self._executed(statement, slots)
        if not results or op is None:
            return ""
        code = statement.code
        reductions = [self._reduction(code, slot, slots) for slot in code.operands[statement.pc]]
        return suspicion(op, attributes, operands, results[0]) or misaligned(op, operands, reductions)

    def _reduction(self, code: Code, slot: int, slots: list[Any]) -> tuple[Any, Sequence[int]] | None:
        """Return the array and axes that a slot was reduced from without `keepdims`; None for others."""
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


_LIMITED = frozenset({"i8", "u8", "i4", "u4"})
"""Types of quantized codes."""

_SATURATED = 0.1
"""Share of elements at the limits of a type from which it is suspicious."""

_FEWEST = 4
"""Number of elements of a result from which equal ones are suspicious."""

Rule: TypeAlias = "Callable[[Op, Mapping[str, Any], Sequence[Array], Array], str]"


def suspicion(op: Op, attributes: Mapping[str, Any], operands: Sequence[Any], result: Any) -> str:
    """Describe what is suspicious about one result of a statement, with numbers; empty if nothing is.

    `attributes` include the defaults of the schema. Operands and result are arrays on the host;
    non-arrays are not examined.
    """
    arrays = [each for each in operands if isinstance(each, np.ndarray)]
    if not isinstance(result, np.ndarray) or not result.size or not arrays:
        return ""
    return next((words for rule in _RULES if (words := rule(op, attributes, arrays, result))), "")


def misaligned(
    op: Op, operands: Sequence[Any], reductions: Sequence[tuple[Any, Sequence[int]] | None]
) -> str:
    """Describe an operand, reduced without `keepdims`, that is broadcast along a wrong axis; else empty.

    `reductions` holds for each operand the array that was reduced to it and the axes, or None. Example:
    ``x - ReduceMean(x, [1], keepdims=0)`` of a square x subtracts the mean of row j from column j.
    """
    if not op.arithmetic or len(operands) != 2:
        return ""
    for operand, other, reduction in zip(operands, reversed(operands), reductions, strict=True):
        if reduction is None or not all(
            isinstance(each, np.ndarray) for each in (reduction[0], operand, other)
        ):
            continue
        data, axes = reduction
        if data.shape != other.shape or operand.ndim == data.ndim:
            continue
        left = [axis for axis in range(data.ndim) if axis not in {each % data.ndim for each in axes}]
        aligned = [*range(data.ndim - len(left), data.ndim)]
        if left != aligned and len(left) == operand.ndim and operand.size > 1:
            gone = ", ".join(str(axis % data.ndim) for axis in axes)
            return (
                f"broadcasts along the wrong axis: an operand is reduced over axis {gone} without keepdims, "
                f"so its axis {left[-1]} of {data.ndim} meets axis {aligned[-1]}"
            )
    return ""


def reduced_axes(op: Op, attributes: Mapping[str, Any], operands: Sequence[Any]) -> Sequence[int]:
    """Return the axes of a reduction with `keepdims=0`; empty for other statements."""
    if not op.reduces or attributes.get("keepdims", 1):
        return ()
    arrays = [each for each in operands if isinstance(each, np.ndarray)]
    return _axes(attributes, arrays) or ()


def _axes(attributes: Mapping[str, Any], operands: Sequence[Array]) -> Sequence[int] | None:
    given: Sequence[int] | None = attributes.get("axes")
    if given is None and len(operands) > 1 and operands[1].dtype.kind == "i":
        given = operands[1].reshape(-1).tolist()
    return given


def _axis(op: Op, attributes: Mapping[str, Any], operands: Sequence[Array], result: Array) -> str:
    axis = attributes.get("axis", -1)
    if op.shares is None or result.ndim < 2 or axis % result.ndim == result.ndim - 1:
        return ""
    sums = op.shares(np.asarray(result, np.float64)).sum(axis=-1)
    return (
        f"normalizes over axis {axis % result.ndim} of {result.ndim}, not the last: "
        f"sums along the last axis are {sums.min():.4g} to {sums.max():.4g}"
    )


def _broadcast(op: Op, attributes: Mapping[str, Any], operands: Sequence[Array], result: Array) -> str:
    if not op.arithmetic or len(operands) != 2 or name_of(result.dtype) not in FLOATS:
        return ""
    first, second = operands
    if result.size <= max(first.size, second.size):
        return ""
    return (
        f"broadcasts both operands: {list(first.shape)} and {list(second.shape)} become {list(result.shape)}"
    )


def _reduced_batch(op: Op, attributes: Mapping[str, Any], operands: Sequence[Array], result: Array) -> str:
    given = _axes(attributes, operands)
    data = operands[0]
    if not op.reduces or given is None or data.ndim < 2 or data.shape[0] < 2:
        return ""
    return (
        "reduces over axis 0 only, usually the batch" if [axis % data.ndim for axis in given] == [0] else ""
    )


def _saturated(op: Op, attributes: Mapping[str, Any], operands: Sequence[Array], result: Array) -> str:
    name = name_of(result.dtype)
    if name not in _LIMITED or not op.saturates:
        return ""
    least, most = result.min(), result.max()
    share = float(np.mean((result == least) | (result == most)))
    values = 2 ** int(name[1:])
    first = 0 if name[0] == "u" else -values // 2
    if share < _SATURATED or (int(least), int(most)) != (first, first + values - 1):
        return ""
    return f"saturates: {share:.0%} of the elements are at the limits of {name}, {least} and {most}"


def _constant(op: Op, attributes: Mapping[str, Any], operands: Sequence[Array], result: Array) -> str:
    if result.size < _FEWEST or name_of(result.dtype) not in FLOATS or not _all_equal(result):
        return ""
    floats = [each for each in operands if each.size > 1 and name_of(each.dtype) in FLOATS]
    if all(map(_all_equal, floats)):
        return ""
    return f"returns {result.flat[0]:.6g} for all {result.size} elements although the operands vary"


def _all_equal(array: Array) -> bool:
    return bool((array == array.flat[0]).all())


_RULES: tuple[Rule, ...] = (_axis, _broadcast, _reduced_batch, _saturated, _constant)
