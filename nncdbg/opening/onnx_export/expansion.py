"""Statements of ONNX: every other op is replaced by its formula, until all ops are those of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nncdbg.engine.differentiation.backward import BackwardBuilder
from nncdbg.engine.errors import GraphError, NncdbgError, UnsupportedOp
from nncdbg.engine.frontends.formula import formula_of
from nncdbg.engine.inference.graphs import GraphInference, TypeRules
from nncdbg.engine.inference.types import type_of_array
from nncdbg.engine.ops.schema import schema, split, version_of
from nncdbg.engine.text.lexemes import name_text
from nncdbg.engine.text.listing import Site
from nncdbg.ir.kinds import CONTROL
from nncdbg.ir.names import free_names
from nncdbg.ir.records import (
    Constant,
    Graph,
    Inline,
    Literal,
    Node,
    Path,
    Program,
    TensorType,
    Type,
    Value,
    tensor_only,
    type_of,
)
from nncdbg.ir.rewrite import rewrite
from nncdbg.opening.onnx_export.inlining import Inlining, ModelValues, Names, first_result

_ONNX = frozenset({"", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft"})
"""The domains of ONNX and of onnxruntime."""

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


class Expansion:
    """Expands the statements of one model.  `types` are those of all values, as far as they are known."""

    def __init__(self, opsets: Mapping[str, int], model: ModelValues, refusals: Refusals) -> None:
        self.opsets = opsets
        self.types: dict[str, Type | None] = {}
        self._model = model
        self._refusals = refusals
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
        inference = GraphInference(self.opsets, {}, _type_of, _unplaced)
        for types in inference.infer(replace(graph, inputs=read), [None] * len(read)).values():
            self.types |= types

    def expanded(self, nodes: Sequence[Node], site: Site | None = None) -> list[Node]:
        """Return statements with ops of ONNX; others are noted as refused.

        `site` is the place of the statement that they compute; None for statements of the program itself.
        """

        def statement(path: Path, pc: int, node: Node) -> Sequence[Node]:
            if node.kind in CONTROL or self._is_onnx(node.op):
                return [node]
            return self._through_formula(node, site or self._model.places.get(first_result(node)))

        return [*rewrite(Graph("", nodes=tuple(nodes)), statement).nodes]

    def _is_onnx(self, op: str) -> bool:
        return split(op)[0] in _ONNX and schema(op, version_of(op, self.opsets)) is not None

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
            self._refusals.add(node.op, site, error.message)
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


def _unplaced(path: Path, pc: int, error: NncdbgError) -> NncdbgError:
    return error
