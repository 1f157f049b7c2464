"""Checks of single statements while a program runs, beside the inspection of their results.

Values are only read.  Faulty operands (integer faults, and broken contracts of ops) and their devices are
checked before the kernel runs.  For an overflow inside an op with a finite result (`Op.squares`), the result
is compared with one that cannot overflow; it is computed again only if a few of its elements indicate an
overflow and the operands are so large that a sum of squares may overflow.  Statements of ops without a check
are not wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from nncdbg.by_identity import ByIdentity
from nncdbg.comparison.schedule_problems import ScheduleProblem
from nncdbg.dtypes import FLOATS, name_of
from nncdbg.engine.backends import Backend
from nncdbg.engine.backends.composed import run_definition
from nncdbg.engine.compilation.code import Code, Statement, walk
from nncdbg.engine.execution.findings import HOST_READ, RACE, STATE_RESET, Finding, Report
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.observers.nonfinite import KINDS, array_of, bad_in
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.causes import RuleFailed, contained
from nncdbg.engine.ops.contracts import BrokenContract, IntegerFault
from nncdbg.engine.ops.remarks import Evaluated
from nncdbg.engine.ops.schema import for_rules, version_of
from nncdbg.engine.schedules.validation import validated
from nncdbg.engine.values.host_reads import changed_read
from nncdbg.errors import NncdbgError, RunError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Array, Literal, Node, Program
from nncdbg.ir.streams import THE_HOST, Site, scheduled, stream_name
from nncdbg.ir.walk import blocks, walk_nodes
from nncdbg.text.counting import elements
from nncdbg.text.lexemes import name_text
from nncdbg.text.rounding import lost

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


@dataclass(eq=False)
class StatementCheck:
    """Reports findings about statements; `to_host` returns a value as a NumPy array.

    `failed` is called with each failure of a rule: the statement is not checked then.
    """

    report: Report
    to_host: Callable[[Any], Any]
    failed: Callable[[RuleFailed], None] = lambda failure: None


class OperandChecks(StatementCheck):
    """Reports findings of the kinds `FAULTS`."""

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


RELATIVE = 2.0**-6
"""Relative differences below this are rounding errors in every type."""


class OverflowChecks(StatementCheck):
    """Reports findings of the kind `inf`, with `elements`."""

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
    if binding.op.kernel is None and any(getattr(value, "dtype", None) == np.float64 for value in inputs):
        return None
    wrong = _differs(result, _main_result(binding, [*map(wider, inputs)]))
    if wrong is not None and wrong.any() and squares.scale_free:
        scaled = _differs(result, _main_result(binding, squares.scaled(inputs)))
        wrong = None if scaled is None else wrong & scaled
    return wrong if wrong is not None and wrong.any() else None


def wider(value: Any) -> Any:
    """Return a float array in f64, and one of f64 in NumPy's longdouble; other values as they are."""
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype == np.longdouble:
        return value
    if name_of(value.dtype) not in FLOATS:
        return value
    return value.astype(np.longdouble if value.dtype == np.float64 else np.float64)


def _main_result(binding: Binding, inputs: Sequence[Any]) -> Any:
    """Return the main result of the op's definition over these operands; None if it cannot run."""
    try:
        return run_definition(binding.code, binding.pc, inputs)[0]
    except NncdbgError:
        return None


def _differs(result: Array, expected: Any) -> Array | None:
    """Return the finite elements of `result` that differ from `expected` rounded to the same type."""
    if expected is None or np.shape(expected) != result.shape:
        return None
    with np.errstate(all="ignore"):
        given = result.astype(np.float64)
        right = np.asarray(expected).astype(result.dtype).astype(np.float64)
        there = np.isfinite(given) & np.isfinite(right)
        apart, size = np.abs(given - right), np.maximum(np.abs(given), np.abs(right))
        return np.asarray(there & (apart > RELATIVE * size))


