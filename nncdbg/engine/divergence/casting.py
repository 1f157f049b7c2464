"""Cast a whole program, or some of its statements, to another float type.

A cast program has other float weights, inputs and casts; its statements stay the same.

Integers, bools and strings keep their types.  So does a constant that only feeds operands restricted to
one float type, such as the scales of Resize.  Casts are inserted around other operands and results with
a fixed float type: %x.f32 before a DynamicQuantizeLinear.

A mixed program runs some statements in a narrower float type, with casts between the types.  Values that
cross the boundary of a block, a call or the program keep their types, so each statement is converted on its
own.  Casting an f16 value to a wider type and back preserves its bits, so casts between two narrow statements
do not change the value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from nncdbg.dtypes import FROM_ONNX, NUMPY, ONNX, name_of
from nncdbg.engine.frontends.stores import Store
from nncdbg.engine.inference.graphs import TypeRules
from nncdbg.engine.ops.aten.operators import CAST, F32_OPERANDS, F32_RESULTS
from nncdbg.engine.ops.schema import only_float, schema, version_of
from nncdbg.errors import GraphError, UsageError
from nncdbg.ir.names import all_defined, claimed_name
from nncdbg.ir.records import (
    Array,
    Attribute,
    Constant,
    Graph,
    Inline,
    MapType,
    Node,
    Operand,
    Path,
    Program,
    Reference,
    StateLine,
    TensorType,
    Type,
    Value,
    tensor_only,
)
from nncdbg.ir.walk import blocks
from nncdbg.text.lexemes import name_text
from nncdbg.text.torch_names import base_name, is_torch

WIDTHS = ("f16", "bf16", "f32", "f64")
"""The element types that are cast, which are also the possible targets."""

_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_datatype"})
"""Attributes that hold an ONNX element type."""


def cast_program(program: Program, dtype: str) -> Program:
    """Return the program with floats of 16 bits and more as `dtype`.  Raises UsageError for other dtypes."""
    if dtype not in WIDTHS:
        raise UsageError(f"a program cannot be cast to {dtype!r}", hint=f"use one of: {', '.join(WIDTHS)}")
    kept = _kept(program)
    graphs = {
        name: _Caster(dtype, kept.names[name], program.opsets, {v.name for v in all_defined(graph)}).graph(
            graph
        )
        for name, graph in program.graphs.items()
    }
    of_states = _Caster(dtype, frozenset(), program.opsets, set())
    states = tuple(map(of_states.state, program.states))
    readers = tuple(_CastStore(reader, dtype, kept.keys) for reader in program.readers)
    return replace(program, graphs=graphs, states=states, readers=readers, listing=None)


def has_same_places(program: Program, cast: Program) -> bool:
    """Return whether a program has its statements at the places of another: as many in each block."""
    return program.graphs.keys() == cast.graphs.keys() and all(
        [len(block.nodes) for _, block in blocks(graph)]
        == [len(block.nodes) for _, block in blocks(cast.graphs[name])]
        for name, graph in program.graphs.items()
    )


def cast_array(array: Any, dtype: str) -> Any:
    """Cast a float tensor, or the float items of a sequence, to `dtype`; others are returned unchanged."""
    if isinstance(array, (list, tuple)):
        return [cast_array(item, dtype) for item in array]
    if not isinstance(array, np.ndarray) or name_of(array.dtype) not in WIDTHS:
        return array
    with np.errstate(all="ignore"):
        return array.astype(NUMPY[dtype], copy=False)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Values that keep their float type, because every op that reads them accepts only this type."""

    names: Mapping[str, frozenset[str]]
    """Values per graph: constants, entry inputs, and results with a type set by an attribute."""
    keys: frozenset[str]
    """The keys of those values that are stored data."""


def _kept(program: Program) -> _Kept:
    names: dict[str, frozenset[str]] = {}
    keys: set[str] = set()
    for name, graph in program.graphs.items():
        inside = [block for _, block in blocks(graph)]
        constants = {each.value.name: each.data for block in inside for each in block.constants}
        sources = {*constants, *(value.name for value in graph.inputs if name == program.entry)}
        for node in (node for block in inside for node in block.nodes):
            if _TYPE_ATTRIBUTES & {*node.attributes, *_type_defaults(node, program.opsets)}:
                sources.update(value.name for value in node.outputs)
        fixed, free = _uses(inside, program.opsets)
        names[name] = frozenset(sources & fixed - free)
        found = (constants.get(each) for each in names[name])
        keys.update(data.key for data in found if isinstance(data, Reference))
    return _Kept(names, frozenset(keys))


