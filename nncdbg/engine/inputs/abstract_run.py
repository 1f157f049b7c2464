"""A run without tensors, on types and small integers only, to find what a program needs of its inputs.

Shapes, counts and indices are computed as in the real run; large tensors are represented by their types.
The run reports the integers that the ops accept from each input (`InputUse`), and the first statement with
operand sizes that cannot be right (`Failure`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import numpy as np

from nncdbg.dtypes import NUMPY
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.inference.graphs import TypeRules
from nncdbg.engine.inference.statements import literal_dtype
from nncdbg.engine.inference.types import joined_type, literal_array, stacked_type, type_of_array
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.declaration import Op
from nncdbg.engine.ops.influence import Content
from nncdbg.engine.ops.schema import complete, schema, version_of
from nncdbg.engine.ops.valid_integers import Integers, known_type
from nncdbg.errors import NncdbgError
from nncdbg.ir.constants import initial_data
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import (
    Array,
    Constant,
    Dim,
    Graph,
    Inline,
    Literal,
    Node,
    Path,
    Program,
    TensorType,
    Type,
    Value,
    tensor_only,
    without_sizes,
)

SMALL = 1024
"""The most elements of a tensor whose content is computed."""

_SAMPLED = 1 << 20
"""The most elements for which a kernel runs on zeros to find the sizes of its results."""

_DEEPEST = 100
"""The deepest nesting of calls and blocks."""

Place: TypeAlias = "tuple[Path, int]"

Origin: TypeAlias = "tuple[str, int]"
"""An input of the entry graph, and the number added to its elements on the way."""


@dataclass(frozen=True, slots=True)
class ValueFacts:
    """The known facts about a value: its type, its content if it is small, and its source inputs."""

    type: Type | None = None
    data: Array | None = None
    origins: frozenset[Origin] = frozenset()


@dataclass(frozen=True, slots=True)
class InputUse:
    """The integers that an op accepts from an input of the entry graph."""

    input: str
    accepted: Integers
    op: str
    place: Place


@dataclass(frozen=True, slots=True)
class Failure:
    """A statement with operand sizes that cannot be right; `numbers` are the sizes involved."""

    op: str
    place: Place
    numbers: frozenset[int]


class _Failed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.op)
        self.failure = failure


class _OverBudget(Exception):
    """The run exceeds the caller's budget of statements."""


_WRONG_PROGRAM = (NncdbgError, KeyError)
"""Exceptions that end the run early: compiling or running the program reports the error."""


@dataclass(frozen=True, slots=True)
class _Made:
    """Results of a kernel; `exact` if their content, not only their sizes, is that of the real run."""

    arrays: list[Any]
    exact: bool


@dataclass(slots=True)
class _Scope:
    """The values of one block, and of the blocks around it."""

    path: Path
    values: dict[str, ValueFacts] = field(default_factory=dict)
    outer: _Scope | None = None

    def find(self, name: str) -> ValueFacts:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return ValueFacts()


