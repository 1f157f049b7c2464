"""The types that an ONNX graph declares for its values, corrected where inference contradicts them.

Tools that edit a model often leave stale shapes in `value_info`.  ONNX treats such a shape as a hint,
and onnxruntime ignores it.  Program text has no hints: its types are checked.  So a declared shape that
cannot be right is replaced before the graph becomes a program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TypeAlias

from nncdbg.engine.inference.graphs import Answers, GraphInference
from nncdbg.engine.inference.statements import Types
from nncdbg.engine.inference.types import common_type
from nncdbg.errors import NncdbgError
from nncdbg.ir.names import reads
from nncdbg.ir.records import (
    Constant,
    Dim,
    Graph,
    Node,
    Path,
    Type,
    Value,
    tensor_only,
    without_sizes,
)
from nncdbg.ir.rewrite import rewrite
from nncdbg.ir.walk import node_at, walk_nodes
from nncdbg.text.lexemes import name_text

Key: TypeAlias = tuple[Path, str]
"""A value: the path of its block, and its name."""

_NAMED = 3
"""The number of stale shapes reported one by one; the others are counted."""


@dataclass(frozen=True, slots=True)
class StaleShape:
    """A declared type that was replaced."""

    name: str
    declared: Type
    inferred: Type
    op: str

    def __str__(self) -> str:
        known = tensor_only(self.inferred)
        if known is not None and known.shape is not None and None not in known.shape:
            fact = f"but {self.op or 'the loop'} returns {self.inferred}"
        else:
            fact = "which contradicts the statements that read it"
        return f"%{name_text(self.name)} is declared {self.declared}, {fact}: the declared shape is ignored"


def stale_shape_notes(found: Sequence[StaleShape]) -> tuple[str, ...]:
    """Return notes that name the first few stale shapes and count the others."""
    notes = [f"stale shape in the model: {stale}" for stale in found[:_NAMED]]
    others = len(found) - _NAMED
    if others > 0:
        notes.append(f"{others} more stale shape{'s' * (others > 1)} of the model: ignored")
    return tuple(notes)


def with_inferred_types(graph: Graph, opsets: Mapping[str, int]) -> tuple[Graph, list[StaleShape]]:
    """Replace each declared type that inference contradicts; return the graph and the replaced types.

    A statement that fails only because of declared sizes of its operands loses these sizes.  A graph with
    another error keeps its types from there on, so that the compiler reports the error.
    """
    if not any(value.type for node in walk_nodes(graph) for value in node.outputs):
        return graph, []
    types = [tensor_only(value.type) for value in graph.inputs]
    dims: list[Dim] = [dim for known in types if known is not None for dim in known.shape or ()]
    symbols = frozenset(dim for dim in dims if isinstance(dim, str))
    confirmed: set[Key] = set()
    distrusted: set[Key] = set()
    last: Node | None = None
    answers: Answers = {}
    while True:
        inference = _LenientInference(opsets, distrusted, symbols, answers)
        failed = _failing_node(graph, inference)
        if failed is None:
            break
        if failed is not last:
            confirmed, last = set(distrusted), failed
        suspects = _nearest(graph, failed, inference.trusted)
        if not suspects:
            inference = _LenientInference(opsets, confirmed, symbols, answers)
            _failing_node(graph, inference)
            break
        distrusted |= suspects
    if not inference.replaced:
        return graph, []
    return _retyped(graph, inference.replaced)


class _LenientInference(GraphInference):
    """Inference in which inferred types replace declared ones; sizes of `distrusted` values are ignored.

    `symbols` are the symbolic sizes of the graph's inputs: any number is possible.
    """

    def __init__(
        self, opsets: Mapping[str, int], distrusted: set[Key], symbols: frozenset[str], answers: Answers
    ) -> None:
        super().__init__(opsets, {}, _declared, self._note, answers)
        self.distrusted = distrusted
        self.symbols = symbols
        self.trusted: set[Key] = set()
        """Values with sizes that come from their declaration only."""
        self.replaced: dict[Key, Type] = {}
        self.failures: list[tuple[Path, int]] = []

    def _note(self, path: Path, pc: int, error: NncdbgError) -> NncdbgError:
        self.failures.append((path, pc))
        return error

    def agreed(
        self,
        value: Value,
        inferred: Type | None,
        output: int | None = None,
        source: str = "the op returns",
        statement: tuple[Node, Types] | None = None,
    ) -> Type | None:
        declared, key = value.type, (self.path, value.name)
        if declared is None:
            return inferred
        if key in self.distrusted:
            self.replaced[key] = inferred or without_sizes(declared)
            return self.replaced[key]
        if inferred is None:
            self.trusted.add(key)
            return declared
        found = common_type(declared, inferred)
        if found is None and without_sizes(declared) != without_sizes(inferred):
            return super().agreed(value, inferred, output, source, statement)
        if found is None or self._fixes_symbol(declared, inferred):
            self.replaced[key] = inferred
            return inferred
        if found != inferred:
            self.trusted.add(key)
        return found

    def _fixes_symbol(self, declared: Type, inferred: Type) -> bool:
        """Return whether a size is declared as a number, but inference finds that any size is possible."""
        stated, known = tensor_only(declared), tensor_only(inferred)
        if stated is None or known is None or stated.shape is None or known.shape is None:
            return False
        return any(
            isinstance(number, int) and size in self.symbols
            for number, size in zip(stated.shape, known.shape, strict=True)
        )

    def carried(self, value: Value, initial: Type | None, index: int) -> Type | None:
        declared, key = value.type, (self.path, value.name)
        loose = without_sizes(initial) if initial is not None else None
        if declared is None:
            return loose
        contradicts = initial is not None and common_type(declared, initial) is None
        if key in self.distrusted or (contradicts and loose == without_sizes(declared)):
            self.replaced[key] = without_sizes(declared)
            return self.replaced[key]
        self.trusted.add(key)
        return declared

    def check_ends(
        self, wanted: Sequence[Value], names: Sequence[str], found: Types, where: str = ""
    ) -> None:
        """Replace declared types of results and carried values that contradict the returned types."""
        for value, known in zip(wanted, found, strict=False):
            if value.type is None or known is None or common_type(value.type, known) is not None:
                continue
            if without_sizes(value.type) == without_sizes(known):
                self.replaced[self.path, value.name] = known if where else without_sizes(known)


def _declared(constant: Constant) -> Type:
    assert constant.value.type is not None  # A constant of a model has the type of its tensor.
    return constant.value.type


def _failing_node(graph: Graph, inference: _LenientInference) -> Node | None:
    """Infer the types of the graph; return the statement at which that fails, or None."""
    try:
        inference.infer(graph, [None] * len(graph.inputs))
    except NncdbgError:
        # An error in the last line is reported when the program is compiled.
        return node_at(graph, *inference.failures[0])
    return None


def _nearest(graph: Graph, node: Node, trusted: set[Key]) -> set[Key]:
    """Return the values nearest to the operands of `node` with sizes that are only declared."""
    keys: dict[str, list[Key]] = {}
    for key in trusted:
        keys.setdefault(key[1], []).append(key)
    producers = {value.name: each for each in walk_nodes(graph) for value in each.outputs}
    found: set[Key] = set()
    seen = set(reads(node))
    stack = list(seen)
    while stack:
        name = stack.pop()
        if name in keys:
            found.update(keys[name])
        elif name in producers:
            fresh = set(reads(producers[name])) - seen
            seen |= fresh
            stack.extend(fresh)
    return found


def _retyped(graph: Graph, types: Mapping[Key, Type]) -> tuple[Graph, list[StaleShape]]:
    """Return the graph and its blocks with new types, and the replaced types in the order of the text."""
    found: list[tuple[Path, StaleShape]] = []

    def value(path: Path, old: Value, place: Path = (), op: str = "") -> Value:
        new = types.get((path, old.name))
        if new is None or old.type is None or new == old.type:
            return old
        if place:
            found.append((place, StaleShape(old.name, old.type, new, op)))
        return replace(old, type=new)

    def statement(path: Path, pc: int, node: Node) -> Node:
        outputs = tuple(value(path, each, (*path, pc), node.op) for each in node.outputs)
        return replace(node, outputs=outputs)

    def block(path: Path, new: Graph) -> Graph:
        inputs = tuple(value(path, each, path) for each in new.inputs)
        return replace(new, inputs=inputs, outputs=tuple(value(path, each) for each in new.outputs))

    made = rewrite(graph, statement, block)
    return made, [stale for _, stale in sorted(found, key=itemgetter(0))]
