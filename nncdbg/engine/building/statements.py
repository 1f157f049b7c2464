"""Statements of a graph in construction: names, types and constants; the core of all builders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nncdbg.engine.inference.graphs import TypeRules
from nncdbg.engine.inference.types import common_type, joined_type
from nncdbg.engine.ops.schema import version_of
from nncdbg.ir.emit import Emitter
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import (
    Graph,
    Node,
    TensorType,
    Type,
)


class Statements(Emitter):
    """An emitter that infers the types of results in the opsets and graphs of a program."""

    def __init__(
        self,
        opsets: Mapping[str, int],
        graphs: Mapping[str, Graph],
        types: Mapping[str, Type | None],
        used: set[str],
    ) -> None:
        super().__init__(types, used)
        self.opsets = opsets
        self.graphs = graphs
        self.rules = TypeRules(opsets, graphs)

    @property
    def version(self) -> int:
        """The opset of ONNX's own operators."""
        return version_of("Identity", self.opsets)

    def types_at(self, node: Node) -> tuple[Type | None, ...]:
        """Return the types of a statement's operands."""
        return self.rules.operand_types(node, self.types.get)

    def inferred(self, node: Node) -> Sequence[Type | None]:
        """Return the types of a statement's outputs, as far as they are known.

        Raises GraphError if the operands or attributes do not fit the op.
        """
        if node.kind is Kind.WHILE:
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


def _common(declared: Type | None, first: Type | None) -> Type | None:
    """Return the type of a carried value before the first iteration."""
    if declared is None or first is None:
        return declared or first
    return common_type(declared, first)