class HostReads(StatementCheck):
    """Reports findings of the kind `HOST_READ`: a host read of another number than the recorded one."""

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return the instruction with the comparison, or `execute` itself for any other op."""
        if not binding.op.host_read:
            return execute

        def compared(*inputs: Any) -> Any:
            results = execute(*inputs)
            result = results[0] if binding.several else results
            sentence = changed_read(binding, self.to_host(result))
            if sentence is not None:
                self.report(Finding(HOST_READ, binding, sentence, inputs, result=result))
            return results

        return compared


@dataclass(eq=False)
class EntranceUses(StatementCheck):
    """Reports statements with a bad operand and without such a result, such as 0 of 1 / Inf.

    They are found only if an input or a constant is bad: the operands of each statement are compared, by
    identity, with the bad values known so far.
    """

    _known: ByIdentity[tuple[str, ...]] = field(default_factory=ByIdentity)
    """The kinds of bad elements in each value."""

    def look(self, inputs: Iterable[Any], codes: Iterable[Code]) -> bool:
        """Inspect the inputs and the constants of blocks; return whether one of them is bad."""
        for value in (*inputs, *(each for code in codes for each in code.template)):
            if isinstance(self.to_host(value), (np.ndarray, np.generic)):
                self._note(value)
        return bool(len(self._known))

    def _note(self, value: Any) -> tuple[str, ...]:
        host = self.to_host(value)
        kinds = tuple(kind for kind in KINDS if bad_in(host, kind) is not None)
        if kinds:
            self._known.set(value, kinds)
        return kinds

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return the instruction with the comparison of its operands."""
        known = self._known

        def used(*inputs: Any) -> Any:
            results = execute(*inputs)
            given = {kind for value in inputs for kind in known.get(value) or ()}
            if given:
                outputs = results if binding.several else (results,)
                given -= {kind for value in outputs for kind in self._note(value)}
                for kind in given:
                    self.report(Finding(kind, binding, "", inputs, 0, result=outputs[0]))
            return results

        return used


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


class StateResets(StatementCheck):
    """Reports findings of the kind `state-reset`: an update that sets a moment or step counter to 0.

    A moment that begins again at 0 changes the next steps without an error.  The check sees the new values
    only.  Whether the old value was another one is decided when the statement has run: its frame has both.
    """

    def __init__(self, program: Program, report: Report, to_host: Callable[[Any], Any]) -> None:
        super().__init__(report, to_host)
        self._program = program

    @cached_property
    def names(self) -> frozenset[str]:
        """The states that are watched."""
        return optimizer_states(self._program)

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
            if state.name in self.names and is_zero(new := array_of(self.to_host(value))):
                what = f"all of its {new.size:,} elements become 0" if new.ndim else "it becomes 0"
                detail = f"the optimizer's state %{name_text(state.name)} is reset: {what}"
                yield Finding(STATE_RESET, statement, detail, (value,), number, result=value)


def is_zero(value: Any) -> bool:
    """Return whether a tensor has elements, and all of them are 0."""
    return bool(value.size) and not (value != 0).any()


def old_slot(code: Code, pc: int, number: int) -> int | None:
    """Return the slot that has the value of an updated state, its result `number`, from before the update."""
    return code.slot_at(code.nodes[pc].outputs[number].name, pc)


