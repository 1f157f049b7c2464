"""The emitter: statements and constants appended to a graph in construction, with fresh names and types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nncdbg.ir.names import claimed_name
from nncdbg.ir.records import Constant, Location, Node, Operand, TensorType, Type, tensor_only


class Emitter:
    """Statements that are typed as they are appended.

    `types` are those of all values, as far as they are known; `used` are names that new values must not use.
    A subclass infers types; here they are those that a statement declares.
    """

    def __init__(self, types: Mapping[str, Type | None], used: set[str]) -> None:
        self.types = dict(types)
        self.used = used
        self.nodes: list[Node] = []
        self.constants: list[Constant] = []
        self.location: Location | None = None

    def fresh(self, name: str) -> str:
        """Return an unused value name: `name`, or ``name.1`` and so on."""
        return claimed_name(name, self.used)

    def type_of(self, operand: Operand) -> TensorType | None:
        """Return the type of a value; None if it is unknown, or for inline data."""
        return tensor_only(self.types.get(operand)) if isinstance(operand, str) else None

    def inferred(self, node: Node) -> Sequence[Type | None]:
        """Return the types of a statement's outputs, as far as they are known."""
        return [value.type for value in node.outputs]

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
