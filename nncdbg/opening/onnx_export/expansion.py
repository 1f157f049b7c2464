"""Statements of ONNX: every other op is replaced by its formula, until all ops are those of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nncdbg.engine.differentiation.backward import BackwardBuilder
from nncdbg.engine.frontends.formula import formula_of
from nncdbg.engine.inference.graphs import GraphInference, TypeRules
from nncdbg.engine.inference.statements import literal_dtype
from nncdbg.engine.inference.types import literal_array, type_of_array
from nncdbg.engine.ops.schema import schema, split, version_of
from nncdbg.errors import GraphError, NncdbgError, UnsupportedOp
from nncdbg.ir.kinds import CONTROL, Kind
from nncdbg.ir.names import claimed_name, free_names
from nncdbg.ir.records import (
    Constant,
    Graph,
    Inline,
    Literal,
    Location,
    Node,
    Operand,
    Path,
    Program,
    TensorType,
    Type,
    Value,
    tensor_only,
    type_of,
)
from nncdbg.ir.rewrite import rewrite
from nncdbg.text.lexemes import name_text
from nncdbg.text.listing import Site

# -- inlining --------------------------------------------------------------------------------------

Names = dict[str, Operand]


def first_result(node: Node) -> str:
    """Return the name of the first named result of a statement; "" if it has none."""
    return next((value.name for value in node.outputs if value.name), "")


_MOST = 10
"""Ops in one message."""


@dataclass
class Refusals:
    """The statements that ONNX cannot express, by their lines."""

    line_of: Mapping[Site, int] = field(default_factory=dict)
    found: dict[str, None] = field(default_factory=dict)

    def add(self, what: str, site: Site | None, reason: str = "") -> None:
        line = self.line_of.get(site) if site is not None else None
        place = f"line {line}: " if line is not None else ""
        self.found[f"{place}{what}{f' ({reason})' if reason else ''}"] = None

    def check(self) -> None:
        """Raise UnsupportedOp with all refused statements."""
        if self.found:
            shown = [*self.found][:_MOST]
            more = f"; and {len(self.found) - _MOST} more" if len(self.found) > _MOST else ""
            count = f"{len(self.found)} statement{'s' * (len(self.found) > 1)}"
            raise UnsupportedOp(
                f"ONNX cannot express {count}: {'; '.join(shown)}{more}",
                hint="write them with ops of ONNX, or keep the program as graph text",
            )


@dataclass
class ModelValues:
    """What the graphs of one model share: the names of all values, the constants, and their places.

    `places` maps the first result of a statement to its place in the program; `refusals` are the statements
    that ONNX cannot express.
    """

    refusals: Refusals
    used: set[str] = field(default_factory=set)
    constants: dict[str, Constant] = field(default_factory=dict)
    places: dict[str, Site] = field(default_factory=dict)
    literals: dict[tuple[object, ...], str] = field(default_factory=dict)
    """The constants of literals by their data."""

    def claim(self, name: str) -> str:
        """Return an unused name: `name`, or ``name.1`` and so on."""
        return claimed_name(name or "unused", self.used)

    def constant(self, constant: Constant) -> str:
        """Add a constant, and return its name; an equal constant of that name is shared."""
        name = constant.value.name
        if self.constants.get(name) != constant:
            name = self.claim(name)
            self.constants[name] = replace(constant, value=replace(constant.value, name=name))
        return name

    def literal(self, literal: Literal, dtype: str) -> str:
        """Add the data of a literal as a constant, and return its name."""
        array = literal_array(literal, dtype)
        key = dtype, array.shape, tuple(array.flat) if dtype == "str" else array.tobytes()
        if key not in self.literals:
            name = self.literals[key] = self.claim("literal")
            self.constants[name] = Constant(Value(name, type_of_array(array)), Inline(array))
        return self.literals[key]


@dataclass
class _Around:
    """Where statements are copied: names by those of the original, and names reserved for some of them.

    `layers` are the graphs whose calls lead here.
    """

    names: Names
    wanted: dict[str, str]
    layers: tuple[str, ...] = ()


class Inlining:
    """Inlines the graphs of a program without states; `present` are statements by their first result.

    A statement that equals a present one is not repeated: its results are those of the present one.  The
    places of the statements are `recorded` in the model.
    """

    def __init__(
        self,
        program: Program,
        model: ModelValues,
        present: Mapping[str, Node] | None = None,
        *,
        recorded: bool = True,
    ) -> None:
        self._program = program
        self._model = model
        self._recorded = recorded
        self._present = present or {}

    def graph(
        self, graph: Graph, operands: Names, wanted: Mapping[str, str]
    ) -> tuple[list[Node], list[Operand]]:
        """Return the statements of a graph, and its results.

        `operands` are the values of its inputs; `wanted` maps values of the graph to names reserved for them.
        """
        names = dict(operands)
        nodes = self._block(_Around(names, dict(wanted)), graph, (graph.name,))
        return nodes, [names.get(value.name, value.name) for value in graph.outputs]

    def _block(self, around: _Around, graph: Graph, path: Path) -> list[Node]:
        """Return the statements of a block; `around.names` receives the names of its values."""
        names = around.names
        for constant in graph.constants:
            names[constant.value.name] = self._model.constant(constant)
        nodes: list[Node] = []
        for pc, node in enumerate(graph.nodes):
            operands = tuple(names.get(each, each) if isinstance(each, str) else each for each in node.inputs)
            if node.kind is Kind.UPDATE:
                names |= {value.name: operand for value, operand in zip(node.outputs, operands, strict=True)}
            elif (called := node.called) is not None:
                nodes += self._call(node, self._program.graphs[called], operands, around)
            elif len(path) > 1 or not self._is_present(node, operands, names):
                nodes.append(self._copied(node, operands, around, (*path, pc)))
                if self._recorded:
                    self._model.places.setdefault(first_result(nodes[-1]), Site(path, pc))
        return nodes

    def _call(self, node: Node, called: Graph, operands: Sequence[Operand], around: _Around) -> list[Node]:
        inside: Names = {
            value.name: self._as_value(operand, value)
            for value, operand in zip(called.inputs, operands, strict=True)
        }
        computed = {
            value.name for each in called.nodes if each.kind is not Kind.UPDATE for value in each.outputs
        }
        wanted: dict[str, str] = {}
        for value, result in zip(node.outputs, called.outputs, strict=True):
            if value.name and result.name in computed:
                wanted.setdefault(result.name, self._defined(value, around).name)
        layers = (*around.layers, called.name)
        nodes = self._block(_Around(inside, wanted, layers), called, (called.name,))
        for value, result in zip(node.outputs, called.outputs, strict=True):
            around.names[value.name] = inside.get(result.name, result.name)
        return nodes

    def _as_value(self, operand: Operand, formal: Value) -> Operand:
        """Return an operand as a value of the type of a graph's input."""
        if not isinstance(operand, Literal):
            return operand
        known = tensor_only(formal.type)
        dtype = known.dtype if known is not None else literal_dtype(operand, None, 0, (), {})
        return self._model.literal(operand, dtype)

    def _is_present(self, node: Node, operands: tuple[Operand, ...], names: Names) -> bool:
        present = self._present.get(first_result(node))
        if present is None or node.subgraphs:
            return False
        if [each.name for each in node.outputs] != [each.name for each in present.outputs]:
            return False
        alike = replace(present, inputs=operands, op=node.op, attributes=node.attributes)
        if alike != present:
            return False
        names |= {value.name: value.name for value in node.outputs}
        return True

    def _copied(self, node: Node, operands: tuple[Operand, ...], around: _Around, path: Path) -> Node:
        blocks = []
        for number, block in enumerate(node.subgraphs):
            inside = replace(around, names=dict(around.names))
            inputs = tuple(self._defined(value, inside) for value in block.inputs)
            nodes = self._block(inside, block, (*path, number))
            results = [
                self._as_value(inside.names.get(value.name, value.name), value) for value in block.outputs
            ]
            blocks.append(
                Graph(block.name, inputs, tuple(Value(str(each)) for each in results), tuple(nodes))
            )
        outputs = tuple(self._defined(value, around) for value in node.outputs)
        location = node.location or Location()
        if around.layers and location.name is None:
            named = next((value.name for value in outputs if value.name), node.op)
            location = replace(location, name="/".join((*around.layers, named)))
        return replace(node, inputs=operands, outputs=outputs, subgraphs=tuple(blocks), location=location)

    def _defined(self, value: Value, around: _Around) -> Value:
        if not value.name:
            return value
        name = around.wanted.pop(value.name, None) or self._model.claim(value.name)
        around.names[value.name] = name
        return replace(value, name=name)