@dataclass(slots=True)
class AbstractRun:
    """One run of a program's entry graph.  Kernels run on small integers and on zeros only."""

    program: Program
    sizes: Mapping[str, int]
    """The numbers of the symbolic sizes."""
    budget: int = 100_000
    """The number of statements after which the run ends."""
    uses: list[InputUse] = field(default_factory=list)
    failure: Failure | None = None
    cut_short: bool = False
    """True if the run exceeded the budget before its end."""
    steps: int = 0
    _depth: int = 0
    _rules: TypeRules = field(init=False)
    _ops: dict[str, tuple[int, Op | None, bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rules = TypeRules(self.program.opsets, self.program.graphs)

    def run(self, inputs: Mapping[str, ValueFacts]) -> AbstractRun:
        """Run with these facts about the inputs; the results are in `uses`, `failure` and `steps`."""
        graph = self.program.graphs[self.program.entry]
        given = [inputs.get(value.name, ValueFacts(value.type)) for value in graph.inputs]
        try:
            self.block(graph, (graph.name,), given, None)
        except _Failed as failed:
            self.failure = failed.failure
        except _OverBudget:
            self.cut_short = True
        except _WRONG_PROGRAM:
            pass
        return self

    # -- blocks --------------------------------------------------------------------------------

    def block(
        self, graph: Graph, path: Path, given: Sequence[ValueFacts], outer: _Scope | None
    ) -> list[ValueFacts]:
        """Return the facts about the results of a block."""
        self._depth += 1
        try:
            if self._depth > _DEEPEST:
                return [ValueFacts(value.type) for value in graph.outputs]
            scope = _Scope(path, outer=outer)
            for value, fact in zip(graph.inputs, given, strict=False):
                scope.values[value.name] = fact
            for constant in graph.constants:
                scope.values[constant.value.name] = self._constant(constant)
            for pc, node in enumerate(graph.nodes):
                self._statement(scope, pc, node)
            return [scope.find(value.name) for value in graph.outputs]
        finally:
            self._depth -= 1

    def _constant(self, constant: Constant) -> ValueFacts:
        if not isinstance(constant.data, Inline):
            return ValueFacts(constant.value.type)
        array = initial_data(constant, self.program)
        return ValueFacts(type_of_array(array), array if array.size <= SMALL else None)

    def _statement(self, scope: _Scope, pc: int, node: Node) -> None:
        self.steps += 1
        if self.steps > self.budget:
            raise _OverBudget
        if node.kind is Kind.BREAK:
            return
        operands = self._operands(scope, node)
        if node.kind is Kind.IF:
            results = self._branches(scope, pc, node, operands)
        elif node.kind is Kind.WHILE:
            results = self._loop(scope, pc, node, operands)
        elif (name := node.called) is not None:
            called = self.program.graphs[name]
            results = self.block(called, (called.name,), operands, None)
        else:
            results = self._op((scope.path, pc), node, operands)
        for value, fact in zip(node.outputs, results, strict=False):
            if value.name:
                scope.values[value.name] = self._declared(value, fact)

    def _operands(self, scope: _Scope, node: Node) -> list[ValueFacts]:
        facts = [scope.find(operand) if isinstance(operand, str) else ValueFacts() for operand in node.inputs]
        types = [fact.type for fact in facts]
        for index, operand in enumerate(node.inputs):
            if isinstance(operand, Literal):
                plain = None if node.kind in (Kind.IF, Kind.WHILE) else node
                dtype = literal_dtype(operand, plain, index, types, self.program.opsets)
                array = literal_array(operand, dtype)
                facts[index] = ValueFacts(type_of_array(array), array)
        return facts

    def _declared(self, value: Value, fact: ValueFacts) -> ValueFacts:
        """Return the fact, with declared sizes in place of unknown ones."""
        known, stated = tensor_only(fact.type), tensor_only(value.type)
        if fact.type is None:
            known = stated and without_sizes(stated)  # type: ignore[assignment]
        if known is None or stated is None or stated.shape is None:
            return fact if fact.type is not None else ValueFacts(value.type, fact.data, fact.origins)
        sizes: tuple[Dim, ...] = tuple(self.sizes.get(d) if isinstance(d, str) else d for d in stated.shape)
        if known.shape is not None and len(known.shape) == len(sizes):
            sizes = tuple(d if d is not None else s for d, s in zip(known.shape, sizes, strict=True))
        elif known.shape is not None:
            return fact
        return ValueFacts(TensorType(known.dtype, sizes), fact.data, fact.origins)

    def _branches(
        self, scope: _Scope, pc: int, node: Node, operands: Sequence[ValueFacts]
    ) -> list[ValueFacts]:
        condition = operands[0].data
        paths = [(*scope.path, pc, index) for index in range(len(node.subgraphs))]
        if condition is not None and condition.size == 1:
            taken = 0 if condition.all() else 1
            return self.block(node.subgraphs[taken], paths[taken], (), scope)
        ends = []
        for path, branch in zip(paths, node.subgraphs, strict=True):
            depth = self._depth
            try:
                ends.append(self.block(branch, path, (), scope))
            except _Failed:  # The run may take the other branch.
                self._depth = depth
        if not ends:
            return [ValueFacts(value.type) for value in node.outputs]
        return [_joined(facts) for facts in zip(*ends, strict=True)]

    def _loop(self, scope: _Scope, pc: int, node: Node, operands: Sequence[ValueFacts]) -> list[ValueFacts]:
        times, *initial = operands
        self._note(times, Integers(1, 6), "Loop", (scope.path, pc))
        body, path = node.subgraphs[0], (*scope.path, pc, 0)
        counter = ValueFacts(TensorType("i64", ()))
        carried = [ValueFacts(fact.type, None, fact.origins) for fact in initial]
        ends = self.block(body, path, [counter, *carried], scope)
        after = [_joined(pair) for pair in zip(carried, ends, strict=False)]
        if [fact.type for fact in after] != [fact.type for fact in carried]:
            ends = self.block(body, path, [counter, *after], scope)
        count = int(times.data.reshape(-1)[0]) if times.data is not None and times.data.size == 1 else None
        breaks = any(each.kind is Kind.BREAK for each in body.nodes)
        return [*after, *(_stacked(fact, None if breaks else count) for fact in ends[len(initial) :])]

    # -- ops -----------------------------------------------------------------------------------

    def _op(self, place: Place, node: Node, operands: Sequence[ValueFacts]) -> list[ValueFacts]:
        version, op, windowed = self._found(node.op)
        types = [fact.type for fact in operands]
        try:
            results = list(self._rules.inferred(node, tuple(types)))
            if op is None:
                return [ValueFacts(type_) for type_ in results]
            adds = _adds_facts(op, operands, results)
            needed = adds or op.integers is not None
            attributes = complete(node.op, version, node.attributes) if needed else {}
            if op.integers is not None:
                data = [fact.data for fact in operands]
                for index, accepted in op.integers(attributes, types, data).items():
                    if index < len(operands):
                        self._note(operands[index], accepted, node.op, place)
                        # Sizes for which indices that do not come from a drawn input would be inside.
                        indices = None if operands[index].origins else operands[index].data
                        if indices is not None and (missed := accepted.misses(indices)):
                            failure = Failure(node.op, place, _numbers(node, operands) | missed)
                            raise _Failed(failure)
            made = None
            if adds:
                arguments = op.arguments(attributes, version, len(node.outputs))
                made = self._computed(op, arguments, operands, results)
        except _Failed:
            raise
        except Exception:  # noqa: BLE001  # A kernel may raise anything for operands that do not fit.
            raise self._failed(node, place, operands) from None
        moved = _moved(node, op, operands)
        facts = [ValueFacts(type_, None, moved) for type_ in results]
        if made is not None:
            facts = [
                _measured(fact, array, exact=made.exact)
                for fact, array in zip(facts, made.arrays, strict=True)
            ]
        if windowed and _is_empty(facts[0]) and not any(map(_is_empty, operands)):
            raise self._failed(node, place, operands)
        return facts

    def _found(self, name: str) -> tuple[int, Op | None, bool]:
        """Return the version of an op in this program, the op, and whether it moves a window."""
        found = self._ops.get(name)
        if found is None:
            version = version_of(name, self.program.opsets)
            known = schema(name, version)
            windowed = known is not None and "kernel_shape" in known.attributes
            found = self._ops[name] = version, lookup(name, version), windowed
        return found

    def _failed(self, node: Node, place: Place, operands: Sequence[ValueFacts]) -> _Failed:
        return _Failed(Failure(node.op, place, _numbers(node, operands)))

    def _computed(
        self,
        op: Op,
        arguments: Mapping[str, Any],
        operands: Sequence[ValueFacts],
        results: Sequence[Type | None],
    ) -> _Made | None:
        """Run the kernel on the known facts and return its results; None if it cannot run on them.

        If only sizes matter, the kernel runs on zeros, and only the sizes of the results are right.
        """
        host = op.host_operands
        known = _are_known(operands)
        counts_only = op.content is Content.SIZES
        arrays = []
        for index, fact in enumerate(operands):
            array = fact.data
            if array is None and fact.type is not None:
                type_ = known_type(fact.type)
                if type_ is None or index in host:
                    return None
                # If only its sizes are used, the array is never touched and takes no memory.
                lazy = op.view or counts_only
                if not lazy and _total(type_) > _SAMPLED:
                    return None
                array = np.zeros(type_.shape, np.int8 if lazy else NUMPY[type_.dtype])  # type: ignore[arg-type]
            arrays.append(array)
        if not op.view and _estimate(arrays, host) > _SAMPLED:
            return None
        with np.errstate(all="ignore"):
            made = op.bind(np, arguments)(*arrays)
        listed = list(made) if isinstance(made, tuple) else [made]
        return _Made(listed, known or counts_only) if len(listed) == len(results) else None

    def _note(self, fact: ValueFacts, accepted: Integers, op: str, place: Place) -> None:
        for name, offset in fact.origins:
            if accepted.exact is None:
                shifted = Integers(accepted.low - offset, accepted.high - offset)
                self.uses.append(InputUse(name, shifted, op, place))
            elif not offset:
                self.uses.append(InputUse(name, accepted, op, place))


def block_results(code: Code, seen: Mapping[str, Any]) -> list[Type | None]:
    """Return the types of the results of a block, as far as they are known before it runs.

    `seen` has the values around it that it reads; the types of its own inputs hold for all iterations.
    """
    program = Program(code.graphs, code.graph.name, opsets=code.opsets)
    outer = _Scope(code.path[:-2])
    for name, content in seen.items():
        outer.values[name] = known_content(content)
    given = [ValueFacts(code.types.get(value.name)) for value in code.graph.inputs]
    run = AbstractRun(program, {})
    try:
        facts = run.block(code.graph, code.path, given, outer)
    except (_Failed, _OverBudget, *_WRONG_PROGRAM):
        return [code.types.get(value.name) for value in code.graph.outputs]
    names = [value.name for value in code.graph.outputs]
    return [fact.type or code.types.get(name) for name, fact in zip(names, facts, strict=True)]


def known_content(content: Any) -> ValueFacts:
    """Return a value of the run as a fact: its type, and its content if it is small and may decide sizes."""
    if not isinstance(content, np.ndarray):
        return ValueFacts()
    small = content.size <= SMALL and content.dtype.kind in "iub"
    return ValueFacts(type_of_array(content), content if small else None)


def _are_known(operands: Sequence[ValueFacts]) -> bool:
    return all(fact.data is not None for fact in operands if fact.type is not None)


def _adds_facts(op: Op, operands: Sequence[ValueFacts], results: Sequence[Type | None]) -> bool:
    """Return whether running the kernel on the known facts would add any about its results."""
    if op.random or op.reference or (op.kernel is None and op.ufunc is None):
        return False
    known, sized = _are_known(operands), all(known_type(type_) is not None for type_ in results)
    if known and sized:
        return sum(map(_total, results)) <= SMALL
    return op.content is Content.SIZES or (known or bool(op.host_operands or op.view)) and not sized


def _moved(node: Node, op: Op, operands: Sequence[ValueFacts]) -> frozenset[Origin]:
    """Return the inputs with elements in the first result, and the numbers added to them."""
    if node.op in ("Add", "Sub") and len(operands) == 2:
        left, right = operands
        if left.origins and right.data is not None and right.data.size == 1:
            added = right.data.reshape(-1)[0]
            if added == int(added):
                sign = 1 if node.op == "Add" else -1
                return frozenset((name, offset + sign * int(added)) for name, offset in left.origins)
        if node.op == "Add" and right.origins and left.data is not None and left.data.size == 1:
            return _moved(node, op, (right, left))
        return frozenset()
    if op.content not in (Content.MOVED, Content.CAST):
        return frozenset()
    sources = range(len(operands)) if op.sources is None else op.sources
    return frozenset().union(*(operands[index].origins for index in sources if index < len(operands)))


def _measured(fact: ValueFacts, made: Any, *, exact: bool) -> ValueFacts:
    """Return the fact with the sizes of a result, and with its content if that is `exact` and small."""
    if not isinstance(made, (np.ndarray, np.generic)):
        return fact
    array = np.asarray(made)
    dtype = fact.type.dtype if isinstance(fact.type, TensorType) else type_of_array(array).dtype
    return ValueFacts(
        TensorType(dtype, array.shape), array if exact and array.size <= SMALL else None, fact.origins
    )


def _total(type_: Type | None) -> int:
    known = known_type(type_)
    return prod(int(size) for size in known.shape or () if size is not None) if known is not None else 0


def _estimate(arrays: Sequence[Array | None], host: Sequence[int]) -> int:
    """Estimate the elements that a kernel allocates for operands of these sizes and counts."""
    total = max((array.size for array in arrays if array is not None), default=0)
    for index in host:
        array = arrays[index] if index < len(arrays) else None
        if array is not None and array.dtype.kind in "iu" and array.size:
            total = max(total, prod(max(1, abs(int(number))) for number in array.reshape(-1)))
    return total


def _is_empty(fact: ValueFacts) -> bool:
    known = tensor_only(fact.type)
    return known is not None and known.shape is not None and 0 in known.shape


def _numbers(node: Node, operands: Sequence[ValueFacts]) -> frozenset[int]:
    """Return the sizes in a statement: those of its operands, their products, small integers, attributes."""
    found: set[int] = set()
    for fact in operands:
        known = tensor_only(fact.type)
        if known is not None and known.shape is not None:
            numbers = [size for size in known.shape if isinstance(size, int)]
            found.update(numbers)
            found.add(prod(numbers))
        if fact.data is not None and fact.data.size <= 16 and fact.data.dtype.kind in "iu":
            listed = [int(number) for number in fact.data.reshape(-1)]
            found.update(listed)
            found.add(prod(number for number in listed if number > 0))
    for value in node.attributes.values():
        items = value if isinstance(value, tuple) else (value,)
        found.update(item for item in items if isinstance(item, int))
    return frozenset(number for number in found if number > 0)


def _joined(facts: Sequence[ValueFacts]) -> ValueFacts:
    """Return the facts common to all alternatives of a value."""
    origins = frozenset().union(*(fact.origins for fact in facts))
    return ValueFacts(
        joined_type([fact.type for fact in facts]), None if len(facts) > 1 else facts[0].data, origins
    )


def _stacked(fact: ValueFacts, count: int | None) -> ValueFacts:
    return ValueFacts(stacked_type(fact.type, count), None, fact.origins)
