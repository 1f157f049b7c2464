"""Statements of a graph in construction: names, types and constants; the core of all builders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nncdbg.engine.graph import (
    Constant,
    Graph,
    Location,
    Node,
    Operand,
    TensorType,
    Type,
    tensor_only,
)
from nncdbg.engine.inference.graphs import TypeRules
from nncdbg.engine.inference.types import common_type, joined_type
from nncdbg.engine.ops.schema import version_of
from nncdbg.engine.text.lexemes import claimed_name


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
        self.rules = TypeRules(opsets, graphs)
        self.nodes: list[Node] = []
        self.constants: list[Constant] = []
        self.location: Location | None = None
        self.used = used
        """The names that new values must not use."""

    @property
    def version(self) -> int:
        """The opset of ONNX's own operators."""
        return version_of("Identity", self.opsets)

    def type_of(self, operand: Operand) -> TensorType | None:
        """Return the type of a value; None if it is unknown, or for inline data."""
        return tensor_only(self.types.get(operand)) if isinstance(operand, str) else None

    def types_at(self, node: Node) -> tuple[Type | None, ...]:
        """Return the types of a statement's operands."""
        return self.rules.operand_types(node, self.types.get)

    def inferred(self, node: Node) -> Sequence[Type | None]:
        """Return the types of a statement's outputs, as far as they are known.

        Raises GraphError if the operands or attributes do not fit the op.
        """
        if node.op == "while":
            carried, ends = self._loop_types(node)
            return self.rules.loop_results(node, carried, ends)
        if node.subgraphs:
            return self.rules.branch_results(node, [self._ends(block, ()) for block in node.subgraphs])
        return self.rules.results(node, self.types_at(node))

    def carried_types(self, node: Node) -> Sequence[Type | None]:
        """Return the types of a loop's carried values that hold in every iteration.

        Unlike the types that the compiler infers, they have the sizes that no iteration changes.
        """
        return self._loop_types(node)[0]

    def _loop_types(self, node: Node) -> tuple[list[Type | None], list[Type | None]]:
        """Return the types of a loop's carried values, and of the results of its body."""
        body = node.subgraphs[0]
        pairs = zip(body.inputs[1:], self.types_at(node)[1:], strict=True)
        carried = [_common(value.type, first) for value, first in pairs]
        while True:
            ends = self._ends(body, (TensorType("i64", ()), *carried))
            joined = [
                _common(value.type, joined_type((before, after)))
                for value, before, after in zip(body.inputs[1:], carried, ends, strict=False)
            ]
            if joined == carried:
                return carried, ends
            carried = joined

    def _ends(self, block: Graph, inputs: Sequence[Type | None]) -> list[Type | None]:
        """Return the types of a block's results for inputs of these types."""
        known = {value.name: each for value, each in zip(block.inputs, inputs, strict=True)}
        known |= {constant.value.name: constant.value.type for constant in block.constants}
        inside = Statements(self.opsets, self.graphs, {**self.types, **known}, set())
        for node in block.nodes:
            inside.learn(node)
        return [inside.types.get(value.name) for value in block.outputs]

    def append(self, node: Node) -> None:
        """Append a statement unchanged."""
        self.nodes.append(node)
        self.learn(node)

    def learn(self, node: Node) -> None:
        """Store the known types of a statement's outputs."""
        for value, known in zip(node.outputs, self.inferred(node), strict=False):
            self.types[value.name] = known or value.type

    def append_constant(self, constant: Constant, name: str) -> str:
        """Append a constant under a name, and return the name."""
        self.constants.append(replace(constant, value=replace(constant.value, name=name)))
        self.types[name] = constant.value.type
        return name

    def fresh(self, name: str) -> str:
        """Return an unused value name: `name`, or ``name.1`` and so on."""
        return claimed_name(name, self.used)


def _common(declared: Type | None, first: Type | None) -> Type | None:
    """Return the type of a carried value before the first iteration."""
    if declared is None or first is None:
        return declared or first
    return common_type(declared, first)
