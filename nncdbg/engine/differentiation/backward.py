"""Build a backward graph: statements with readable names, adapted to the program's opset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nncdbg.engine.building.statements import Statements
from nncdbg.engine.dtypes import ONNX
from nncdbg.engine.errors import GraphError, UnsupportedOp
from nncdbg.engine.frontends.order import reads
from nncdbg.engine.graph import (
    Attribute,
    Constant,
    Graph,
    Literal,
    Node,
    Operand,
    TensorType,
    Type,
    Value,
)
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import schema, version_of, versions_of


class BackwardBuilder(Statements):
    """Collects statements; calling it appends one (it is the `Emit` of rules).

    A new value is anonymous until `name` names it.
    """

    def __init__(
        self,
        opsets: Mapping[str, int],
        graphs: Mapping[str, Graph],
        types: Mapping[str, Type | None],
        used: set[str],
    ) -> None:
        super().__init__(opsets, graphs, types, used)
        self.prefix = ""
        """The prefix of the names of anonymous values."""
        self._anonymous: set[str] = set()
        self._names: dict[str, str] = {}

    def __call__(self, op: str, *operands: Operand, **attributes: Attribute) -> str:
        """Append a statement with one output, and return the name of its value."""
        name = self.fresh(f"{self.prefix}.{op.rpartition('.')[2].lower()}")
        self._anonymous.add(name)
        made = Node(op, operands, (Value(name),), attributes, location=self.location)
        self.append(self._fitted(made))
        return name

    def inferred(self, node: Node) -> Sequence[Type | None]:
        try:
            return super().inferred(node)
        except GraphError:
            # The statement cannot run; the compiler reports it.
            return [None] * len(node.outputs)

    def name(self, value: str, wanted: str) -> bool:
        """Rename an anonymous value to `wanted`; return False if the value has a name already."""
        if value not in self._anonymous:
            return False
        self._anonymous.remove(value)
        self._names[value] = self.fresh(wanted)
        return True

    def repeated(self, graph: Graph, operands: Sequence[Operand]) -> tuple[list[Node], list[Operand]]:
        """Append the statements of a graph for these operands; return those statements and its results.

        Raises UnsupportedOp for control flow, and for a statement that the opset does not have.
        """
        inside: dict[str, Operand] = {
            value.name: operand for value, operand in zip(graph.inputs, operands, strict=True)
        }
        for constant in graph.constants:
            name = self.fresh(f"{self.prefix}.{constant.value.name}")
            inside[constant.value.name] = self.append_constant(constant, name)
        nodes = []
        for node in graph.nodes:
            if node.subgraphs or node.op == "break":
                raise UnsupportedOp("it contains control flow")
            inputs = tuple(inside[each] if isinstance(each, str) else each for each in node.inputs)
            outputs = tuple(self.fresh(f"{self.prefix}.{v.name}") if v.name else "" for v in node.outputs)
            inside |= {value.name: name for value, name in zip(node.outputs, outputs, strict=True)}
            location = node.location or self.location
            made = replace(node, inputs=inputs, outputs=tuple(map(Value, outputs)), location=location)
            nodes.append(self._fitted(made))
            self.append(nodes[-1])
        return nodes, [inside[value.name] for value in graph.outputs]

    def finished(self, results: Sequence[str]) -> tuple[list[str], tuple[Node, ...], tuple[Constant, ...]]:
        """Return the names of the results, their statements, and the constants that those read."""
        needed, kept = set(results), []
        for node in reversed(self.nodes):
            if any(value.name in needed for value in node.outputs):
                needed.update(reads(node))
                kept.append(self._renamed(node))
        for old, new in self._names.items():
            self.types[new] = self.types.get(old)
        constants = tuple(constant for constant in self.constants if constant.value.name in needed)
        return [self._names.get(name, name) for name in results], tuple(reversed(kept)), constants

    def _renamed(self, node: Node) -> Node:
        names = self._names
        inputs = tuple(names.get(each, each) if isinstance(each, str) else each for each in node.inputs)
        outputs = tuple(replace(each, name=names.get(each.name, each.name)) for each in node.outputs)
        return replace(node, inputs=inputs, outputs=outputs)

    # -- opsets --------------------------------------------------------------------------

    def _fitted(self, node: Node) -> Node:
        """Return the statement in the program's opset.  Raises UnsupportedOp if the opset lacks it."""
        if node.op.startswith("@") or node.subgraphs:
            return node
        version = version_of(node.op, self.opsets)
        found = schema(node.op, version)
        if found is not None and _takes_axes(node.op):
            node = _with_axes(node, "axes" not in found.attributes)
        if node.op == "CastLike" and found is None:
            target = self.types_at(node)[1]
            if isinstance(target, TensorType):
                node = replace(node, op="Cast", inputs=node.inputs[:1], attributes={"to": ONNX[target.dtype]})
        found = schema(node.op, version)
        fits = lookup(node.op, version) is not None
        if fits and found is not None:
            variadic = bool(found.inputs) and found.inputs[-1].variadic
            fits = node.attributes.keys() <= found.attributes.keys()
            fits = fits and (variadic or len(node.inputs) <= len(found.inputs))
        if not fits:
            raise UnsupportedOp(f"it needs {node.op} in a form that opset {version} does not have")
        return node


def _takes_axes(op: str) -> bool:
    """Return whether the newest version of an op has axes as operand 1, and older ones as an attribute."""
    newest = schema(op, versions_of(op)[-1]) if versions_of(op) else None
    return newest is not None and [each.name for each in newest.inputs[1:2]] == ["axes"]


def _with_axes(node: Node, as_operand: bool) -> Node:
    """Return the statement with its axes as an operand, or if they are inline, as an attribute."""
    attributes = dict(node.attributes)
    if as_operand and "axes" in attributes:
        axes = attributes.pop("axes")
        assert isinstance(axes, tuple)
        return replace(node, inputs=(*node.inputs[:1], Literal(axes)), attributes=attributes)
    if as_operand:
        return node
    if not attributes.get("noop_with_empty_axes"):
        attributes.pop("noop_with_empty_axes", None)
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if isinstance(given, Literal):
        return replace(node, inputs=node.inputs[:1], attributes={**attributes, "axes": given.data})
    return replace(node, attributes=attributes)
