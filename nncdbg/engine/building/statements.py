"""Statements of a graph that is being built: names, types and constants; the core of all builders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from nncdbg.engine.compilation.inference import literal_dtype, output_types
from nncdbg.engine.graph import (
    Constant,
    Graph,
    Literal,
    Location,
    Node,
    Operand,
    TensorType,
    Type,
    tensor_only,
)
from nncdbg.engine.ops.schema import version_of


class Statements:
    """Statements that are typed as they are appended.

    `types` are those of all values, as far as they are known.
    """

    def __init__(
        self,
        opsets: Mapping[str, int],
        graphs: Mapping[str, Graph],
        types: Mapping[str, Type | None],
        used: set[str],
    ) -> None:
        self.opsets = opsets
        self.graphs = graphs
        self.types = dict(types)
        self.nodes: list[Node] = []
        self.constants: list[Constant] = []
        self.location: Location | None = None
        self.used = used
        """The names that a new value may not have."""

    @property
    def version(self) -> int:
        """The opset of ONNX's own operators."""
        return version_of("Identity", self.opsets)

    def type_of(self, operand: Operand) -> TensorType | None:
        """Return the type of a value, None where it is not known, or for data in place."""
        return tensor_only(self.types.get(operand)) if isinstance(operand, str) else None

    def types_at(self, node: Node) -> list[Type | None]:
        """Return the types of a statement's operands."""
        types = [self.types.get(operand) if isinstance(operand, str) else None for operand in node.inputs]
        for index, operand in enumerate(node.inputs):
            if isinstance(operand, Literal):
                dtype = literal_dtype(operand, node, index, types, self.opsets)
                types[index] = TensorType(dtype, np.shape(operand.data))
        return types

    def inferred(self, node: Node) -> Sequence[Type | None]:
        """Return the types of a statement's outputs, as far as they are known.

        Raises GraphError if the operands or attributes do not fit the op.
        """
        if node.op.startswith("@"):
            called = self.graphs.get(node.op[1:])
            return [value.type for value in called.outputs] if called else [None] * len(node.outputs)
        if node.subgraphs or node.op == "break":
            return [None] * len(node.outputs)
        return output_types(node, self.types_at(node), self.opsets)

    def append(self, node: Node) -> None:
        """Append a statement as it is."""
        self.nodes.append(node)
        self.learn(node)

    def learn(self, node: Node) -> None:
        """Store what is known of the types of a statement's outputs."""
        for value, known in zip(node.outputs, self.inferred(node), strict=False):
            exact = isinstance(known, TensorType) and known.concrete
            self.types[value.name] = known if exact or value.type is None else value.type

    def append_constant(self, constant: Constant, name: str) -> str:
        """Append a constant under a name; the name."""
        self.constants.append(replace(constant, value=replace(constant.value, name=name)))
        self.types[name] = constant.value.type
        return name

    def fresh(self, name: str) -> str:
        """Return a value name that is still free: `name`, or ``name.1`` and so on."""
        free, count = name, 0
        while free in self.used:
            count += 1
            free = f"{name}.{count}"
        self.used.add(free)
        return free
