"""Build a backward graph: statements with readable names, adapted to the program's opset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nncdbg.dtypes import FLOATS, ONNX
from nncdbg.engine.building.statements import Statements
from nncdbg.engine.inference.statements import literal_dtype
from nncdbg.engine.inference.types import literal_array, type_of_array, with_symbols
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import schema, version_of, versions_of
from nncdbg.errors import GraphError, UnsupportedOp
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import captures, reads
from nncdbg.ir.records import (
    Attribute,
    Constant,
    Graph,
    Inline,
    Literal,
    Node,
    Operand,
    TensorType,
    Type,
    Value,
    tensor_only,
)
from nncdbg.ir.rewrite import Claim, copied_node, rewrite_node, same_type


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
        self.reserved: frozenset[str] = frozenset()
        """The names in the blocks of the forward graph: only their copies may use them."""
        self.prefix = ""
        """The prefix of the names of anonymous values."""
        self.origin = ""
        """The forward statement whose gradient is being written, as a comment."""
        self._origins: dict[int, str] = {}
        """Per statement, by its number, its origin if it has one."""
        self._anonymous: set[str] = set()
        self._names: dict[str, str] = {}

    def block(self) -> BackwardBuilder:
        """Return a builder for a block inside this graph: the block can read the values of the graph."""
        inside = BackwardBuilder(self.opsets, self.graphs, {}, self.used)
        inside.types, inside.rules, inside.reserved = self.types, self.rules, self.reserved
        inside.prefix, inside.location, inside.origin = self.prefix, self.location, self.origin
        return inside

    def fresh(self, name: str) -> str:
        claimed = super().fresh(name)
        while claimed in self.reserved:
            claimed = super().fresh(name)
        return claimed

    def copy_name(self, name: str) -> str:
        """Return an unused name for a copy of a value in a block: its own name where possible."""
        return super().fresh(name)

    def anonymous(self, name: str) -> str:
        """Return an unused name for a value that `name` may name later."""
        claimed = self.fresh(name)
        self._anonymous.add(claimed)
        return claimed

    def __call__(self, op: str, *operands: Operand, **attributes: Attribute) -> str:
        """Append a statement with one output, and return the name of its value."""
        return self.output(0, op, *operands, **attributes)

    def output(self, index: int, op: str, *operands: Operand, **attributes: Attribute) -> str:
        """Append a statement, and return the name of its output `index`; the others have no names."""
        name = self._claimed(op)
        self._append_op(op, operands, (*("",) * index, name), attributes)
        return name

    def outputs(self, count: int, op: str, *operands: Operand, **attributes: Attribute) -> list[str]:
        """Append a statement, and return the names of its `count` outputs."""
        names = [self._claimed(op) for _ in range(count)]
        self._append_op(op, operands, names, attributes)
        return names

    def _claimed(self, op: str) -> str:
        return self.anonymous(f"{self.prefix}.{op.rpartition('.')[2].lower()}")

    def _append_op(
        self,
        op: str,
        operands: tuple[Operand, ...],
        outputs: Sequence[str],
        attributes: Mapping[str, Attribute],
    ) -> None:
        made = Node(op, operands, tuple(map(Value, outputs)), attributes, location=self.location)
        self.append(self.fitted(made))

    def named(
        self, name: str, op: str, *operands: Operand, known: Type | None = None, **attributes: Attribute
    ) -> str:
        """Append a statement with one output called `name` where possible; return the name.

        `known` is the type of the output.
        """
        value = Value(self.fresh(name), known)
        self.append(self.fitted(Node(op, operands, (value,), attributes, location=self.location)))
        return value.name

    def append(self, node: Node) -> None:
        if self.origin:
            self._origins[len(self.nodes)] = self.origin
        super().append(node)

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

    def replaced(self, node: Node, other: Node) -> bool:
        """Put another statement in the place of this one; return False if it is not of this graph."""
        number = next((i for i, each in enumerate(self.nodes) if each is node), None)
        if number is None:
            return False
        self.nodes[number] = other
        self.learn(other)
        return True

    def repeated(self, graph: Graph, operands: Sequence[Operand]) -> tuple[list[Node], list[Operand]]:
        """Append the statements of a graph for these operands; return those statements and its results.

        Raises UnsupportedOp for a statement that the opset does not have.
        """
        inside = {name for node in graph.nodes for name in captures(node)}
        given = [
            self.as_value(operand, value) if value.name in inside else operand
            for value, operand in zip(graph.inputs, operands, strict=True)
        ]

        def without_symbols(type_: Type | None) -> Type | None:
            return type_ and with_symbols(type_, {})  # They have no meaning here.

        return self._copied(graph, given, lambda name: self.fresh(f"{self.prefix}.{name}"), without_symbols)

    def computed_again(self, block: Graph, operands: Sequence[Operand]) -> tuple[list[Node], list[Operand]]:
        """Append the statements of a block of the forward graph, under their own names where possible.

        Return those statements and the block's results.
        """
        return self._copied(block, operands, self.copy_name, same_type)

    def _copied(
        self,
        graph: Graph,
        operands: Sequence[Operand],
        claim: Claim,
        retyped: Callable[[Type | None], Type | None],
    ) -> tuple[list[Node], list[Operand]]:
        inside: dict[str, Operand] = {
            value.name: operand for value, operand in zip(graph.inputs, operands, strict=True)
        }
        for constant in graph.constants:
            name = claim(constant.value.name)
            inside[constant.value.name] = self.append_constant(constant, name)
        nodes = []
        for node in graph.nodes:
            made = copied_node(node, inside, claim, retyped)
            nodes.append(self.fitted(replace(made, location=node.location or self.location)))
            self.append(nodes[-1])
        return nodes, [inside.get(value.name, value.name) for value in graph.outputs]

    def operands_of(self, node: Node) -> tuple[Operand, ...]:
        """Return the operands of a statement; an array of floats in place becomes a constant with a type."""
        operands: list[Operand] = []
        for operand, known in zip(node.inputs, self.types_at(node), strict=True):
            floats = isinstance(known, TensorType) and known.shape and known.dtype in FLOATS
            if isinstance(operand, Literal) and isinstance(known, TensorType) and floats:
                constant = Constant(Value("", known), Inline(literal_array(operand, known.dtype)))
                operand = self.append_constant(constant, self.fresh(f"{self.prefix}.constant"))
            operands.append(operand)
        return tuple(operands)

    def as_value(self, operand: Operand, value: Value) -> Operand:
        """Return an operand that a block may return: inline data become a constant."""
        if not isinstance(operand, Literal):
            return operand
        known = tensor_only(value.type)
        array = literal_array(
            operand, known.dtype if known is not None else literal_dtype(operand, None, 0, (), {})
        )
        constant = Constant(Value(value.name, type_of_array(array)), Inline(array))
        return self.append_constant(constant, self.fresh(f"{self.prefix}.{value.name}"))

    def finished(self, results: Sequence[str]) -> tuple[list[str], tuple[Node, ...], tuple[Constant, ...]]:
        """Return the names of the results, their statements, and the constants that those read."""
        needed, kept = set(results), []
        for number, node in reversed([*enumerate(self.nodes)]):
            if any(value.name in needed for value in node.outputs):
                needed.update(reads(node))
                kept.append(replace(self._renamed(node), comment=self._origins.get(number, "")))
        kept = _commented_once([*reversed(kept)])
        for old, new in self._names.items():
            self.types[new] = self.types.get(old)
        constants = tuple(constant for constant in self.constants if constant.value.name in needed)
        return [self._names.get(name, name) for name in results], tuple(kept), constants

    def _renamed(self, node: Node) -> Node:
        names: dict[str, Operand] = {**self._names}
        return copied_node(node, names, lambda name: self._names.get(name, name))

    # -- opsets --------------------------------------------------------------------------

    def fitted(self, node: Node) -> Node:
        """Return the statement in the program's opset.  Raises UnsupportedOp if the opset lacks it."""
        return rewrite_node(node, self._fitted)

    def _fitted(self, node: Node) -> Node:
        if node.kind is not Kind.OP:
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


def _commented_once(nodes: Sequence[Node]) -> list[Node]:
    """Return the statements with a comment only where it differs from that of the statement before."""
    before = ["", *(node.comment for node in nodes)]
    return [
        replace(node, comment="") if node.comment == last else node
        for node, last in zip(nodes, before, strict=False)
    ]


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