# -- expansion -------------------------------------------------------------------------------------

_ONNX = frozenset({"", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft"})
"""The domains of ONNX and of onnxruntime."""


class Expansion:
    """Expands the statements of one model.  `types` are those of all values, as far as they are known."""

    def __init__(self, opsets: Mapping[str, int], model: ModelValues) -> None:
        self.opsets = opsets
        self.types: dict[str, Type | None] = {}
        self._model = model
        self._rules = TypeRules(opsets, {})
        self._builder = BackwardBuilder(opsets, {}, {}, set())
        self._builder.types = self.types

    def learn(self, nodes: Sequence[Node], inputs: Sequence[Value]) -> None:
        """Infer the types of the values of these statements, which read `inputs` and known values.

        Raises GraphError for statements whose types contradict each other.
        """
        self.types |= {value.name: value.type for value in inputs}
        for name, each in self._model.constants.items():
            self.types.setdefault(name, each.value.type or _type_of(each))
        graph = Graph("model", nodes=tuple(nodes))
        read = tuple(Value(name, self.types.get(name)) for name in dict.fromkeys(free_names(graph)))
        inference = GraphInference(self.opsets, {}, _type_of, lambda path, pc, error: error)
        for types in inference.infer(replace(graph, inputs=read), [None] * len(read)).values():
            self.types |= types

    def expanded(self, nodes: Sequence[Node], site: Site | None = None) -> list[Node]:
        """Return statements with ops of ONNX; others are noted as refused.

        `site` is the place of the statement that they compute; None for statements of the program itself.
        """

        def statement(path: Path, pc: int, node: Node) -> Sequence[Node]:
            if node.kind in CONTROL or (
                split(node.op)[0] in _ONNX and schema(node.op, version_of(node.op, self.opsets)) is not None
            ):
                return [node]
            return self._through_formula(node, site or self._model.places.get(first_result(node)))

        return [*rewrite(Graph("", nodes=tuple(nodes)), statement).nodes]

    def _through_formula(self, node: Node, site: Site | None) -> list[Node]:
        """Return the statements that compute a statement; none if it is refused."""
        try:
            types = tuple(map(tensor_only, self._rules.operand_types(node, self.types.get)))
            program = formula_of(node, types, self.opsets)
            if program is None:
                raise UnsupportedOp("")
            nodes = self._repeated(node, types, program)
            self.learn(nodes, ())
            return self.expanded([self._builder.fitted(each) for each in nodes], site)
        except NncdbgError as error:
            self._model.refusals.add(node.op, site, error.message)
            return []

    def _repeated(self, node: Node, types: Sequence[TensorType | None], program: Program) -> list[Node]:
        """Return the statements of a formula for the operands and results of a statement."""
        given = [
            self._model.literal(operand, known.dtype) if isinstance(operand, Literal) and known else operand
            for operand, known in zip(node.inputs, types, strict=True)
            if operand is not None
        ]
        formula = program.graph
        operands: Names = {value.name: operand for value, operand in zip(formula.inputs, given, strict=True)}
        wanted = {
            result.name: value.name
            for result, value in zip(formula.outputs, node.outputs, strict=False)
            if value.name and result.name not in operands
        }
        inlining = Inlining(program, self._model, recorded=False)
        nodes, results = inlining.graph(formula, operands, wanted)
        copies = [
            Node("Identity", (result,), (value,))
            for value, result in zip(node.outputs, results, strict=False)
            if value.name and value.name != result
        ]
        return [replace(each, location=node.location, comment="") for each in (*nodes, *copies)]


def _type_of(constant: Constant) -> Type:
    if isinstance(constant.data, Inline):
        return type_of(constant.data.array) or type_of_array(constant.data.array)
    raise GraphError(f"the type of %{name_text(constant.value.name)} is not known", hint="declare it")