class Races:
    """Reports findings of the kind `race`, after the second statement of each race of the text.

    Which statements have one is decided by the schedule, not by the order in which this run executes them.
    """

    def __init__(self, program: Program, report: Report) -> None:
        self.report = report
        self._program = program

    @cached_property
    def details(self) -> Mapping[Site, str]:
        """What each statement with a race does."""
        found = validated(self._program).problems if scheduled(self._program) else ()
        return {each.second.site: _detail(each) for each in found if each.kind == "race"}

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return the instruction of a statement with a race with its report, any other one unchanged."""
        if (binding.code.path, binding.pc) not in self.details:
            return execute

        def reported(*inputs: Any) -> Any:
            results = execute(*inputs)
            for finding in self.at(binding):
                self.report(finding)
            return results

        return reported

    def at(self, statement: Statement) -> Iterator[Finding]:
        """Yield the finding of a statement, if it has a race."""
        detail = self.details.get((statement.code.path, statement.pc))
        if detail is not None:
            yield Finding(RACE, statement, detail)


def is_random(formula: Code) -> bool:
    """Return whether a statement of a micro program draws random numbers."""
    nodes = ((node, code.opsets) for code in walk(formula) for node in code.nodes)
    declared = (lookup(node.op, version_of(node.op, opsets)) for node, opsets in nodes)
    return any(op is not None and op.random for op in declared)


def _detail(problem: ScheduleProblem) -> str:
    first, second = problem.first, problem.second
    assert first is not None
    one, other = ("writes" if each == "write" else "reads" for each in problem.access.split("-"))
    streams = [stream_name(each.stream, THE_HOST) for each in (first, second)]
    what = f"{streams[0]} {one} %{name_text(first.name)}, and {streams[1]} {other} %{name_text(second.name)}"
    return f"{what}; no event orders them"


MOST_WORK = 1 << 31
"""Maximum multiplications and elements of statements that are computed again in one run."""


def _rounded(literal: Literal, array: Any) -> str:
    """Return what the element type of a number in the text loses; empty for bools and texts."""
    given = np.asarray(literal.data)
    return lost(given.astype(np.float64), array, "the number") if given.dtype.kind in "if" else ""


class Remarks:
    """Collects what ops say about their results; `found` has the words of each statement."""

    def __init__(self, failed: Callable[[RuleFailed], None]) -> None:
        self.found: dict[tuple[Code, int], str] = {}
        self.failed = failed
        self._work = 0

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return the instruction with the remark of its op, or `execute` itself without one."""
        find = binding.op.remark
        code, pc = place = binding.code, binding.pc
        for operand, slot in zip(binding.node.inputs, code.operands[pc], strict=True):
            words = _rounded(operand, code.template[slot]) if isinstance(operand, Literal) else ""
            if words:
                self.found[place] = words
        if find is None:
            return execute
        slots = [code.template[slot] for slot in code.operands[pc]]
        constants = {number for number, value in enumerate(slots) if isinstance(value, np.ndarray)}

        def remarked(*inputs: Any) -> Any:
            results = execute(*inputs)
            if place not in self.found:
                result = results[0] if binding.several else results
                seen = self._evaluated(binding, inputs, result, constants)
                words = contained(self.failed, binding.op.name, "remark", find, seen)
                if words:
                    self.found[place] = words
            return results

        return remarked

    def _evaluated(
        self, binding: Binding, inputs: Sequence[Any], result: Any, constants: Collection[int]
    ) -> Evaluated:
        op, shapes = binding.op, [np.shape(each) for each in inputs]
        terms = 0 if op.terms is None else op.terms(shapes, np.shape(result))

        def again(operands: Sequence[Any]) -> Any:
            self._work += np.size(result) * max(terms, 1) + sum(map(np.size, operands))
            if self._work > MOST_WORK:
                return None
            return _main_result(binding, operands)

        return Evaluated(binding.attributes, inputs, result, constants, terms, again)


class DeviceChecks:
    """Stops a statement with operands on different devices before its kernel runs, on `backend`.

    Some kernels take such operands without an error, and compute nothing or read a wrong device.  Only
    programs whose values are on more than one device are checked.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._allowed: set[tuple[Binding, tuple[str | None, ...]]] = set()
        """Statements that accept operands on these devices."""

    def needed(self, program: Program, inputs: Iterable[Any]) -> bool:
        """Return whether the values of a program can be on more than one device.

        `inputs` are on their devices, constants begin on the host, and statements name further devices.
        """
        found = {self._backend.device(each) for each in inputs}
        # Such as ``aten.zeros.default(device="cuda:0")``.
        named = (node.attributes.get("device") for node in walk_nodes(program))
        found |= {device for device in named if isinstance(device, str)}
        if any(graph.constants for _, graph in blocks(program)):
            found.add("cpu")
        return len(found - {None}) > 1

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return the instruction that checks its operands first, or `execute` itself for a single operand."""
        if len(binding.node.inputs) < 2:
            return execute
        device_of = self._backend.device

        def checked(*operands: Any) -> Any:
            first = None
            for operand in operands:
                found = device_of(operand)
                if first is None:
                    first = found
                elif found is not None and found != first:
                    self._check(binding, operands)
                    break
            return execute(*operands)

        return checked

    def _check(self, binding: Binding, operands: Sequence[Any]) -> None:
        """Raise RunError unless the kernel accepts operands on these devices."""
        devices = tuple(map(self._backend.device, operands))
        if (binding, devices) in self._allowed:
            return
        if not self._backend.mixes_devices(binding.kernel, operands):
            places = ", ".join(
                f"%{name_text(name)} is on {device}"
                for name, device in zip(binding.node.inputs, devices, strict=False)
                if isinstance(name, str) and device is not None
            )
            raise RunError(
                f"the operands of {binding.node.op} are on different devices: {places}",
                hint="copy the operands to one device in the model",
            )
        self._allowed.add((binding, devices))