def _uses(inside: Sequence[Graph], opsets: Mapping[str, int]) -> tuple[set[str], set[str]]:
    """Return the values read by operands with one fixed float type, and those read elsewhere."""
    fixed: set[str] = set()
    free = {value.name for block in inside for value in block.outputs}
    for node in (node for block in inside for node in block.nodes):
        for index, operand in enumerate(node.inputs):
            if isinstance(operand, str):
                (fixed if only_float(node, index, opsets) else free).add(operand)
    return fixed, free


def _type_defaults(node: Node, opsets: Mapping[str, int]) -> dict[str, Attribute]:
    """Return the omitted attributes that default to f32."""
    if node.op == "ConstantOfShape":
        return {"value": Inline(np.zeros(1, np.float32))}
    known = schema(node.op, version_of(node.op, opsets))
    defaults = {} if known is None else known.attributes
    return {key: defaults[key] for key in _TYPE_ATTRIBUTES if isinstance(defaults.get(key), int)}


@dataclass(frozen=True, slots=True)
class _CastStore:
    """A view of another store that casts floats when they are read."""

    store: Store
    dtype: str
    kept: frozenset[str]

    def keys(self) -> Any:
        return self.store.keys()

    def type(self, key: str) -> TensorType:
        known = self.store.type(key)
        return known if key in self.kept or known.dtype not in WIDTHS else replace(known, dtype=self.dtype)

    def read(self, key: str) -> Array:
        array = self.store.read(key)
        if key in self.kept:
            return array
        cast: Array = cast_array(array, self.dtype)
        cast.flags.writeable = False
        return cast


@dataclass(slots=True)
class _Caster:
    """Casts one graph of the program, and the blocks inside it.

    Casts are inserted around ops that accept or return only one float type.
    """

    dtype: str
    kept: frozenset[str]
    opsets: Mapping[str, int]
    taken: set[str]
    """Value names in use, which inserted casts must not reuse."""

    def graph(self, graph: Graph, narrow: Mapping[str, str] | None = None) -> Graph:
        """Return the cast graph; `narrow` maps results with a fixed float type to their casts."""
        known = dict(narrow or {})
        nodes = [made for node in graph.nodes for made in self._nodes(node, known)]
        return replace(
            graph,
            inputs=tuple(map(self._value, graph.inputs)),
            outputs=tuple(self._value(self._renamed(value, known)) for value in graph.outputs),
            constants=tuple(map(self._constant, graph.constants)),
            nodes=tuple(nodes),
        )

    def state(self, state: StateLine) -> StateLine:
        """Return a state with its first value in the other type."""
        value, first = self._value(state.value), state.first
        if isinstance(first, Inline):
            first = Inline(cast_array(first.array, self.dtype))
        elif isinstance(first, Node):
            first = replace(first, outputs=(value,), attributes=self._attributes(first))
        return replace(state, value=value, first=first)

    def _value(self, value: Value) -> Value:
        if value.name in self.kept or value.type is None:
            return value
        return replace(value, type=self._type(value.type))

    def _renamed(self, value: Value, narrow: Mapping[str, str]) -> Value:
        return replace(value, name=narrow.get(value.name, value.name))

    def _type(self, type_: Type) -> Type:
        if isinstance(type_, TensorType):
            return replace(type_, dtype=self.dtype) if type_.dtype in WIDTHS else type_
        return type_ if isinstance(type_, MapType) else replace(type_, element=self._type(type_.element))

    def _constant(self, constant: Constant) -> Constant:
        data = constant.data
        if constant.value.name in self.kept or not isinstance(data, Inline):
            return replace(constant, value=self._value(constant.value))
        return Constant(self._value(constant.value), Inline(cast_array(data.array, self.dtype)))

    def _nodes(self, node: Node, narrow: dict[str, str]) -> list[Node]:
        """Return the casts of the operands, the statement, and the casts of its results."""
        before: list[Node] = []
        inputs: list[Operand] = []
        for index, operand in enumerate(node.inputs):
            wanted = only_float(node, index, self.opsets)
            if not isinstance(operand, str) or operand in self.kept:
                inputs.append(operand)
            elif wanted is None or wanted == self.dtype:
                inputs.append(narrow.get(operand, operand))
            elif operand in narrow:
                inputs.append(operand)
            else:
                inputs.append(claimed_name(f"{operand}.{wanted}", self.taken, first=2))
                before.append(_cast(operand, str(inputs[-1]), wanted))
        after = []
        for value, wanted in zip(node.outputs, self._result_floats(node), strict=True):
            if value.name and wanted not in (None, self.dtype) and value.name not in self.kept:
                narrow[value.name] = claimed_name(f"{value.name}.{self.dtype}", self.taken, first=2)
                after.append(_cast(value.name, narrow[value.name], self.dtype))
        made = replace(
            node,
            inputs=tuple(inputs),
            # Result types follow from the operands, but an op may return one fixed float type.
            outputs=tuple(Value(value.name) for value in node.outputs),
            attributes=self._attributes(node),
            subgraphs=tuple(self.graph(body, narrow) for body in node.subgraphs),
        )
        return [*before, made, *after]

    def _result_floats(self, node: Node) -> list[str | None]:
        """Return per result the fixed float type of the op; None if it depends on operands or attributes."""
        known = schema(node.op, version_of(node.op, self.opsets))
        if known is None or not known.outputs:
            return [None] * len(node.outputs)
        last = len(known.outputs) - 1
        return [known.outputs[min(index, last)].only_float for index in range(len(node.outputs))]

    def _attributes(self, node: Node) -> Mapping[str, Attribute]:
        if any(value.name in self.kept for value in node.outputs):
            return node.attributes
        return cast_attributes(node, self.dtype, self.opsets)


