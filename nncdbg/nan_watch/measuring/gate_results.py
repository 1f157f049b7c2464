"""The results of the gates of one run, before its findings are judged: what was checked, and what not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from nncdbg.engine.dtypes import COMPLEX, FLOATS
from nncdbg.engine.execution.check_results import NOT_APPLICABLE, NOT_CHECKED, PASSED, CheckResult
from nncdbg.engine.execution.findings import RACE, STATE_RESET
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.aten.names import allocates_only, is_torch, of_other_library
from nncdbg.engine.ops.schema import version_of
from nncdbg.engine.schedules.streams import streams_of
from nncdbg.engine.text.lexemes import name_text
from nncdbg.ir.records import TensorType, Type
from nncdbg.ir.walk import blocks
from nncdbg.nan_watch.measuring.gates import KINDS, RANGE, Gates

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger

_MEMORY = ("uninitialized", "guard")


def gate_results(debugger: Debugger, gates: Gates, left: Sequence[CheckResult] = ()) -> list[CheckResult]:
    """Return the result of each gate after a run; `left` are those of gates that measure."""
    known = {each.check for each in left}
    ranges = [CheckResult(f"{RANGE}:{each}", PASSED) for each in gates.ranges]
    measured = [CheckResult(str(each), PASSED) for each in gates.thresholds]
    ops = [*_ops(debugger)]
    kinds = [_of_kind(kind, debugger, ops) for kind in KINDS if kind in gates.kinds]
    return [*(each for each in (*kinds, *measured, *ranges) if each.check not in known), *left]


def _of_kind(kind: str, debugger: Debugger, ops: Iterable[Op]) -> CheckResult:
    beyond = debugger.observers.beyond()
    if kind in _MEMORY and not debugger.backend.runs_op_kernels:
        return _of_memory_of_runtime(kind, debugger, ops)
    if kind in beyond:
        return CheckResult(kind, NOT_CHECKED, beyond[kind][0])
    if kind in _MEMORY:
        return _of_memory(kind, debugger, ops)
    without = {
        "integer": "no statement divides integers, casts, quantizes or indexes"
        if not any(op.integer_fault or op.integers for op in ops)
        else "",
        "contract": "" if any(op.contract for op in ops) else "no op has a contract that is checked",
        STATE_RESET: "" if debugger.program.states else "the program has no states",
        RACE: "" if streams_of(debugger.program) else "the program has no schedule",
    }.get(kind, "")
    return CheckResult(kind, NOT_APPLICABLE, without) if without else CheckResult(kind, PASSED)


def _of_memory(kind: str, debugger: Debugger, ops: Iterable[Op]) -> CheckResult:
    """Return the result of a check of memory, which needs kernels that write to buffers of nncdbg."""
    allocation = debugger.loaded.linker.allocation
    if allocation.own_memory:
        return CheckResult(kind, NOT_CHECKED, own_memory_words(allocation.own_memory))
    if allocation.trusts_kernels and not any(_is_checked(op) for op in ops):
        return CheckResult(kind, NOT_APPLICABLE, "the kernels are those of nncdbg, which its tests check")
    return CheckResult(kind, PASSED)


def _of_memory_of_runtime(kind: str, debugger: Debugger, ops: Iterable[Op]) -> CheckResult:
    """Return the result of a check of memory where another runtime allocates the results of its kernels."""
    backend, nodes = debugger.backend, [node for _, graph in blocks(debugger.program) for node in graph.nodes]
    other = sorted(
        op.name
        for op in ops
        if of_other_library(op.name) or (op.foreign and not (op.reference or is_torch(op.name)))
    )
    if other:
        return CheckResult(kind, NOT_CHECKED, f"the kernels of {', '.join(other)} allocate their results")
    if kind == "uninitialized":
        allocated = [value for node in nodes if allocates_only(node.op) for value in node.outputs]
        # PyTorch fills such memory with NaN, so reads of it are found; only floats have a NaN.
        unfilled = [value for value in allocated if not _has_nan(value.type)]
        unfilled += [value for node in nodes if node.op == "nncdbg.Empty" for value in node.outputs]
        if unfilled:
            names = f"%{name_text(unfilled[0].name)}" + ", ..." * (len(unfilled) > 1)
            why = f"a NaN marks such memory, and {names} has no floats"
            return CheckResult(kind, NOT_CHECKED, why)
        if allocated:
            return CheckResult(kind, PASSED)
    return CheckResult(kind, NOT_APPLICABLE, f"{backend.name} allocates the memory of its kernels")


def _has_nan(type_: Type | None) -> bool:
    return isinstance(type_, TensorType) and (type_.dtype in FLOATS or type_.dtype in COMPLEX)


def own_memory_words(ops: Iterable[str]) -> str:
    """Return why the memory of ops was not checked that did not allocate it through `xp`."""
    return f"{', '.join(sorted(ops))} returned memory that is not from xp.empty, xp.zeros or `out`"


def _is_checked(op: Op) -> bool:
    """Return whether an allocator that trusts kernels checks this one."""
    return (op.foreign and not op.reference) or op.name == "nncdbg.Empty"


def _ops(debugger: Debugger) -> Iterator[Op]:
    """Yield the ops of the statements of a program."""
    program = debugger.program
    names = dict.fromkeys(node.op for _, graph in blocks(program) for node in graph.nodes)
    found = (lookup(name, version_of(name, program.opsets)) for name in names)
    yield from (op for op in found if op is not None)
