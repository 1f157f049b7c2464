"""A program in another element type: its float weights, inputs and casts, statement for statement the same.

Integers, bools and strings stay.  So does a constant at an operand that the op takes in one float
type only, such as the scales of Resize.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import FROM_ONNX, NUMPY, ONNX, name_of
from nncdbg.engine.errors import UsageError
from nncdbg.engine.graph import (
    Array,
    Attribute,
    Constant,
    Graph,
    Inline,
    Node,
    Program,
    TensorType,
    Type,
    Value,
)
from nncdbg.engine.ops.schema import schema, version_of
from nncdbg.engine.stores import Store

WIDTHS = ("f16", "bf16", "f32", "f64")
"""What can be cast to, and what is cast."""

_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_datatype"})
"""Attributes that hold an ONNX element type."""


def cast_program(program: Program, dtype: str) -> Program:
    """The program with its floats of 16 bits and more as `dtype`.  Raises UsageError for another type."""
    if dtype not in WIDTHS:
        raise UsageError(f"a program cannot be cast to {dtype!r}", hint=f"one of: {', '.join(WIDTHS)}")
    kept = _kept(program)
    caster = _Caster(dtype, kept, program.opsets)
    graphs = {name: caster.graph(graph) for name, graph in program.graphs.items()}
    readers = tuple(_CastStore(reader, dtype, kept) for reader in program.readers)
    return replace(program, graphs=graphs, readers=readers, listing=None)


def cast_array(array: Any, dtype: str) -> Any:
    """A float tensor as `dtype`, items of a sequence too; what is no float as it is."""
    if isinstance(array, (list, tuple)):
        return [cast_array(item, dtype) for item in array]
    if not isinstance(array, np.ndarray) or name_of(array.dtype) not in WIDTHS:
        return array
    with np.errstate(all="ignore"):
        return array.astype(NUMPY[dtype], copy=False)


def blocks(graph: Graph) -> Iterator[Graph]:
    """A graph and all blocks inside it."""
    stack = [graph]
    while stack:
        each = stack.pop()
        yield each
        stack.extend(inner for node in each.nodes for inner in node.subgraphs)


def _kept(program: Program) -> frozenset[str]:
    """The values at operands that admit one float type only."""
    found: set[str] = set()
    for graph in program.graphs.values():
        for node in (node for block in blocks(graph) for node in block.nodes):
            known = schema(node.op, version_of(node.op, program.opsets))
            for index, operand in enumerate(node.inputs):
                if known is None or not known.inputs or not isinstance(operand, str):
                    continue
                formal = known.inputs[min(index, len(known.inputs) - 1)].type
                if formal in ("tensor(float)", "tensor(double)", "tensor(float16)"):
                    found.add(operand)
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class _CastStore:
    """Another store, whose floats come cast."""

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


@dataclass(frozen=True, slots=True)
class _Caster:
    dtype: str
    kept: frozenset[str]
    opsets: Mapping[str, int]

    def graph(self, graph: Graph) -> Graph:
        return replace(
            graph,
            inputs=tuple(map(self._value, graph.inputs)),
            outputs=tuple(map(self._value, graph.outputs)),
            constants=tuple(map(self._constant, graph.constants)),
            nodes=tuple(map(self._node, graph.nodes)),
        )

    def _value(self, value: Value) -> Value:
        if value.name in self.kept or value.type is None:
            return value
        return replace(value, type=self._type(value.type))

    def _type(self, type_: Type) -> Type:
        if isinstance(type_, TensorType):
            return replace(type_, dtype=self.dtype) if type_.dtype in WIDTHS else type_
        return replace(type_, element=self._type(type_.element))

    def _constant(self, constant: Constant) -> Constant:
        data = constant.data
        if constant.value.name in self.kept or not isinstance(data, Inline):
            return replace(constant, value=self._value(constant.value))
        return Constant(self._value(constant.value), Inline(cast_array(data.array, self.dtype)))

    def _node(self, node: Node) -> Node:
        return replace(
            node,
            # What a statement gives follows from its operands; an op may give one float type only.
            outputs=tuple(Value(value.name) for value in node.outputs),
            attributes=self._attributes(node),
            subgraphs=tuple(map(self.graph, node.subgraphs)),
        )

    def _attributes(self, node: Node) -> Mapping[str, Attribute]:
        if any(value.name in self.kept for value in node.outputs):
            return node.attributes
        given = {**self._defaults(node), **node.attributes}
        return {key: self._attribute(key, value) for key, value in given.items()}

    def _defaults(self, node: Node) -> dict[str, Attribute]:
        """The attributes left out that stand for f32."""
        if node.op == "ConstantOfShape":
            return {"value": Inline(np.zeros(1, np.float32))}
        known = schema(node.op, version_of(node.op, self.opsets))
        defaults = {} if known is None else known.attributes
        return {key: defaults[key] for key in _TYPE_ATTRIBUTES if isinstance(defaults.get(key), int)}

    def _attribute(self, key: str, value: Attribute) -> Attribute:
        if isinstance(value, Inline):
            return Inline(cast_array(value.array, self.dtype))
        if key in _TYPE_ATTRIBUTES and isinstance(value, int) and FROM_ONNX.get(value) in WIDTHS:
            return ONNX[self.dtype]
        return value