def cast_attributes(
    node: Node, dtype: str, opsets: Mapping[str, int], widths: Collection[str] = WIDTHS
) -> Mapping[str, Attribute]:
    """Return a statement's attributes with tensors and element types of `widths` changed to `dtype`."""
    given = {**_type_defaults(node, opsets), **node.attributes}
    return {key: _cast_attribute(key, value, dtype, widths) for key, value in given.items()}


def _cast_attribute(key: str, value: Attribute, dtype: str, widths: Collection[str]) -> Attribute:
    if isinstance(value, Inline) and name_of(value.array.dtype) in widths:
        return Inline(cast_array(value.array, dtype))
    if key in _TYPE_ATTRIBUTES and isinstance(value, int) and FROM_ONNX.get(value) in widths:
        return ONNX[dtype]
    return value


def _cast(name: str, result: str, dtype: str) -> Node:
    return Node("Cast", (name,), (Value(result),), {"to": ONNX[dtype]})


def inputs_like(graph: Graph, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return arrays for the inputs of `graph`, from those `given` to another graph, and notes for users.

    An input of the same name gets the same array; the rest are paired in order.  Floats are cast to
    the declared type of the input.  Inputs without an array are absent from the result.
    """
    pairs = input_pairs(graph, given)
    taken = {
        value.name: _as_declared(value, given[pairs[value.name]])
        for value in graph.inputs
        if value.name in pairs
    }
    notes = [
        f"input %{name_text(name)} of side B receives the value of %{name_text(source)} of side A"
        for name, source in pairs.items()
        if name != source
    ]
    left = [name for name in given if name not in pairs.values()]
    return taken, [*notes, *(f"input %{name_text(name)} of side A has no counterpart" for name in left)]


def input_pairs(graph: Graph, given: Iterable[str]) -> dict[str, str]:
    """Return a map from inputs of `graph` to `given` names of the other graph: by name, then in order."""
    names = list(given)
    left = [name for name in names if name not in {value.name for value in graph.inputs}]
    pairs: dict[str, str] = {}
    for value in graph.inputs:
        if value.name in names:
            pairs[value.name] = value.name
        elif left:
            pairs[value.name] = left.pop(0)
    return pairs


def _as_declared(value: Value, array: Any) -> Any:
    known = tensor_only(value.type)
    return cast_array(array, known.dtype) if known is not None and known.dtype in WIDTHS else array


Place: TypeAlias = "tuple[Path, int]"

WIDE = frozenset({"f32", "f64"})
"""Element types that are narrowed."""

NARROW = ("f16", "bf16")

Types: TypeAlias = "Mapping[Path, Mapping[str, Type | None]]"
"""Per block the types of its values in the original program."""


def mixed_program(program: Program, narrow: Collection[Place], dtype: str, types: Types) -> Program:
    """Return the program with the statements at `narrow` in `dtype`, and the others unchanged."""
    taken = {state.value.name for state in program.states} | {
        value.name
        for _, graph in blocks(program)
        for value in (
            *graph.inputs,
            *(each.value for each in graph.constants),
            *(value for node in graph.nodes for value in node.outputs),
        )
    }
    of_torch = any(is_torch(node.op) for _, graph in blocks(program) for node in graph.nodes)
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
            return Node(CAST, (name,), (result,), {"dtype": dtype})
        return Node("Cast", (name,), (result,), {"to": ONNX[dtype]})


def _dtype(known: Type) -> str | None:
    return known.dtype if isinstance(known, TensorType) else None
