"""Build a program in which some statements run in a narrower float type, with casts between the types.

Values that cross the boundary of a block, a call or the program keep their types, so each statement is
converted on its own.  Casting an f16 value to a wider type and back preserves its bits, so casts between
two narrow statements do not change the value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from nncdbg.engine.divergence.casting import cast_attributes
from nncdbg.engine.dtypes import ONNX
from nncdbg.engine.errors import GraphError
from nncdbg.engine.inference.graphs import TypeRules
from nncdbg.engine.ops.aten.names import base_name, is_torch
from nncdbg.engine.ops.aten.operators import F32_OPERANDS, F32_RESULTS
from nncdbg.engine.ops.schema import only_float
from nncdbg.ir.names import all_defined, claimed_name
from nncdbg.ir.records import (
    Graph,
    Node,
    Operand,
    Path,
    Program,
    TensorType,
    Type,
    Value,
)
from nncdbg.ir.walk import walk_nodes

Place: TypeAlias = "tuple[Path, int]"

WIDE = frozenset({"f32", "f64"})
"""Element types that are narrowed."""

NARROW = ("f16", "bf16")

Types: TypeAlias = "Mapping[Path, Mapping[str, Type | None]]"
"""Per block the types of its values in the original program."""


def mixed_program(program: Program, narrow: Collection[Place], dtype: str, types: Types) -> Program:
    """Return the program with the statements at `narrow` in `dtype`, and the others unchanged."""
    taken = {value.name for value in (*(s.value for s in program.states), *all_defined(program))}
    of_torch = any(is_torch(node.op) for node in walk_nodes(program))
    mixer = _Mixer(frozenset(narrow), dtype, types, program.opsets, taken, of_torch)
    graphs = {name: mixer.graph(graph, (name,), _Scope()) for name, graph in program.graphs.items()}
    return replace(program, graphs=graphs, listing=None)


def narrow_node(node: Node, dtype: str, opsets: Mapping[str, int]) -> Node:
    """Return a statement with `dtype` in place of wider float types in its attributes."""
    return replace(node, attributes=cast_attributes(node, dtype, opsets, WIDE))


def fixed(node: Node, index: int, opsets: Mapping[str, int]) -> bool:
    """Return whether an op accepts only one float type as its operand `index`."""
    if is_torch(node.op):
        return F32_OPERANDS.get(base_name(node.op)) == index
    return only_float(node, index, opsets) in WIDE


def is_wide(known: Type | None) -> bool:
    """Return whether values of a type are narrowed."""
    return isinstance(known, TensorType) and known.dtype in WIDE


@dataclass(slots=True)
class _Scope:
    """The narrow values at a place, and the available casts by (name, dtype)."""

    narrow: set[str] = field(default_factory=set)
    casts: dict[tuple[str, str], str] = field(default_factory=dict)
    wide: dict[str, str] = field(default_factory=dict)
    """The original dtype of each narrow value."""

    def inner(self) -> _Scope:
        return _Scope(set(self.narrow), dict(self.casts), dict(self.wide))

    def hide(self, name: str) -> None:
        """Forget an outer value, because a block defines its own value with this name."""
        self.narrow.discard(name)
        self.casts = {key: cast for key, cast in self.casts.items() if key[0] != name}


@dataclass(slots=True)
class _Mixer:
    low: frozenset[Place]
    dtype: str
    types: Types
    opsets: Mapping[str, int]
    taken: set[str]
    of_torch: bool
    """Whether casts are operators of PyTorch, as the other statements."""

    def graph(self, graph: Graph, path: Path, scope: _Scope) -> Graph:
        for value in (*graph.inputs, *(each.value for each in graph.constants)):
            scope.hide(value.name)
        nodes: list[Node] = []
        for pc, node in enumerate(graph.nodes):
            for value in node.outputs:
                scope.hide(value.name)
            if (path, pc) in self.low:
                nodes += self._narrow(node, path, scope, {each.name for each in graph.outputs})
            else:
                nodes += self._wide(node, path, pc, scope)
        outputs = []
        for value in graph.outputs:
            before, name = self._as_was(value.name, scope)
            nodes += before
            outputs.append(replace(value, name=str(name)))
        return replace(graph, nodes=tuple(nodes), outputs=tuple(outputs))

    def _wide(self, node: Node, path: Path, pc: int, scope: _Scope) -> list[Node]:
        """Return the unchanged statement, preceded by casts of its narrow operands."""
        before: list[Node] = []
        inputs: list[Operand] = []
        for operand in node.inputs:
            casts, name = self._as_was(operand, scope)
            before += casts
            inputs.append(name)
        bodies = tuple(
            self.graph(body, (*path, pc, index), scope.inner()) for index, body in enumerate(node.subgraphs)
        )
        return [*before, replace(node, inputs=tuple(inputs), subgraphs=bodies)]

    def _narrow(self, node: Node, path: Path, scope: _Scope, given: set[str]) -> list[Node]:
        """Return a statement in the narrow type with its casts; `given` are the results of its block."""
        before: list[Node] = []
        inputs: list[Operand] = []
        for index, operand in enumerate(node.inputs):
            if isinstance(operand, str) and not fixed(node, index, self.opsets):
                casts, name = self._as_narrow(operand, path, scope)
            else:
                casts, name = self._as_was(operand, scope)
            before += casts
            inputs.append(name)
        changed = replace(narrow_node(node, self.dtype, self.opsets), inputs=tuple(inputs))
        outputs, after = self._outputs(changed, node, path, scope, given)
        return [*before, replace(changed, outputs=tuple(outputs)), *after]

    def _outputs(
        self, node: Node, was: Node, path: Path, scope: _Scope, given: set[str]
    ) -> tuple[list[Value], list[Node]]:
        """Record the narrow results; return all results, and the casts of those that leave the block."""
        inferred = self._inferred(node, was, path, scope)
        outputs: list[Value] = []
        after: list[Node] = []
        keeps = F32_RESULTS.get(base_name(node.op)) if is_torch(node.op) else None
        for index, (value, known) in enumerate(zip(node.outputs, inferred, strict=True)):
            before = self.types.get(path, {}).get(value.name)
            narrow = is_wide(before) and (known is None or _dtype(known) == self.dtype) and index != keeps
            if narrow and value.name:
                assert isinstance(before, TensorType)
                name, declared = value.name, value.type
                if name in given:
                    name = claimed_name(f"{name}.{self.dtype}", self.taken, first=2)
                    scope.casts[value.name, self.dtype] = name
                    after.append(self._cast_node(name, value, before.dtype))
                else:
                    scope.narrow.add(name)
                    scope.wide[name] = before.dtype
                known = replace(declared, dtype=self.dtype) if isinstance(declared, TensorType) else None
                outputs.append(Value(name, known))
            else:
                outputs.append(value)
        return outputs, after

    def _inferred(self, node: Node, was: Node, path: Path, scope: _Scope) -> Sequence[Type | None]:
        types = [self._type(new, old, path, scope) for new, old in zip(node.inputs, was.inputs, strict=True)]
        try:
            rules = TypeRules(self.opsets, {})
            return rules.inferred(node, rules.literal_types(node, tuple(types)))
        except GraphError:
            # The op does not accept the type; execution reports the error.
            return [None] * len(node.outputs)

    def _type(self, new: Operand, old: Operand, path: Path, scope: _Scope) -> Type | None:
        if not isinstance(old, str):
            return None
        known = self._known(old, path)
        if isinstance(known, TensorType) and (
            new in scope.narrow or new == scope.casts.get((old, self.dtype))
        ):
            return replace(known, dtype=self.dtype)
        return known

    def _known(self, name: str, path: Path) -> Type | None:
        """Return the original type of a value of this block or an enclosing one."""
        while path:
            if name in self.types.get(path, {}):
                return self.types[path][name]
            path = path[:-2]
        return None

    # -- casts -------------------------------------------------------------------------------------

    def _as_was(self, operand: Operand, scope: _Scope) -> tuple[list[Node], Operand]:
        if not isinstance(operand, str) or operand not in scope.narrow:
            return [], operand
        return self._cast(operand, scope.wide[operand], scope)

    def _as_narrow(self, operand: str, path: Path, scope: _Scope) -> tuple[list[Node], Operand]:
        if operand in scope.narrow or not is_wide(self._known(operand, path)):
            return [], operand
        return self._cast(operand, self.dtype, scope)

    def _cast(self, name: str, dtype: str, scope: _Scope) -> tuple[list[Node], Operand]:
        known = scope.casts.get((name, dtype))
        if known is not None:
            return [], known
        result = scope.casts[name, dtype] = claimed_name(f"{name}.{dtype}", self.taken, first=2)
        return [self._cast_node(name, Value(result), dtype)], result

    def _cast_node(self, name: str, result: Value, dtype: str) -> Node:
        if self.of_torch:
            return Node("aten._to_copy.default", (name,), (result,), {"dtype": dtype})
        return Node("Cast", (name,), (result,), {"to": ONNX[dtype]})


def _dtype(known: Type) -> str | None:
    return known.dtype if isinstance(known, TensorType) else None
