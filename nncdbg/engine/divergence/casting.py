"""Cast a program to another element type: float weights, inputs and casts; the statements stay the same.

Integers, bools and strings keep their types.  So does a constant that only feeds operands restricted to
one float type, such as the scales of Resize.  Casts are inserted around other operands and results with
a fixed float type: %x.f32 before a DynamicQuantizeLinear.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import FROM_ONNX, NUMPY, ONNX, name_of
from nncdbg.engine.errors import UsageError
from nncdbg.engine.frontends.stores import Store
from nncdbg.engine.ops.schema import only_float, schema, version_of
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
    Program,
    Reference,
    StateLine,
    TensorType,
    Type,
    Value,
)
from nncdbg.ir.walk import blocks

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
