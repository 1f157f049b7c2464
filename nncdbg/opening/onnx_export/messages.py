"""Statements as messages of ONNX: nodes, branches, loops, tensors and the types of values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nncdbg.dtypes import NUMPY
from nncdbg.engine.inference.graphs import TypeRules
from nncdbg.engine.inference.statements import literal_dtype
from nncdbg.engine.ops.onnx_schemas import named_node_proto, type_proto
from nncdbg.engine.ops.schema import version_of
from nncdbg.errors import GraphError
from nncdbg.ir.constants import initial_data
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import all_defined, claimed_name
from nncdbg.ir.records import (
    Constant,
    Graph,
    Inline,
    Literal,
    Location,
    Node,
    Operand,
    Program,
    TensorType,
    Type,
    Value,
    tensor_only,
    without_sizes,
)
from nncdbg.opening.onnx_export.expansion import Expansion, Inlining, ModelValues, first_result
from nncdbg.text.lexemes import name_text

_STACK_TRACE = "pkg.torch.onnx.stack_trace"
"""The key of the source lines of a node, as torch's exporter writes them."""


class Messages:
    """Writes the statements of one model; `types` are those of all values."""

    def __init__(self, opsets: Mapping[str, int], model: ModelValues, types: dict[str, Type | None]) -> None:
        self._opsets = opsets
        self._model = model
        self._types = types
        self._rules = TypeRules(opsets, {})
        self._node_names: set[str] = set()

    def nodes(self, statements: Sequence[Node]) -> list[Any]:
        """Return the NodeProtos of statements; data in operands become constants of the model."""
        found = []
        for node in statements:
            made = self._loop(node) if node.kind is Kind.WHILE else [self._node(node)]
            for each in made[:1]:
                self._describe(each, node)
            found += made
        return found

    def _describe(self, made: Any, node: Node) -> None:
        """Write the location and the comment of a statement into its NodeProto."""
        made.doc_string = node.comment
        where = node.location or Location()
        if where.name:
            # onnxruntime demands that names of nodes are unique.
            made.name = claimed_name(where.name, self._node_names)
        if where.file is not None:
            frames = [*reversed(where.stack), (where.file, where.line)]
            entry = made.metadata_props.add()
            entry.key = _STACK_TRACE
            entry.value = "\n".join(f'File "{file}", line {line}' for file, line in frames)

    def info(self, value: Value) -> Any:
        """Return the ValueInfoProto of a value."""
        from onnx import helper

        return helper.make_value_info(value.name, type_proto(value.type or self._types.get(value.name)))

    # -- statements ----------------------------------------------------------------------------

    def _node(self, node: Node) -> Any:
        inputs = self._operands(node)
        outputs = [value.name for value in node.outputs]
        if node.kind is Kind.IF:
            from onnx import helper

            then, otherwise = (
                self._graph(block.name or "branch", self.nodes(block.nodes), _names(block.outputs))
                for block in node.subgraphs
            )
            return helper.make_node("If", inputs[:1], outputs, then_branch=then, else_branch=otherwise)
        return named_node_proto(node.op, version_of(node.op, self._opsets), node.attributes, inputs, outputs)

    def _operands(self, node: Node) -> list[str]:
        types = self._rules.operand_types(node, self._types.get)
        return [self._operand(node, index, each, types) for index, each in enumerate(node.inputs)]

    def _operand(self, node: Node, index: int, operand: Operand, types: Sequence[Type | None]) -> str:
        if not isinstance(operand, Literal):
            return operand or ""
        named = [
            None if isinstance(each, Literal) else known
            for each, known in zip(node.inputs, types, strict=True)
        ]
        dtype = (
            "i64"
            if node.kind is Kind.WHILE and not index
            else literal_dtype(operand, node, index, named, self._opsets)
        )
        return self._model.literal(operand, dtype)

    def _graph(
        self, name: str, nodes: Sequence[Any], results: Sequence[str], inputs: Sequence[str] = ()
    ) -> Any:
        """Return the GraphProto of a block.

        Each result becomes a value of its own that a node of the block computes, as onnxruntime requires.
        """
        from onnx import helper

        own = {each for node in nodes for each in node.output}
        copies, outputs = [], []
        for result in results:
            output = result
            if result not in own:
                output = self._fresh(result, self._types.get(result))
                copies.append(helper.make_node("Identity", [result], [output]))
            own.discard(result)
            outputs.append(output)
        infos = [[self._element_info(each) for each in group] for group in (inputs, outputs)]
        return helper.make_graph([*nodes, *copies], name, *infos)

    def _element_info(self, name: str) -> Any:
        """Return the ValueInfoProto of a value in a block: of a scalar, or without sizes.

        onnxruntime needs the shapes of the counter and the condition; other sizes may change in a loop.
        """
        from onnx import helper

        known = self._types.get(name)
        fixed = known in (_INDEX, _BOOL)
        return helper.make_value_info(name, type_proto(known if fixed else known and without_sizes(known)))

    def _fresh(self, name: str, type_: Type | None) -> str:
        found = self._model.claim(name)
        self._types[found] = type_
        return found

    # -- loops ---------------------------------------------------------------------------------

    def _loop(self, node: Node) -> list[Any]:
        """Return the Loop of a ``while``, and the statements after it; none if it is refused."""
        body = node.subgraphs[0]
        breaks = [pc for pc, each in enumerate(body.nodes) if each.kind is Kind.BREAK]
        times, *first = self._operands(node)
        carried, results = _names(body.inputs[1:]), _names(body.outputs)
        self._types.update((each.name, each.type) for each in body.inputs if each.name not in self._types)
        counter = body.inputs[0].name or self._fresh("iteration", _INDEX)
        self._types[counter] = _INDEX
        inputs = [counter, self._fresh("condition", _BOOL), *carried]
        outputs = [value.name or self._fresh("unused", None) for value in node.outputs]
        test = body.nodes[breaks[0]].inputs[0] if breaks else None
        if not breaks:
            if not carried and version_of("Loop", self._opsets) < _LOOP_WITHOUT_VALUES:
                kept = self._fresh("kept", _INDEX)
                first, results = [self._literal(0, "i64")], [kept, *results]
                inputs.append(kept)
                outputs.insert(0, self._fresh("unused", _INDEX))
            made = self._graph("body", self.nodes(body.nodes), [inputs[1], *results], inputs)
            return [_loop_node([times, self._literal(True, "bool"), *first], outputs, made)]
        if breaks == [0] and test in carried:
            # As ONNX itself tests the condition: before each iteration, on a carried value.
            at = carried.index(str(test))
            made = self._graph("body", self.nodes(body.nodes[1:]), [results[at], *results], inputs)
            return [_loop_node([times, first[at], *first], outputs, made)]
        return self._loop_with_breaks(node, [times, *first], inputs, outputs)

    def _loop_with_breaks(
        self, node: Node, operands: Sequence[str], inputs: Sequence[str], outputs: Sequence[str]
    ) -> list[Any]:
        """Return a Loop for a ``break`` in the middle: an If decides about the rest of the iteration.

        The iteration that ends the loop keeps the carried values.  What it collects has no meaning: a Slice
        after the loop removes it, by the number of complete iterations.
        """
        from onnx import helper

        body = node.subgraphs[0]
        count = len(body.inputs) - 1
        nothing = [self._nothing(value.name) for value in body.outputs[count:]]
        if None in nothing:
            site = self._model.places.get(first_result(node))
            self._model.refusals.add("while", site, "it breaks, and collects values of unknown sizes")
            return []
        complete = self._fresh("complete", _INDEX)
        ends = [self._literal(False, "bool"), *inputs[2:], complete, *map(str, nothing)]
        nodes, results = self._until_break(body, body.nodes, ends, complete)
        made = self._graph("body", nodes, results, [*inputs, complete])
        completed = self._fresh("completed", _INDEX)
        stacked = [self._fresh(name, None) for name in outputs[count:]]
        zero, start, unit = (self._literal(data, "i64") for data in (0, (0,), (1,)))
        loop = _loop_node(
            [operands[0], self._literal(True, "bool"), *operands[1:], zero],
            [*outputs[:count], completed, *stacked],
            made,
        )
        if not stacked:
            return [loop]
        bound = self._fresh("bound", _INDEX)
        slices = [
            helper.make_node("Slice", [each, start, bound, start], [name])
            for each, name in zip(stacked, outputs[count:], strict=True)
        ]
        return [loop, helper.make_node("Reshape", [completed, unit], [bound]), *slices]

    def _until_break(
        self, body: Graph, statements: Sequence[Node], ends: Sequence[str], complete: str
    ) -> tuple[list[Any], list[str]]:
        """Return the nodes of a part of a body, and its results: those of the Loop's body.

        `ends` are the results of the iteration that ends the loop.
        """
        from onnx import helper

        at = next((pc for pc, each in enumerate(statements) if each.kind is Kind.BREAK), None)
        if at is None:
            count = len(body.inputs) - 1
            following = self._fresh("complete", _INDEX)
            add = helper.make_node("Add", [complete, self._literal(1, "i64")], [following])
            names = _names(body.outputs)
            results = [self._literal(True, "bool"), *names[:count], following, *names[count:]]
            return [*self.nodes(statements), add], results
        before, test = self.nodes(statements[:at]), self._operands(statements[at])[0]
        nodes, going = self._until_break(body, statements[at + 1 :], ends, complete)
        results = [self._fresh("going", self._types.get(each)) for each in going]
        branches = {
            "then_branch": self._graph("going", nodes, going),
            "else_branch": self._graph("end", [], ends),
        }
        return [*before, helper.make_node("If", [test], results, **branches)], results

    def _literal(self, data: Any, dtype: str) -> str:
        return self._model.literal(Literal(data), dtype)

    def _nothing(self, name: str) -> str | None:
        """Return a constant of the type of a value; None if the type is not known."""
        known = tensor_only(self._types.get(name))
        if known is None or not known.concrete or known.shape is None:
            return None
        array = np.zeros(tuple(int(str(size)) for size in known.shape), NUMPY[known.dtype])
        return self._model.constant(Constant(Value("nothing", known), Inline(array)))


_INDEX, _BOOL = TensorType("i64", ()), TensorType("bool", ())

_LOOP_WITHOUT_VALUES = 11
"""The first opset in which a Loop may carry no values."""


def _names(values: Iterable[Value]) -> list[str]:
    return [value.name for value in values]


def _loop_node(inputs: Sequence[str], outputs: Sequence[str], body: Any) -> Any:
    from onnx import helper

    return helper.make_node("Loop", [*inputs], [*outputs], body=body)


# -- graphs of the model ---------------------------------------------------------------------------


@dataclass(frozen=True)
class WrittenGraph:
    """A GraphProto with the names of the results of its graph, in their order."""

    message: Any
    results: tuple[str, ...]


class Parts:
    """Writes graphs that share their values: a later graph can read those of an earlier one."""

    def __init__(self, program: Program, model: ModelValues) -> None:
        self._program = program
        self._model = model
        self._expansion = Expansion(program.opsets, model)
        self._messages = Messages(program.opsets, model, self._expansion.types)
        self._statements: dict[str, Node] = {}
        """The statements of the graphs so far, by their first result."""
        self._constants: set[str] = set()
        """The constants of the graphs so far."""

    def graph(
        self,
        graph: Graph,
        operands: Mapping[str, str],
        inputs: Sequence[Value],
        given: Sequence[Constant] = (),
        returned: Sequence[str] = (),
    ) -> WrittenGraph:
        """Write a graph.

        `operands` are the names of its inputs in the model, of which `inputs` are inputs of the message and
        `given` constants.  The values `returned` are results of an earlier graph, and need no output here.
        Raises GraphError for an input without a type.
        """
        for value in inputs:
            if value.type is None:
                raise GraphError(
                    f"the type of the input %{name_text(value.name)} is not known",
                    hint="declare it, such as f32[N,3]: ONNX needs the types of inputs",
                )
        self._model.used |= {*operands.values(), *(each.value.name for each in given)}
        constants = {each.value.name for each in graph.constants}
        own = {value.name for value in all_defined(graph)} - self._model.used - constants - {""}
        self._model.used |= own
        inlining = Inlining(self._program, self._model, self._statements)
        nodes, results = inlining.graph(graph, {**operands}, {name: name for name in own})
        self._statements |= {first_result(node): node for node in nodes}
        self._expansion.learn(nodes, (*inputs, *(each.value for each in given)))
        messages = self._messages.nodes(self._expansion.expanded(nodes))
        copies, names = self._named(
            graph.outputs, results, messages, {value.name for value in inputs}, returned
        )
        messages += copies
        types = {name: value.type for name, value in zip(names, graph.outputs, strict=True)}
        outputs = [Value(name, type_) for name, type_ in types.items() if name not in returned]
        tensors = [self._tensor(each) for each in (*given, *self._read(messages, names))]
        return WrittenGraph(self._message(graph, messages, inputs, outputs, tensors), names)

    def returning(self, name: str, constants: Sequence[Constant]) -> WrittenGraph:
        """Write a graph without nodes that returns its constants."""
        values = [each.value for each in constants]
        self._expansion.learn([], values)
        names = tuple(value.name for value in values)
        self._model.used |= {*names}
        tensors = [self._tensor(each) for each in constants]
        return WrittenGraph(self._message(Graph(name), [], (), values, tensors), names)

    def _named(
        self,
        values: Sequence[Value],
        results: Sequence[Operand],
        messages: Sequence[Any],
        inputs: set[str],
        returned: Sequence[str],
    ) -> tuple[list[Any], tuple[str, ...]]:
        """Return the names of the results, each of a value of its own, and the nodes that copy values."""
        from onnx import helper

        computed = {name for node in messages for name in node.output}
        present = {*inputs, *returned, *self._model.constants}
        copies: list[Any] = []
        names: list[str] = []
        for value, result in zip(values, results, strict=True):
            assert result is not None
            source = (
                self._model.literal(result, literal_dtype(result, None, 0, (), {}))
                if isinstance(result, Literal)
                else result
            )
            direct = source in computed or (value.name == source and source in present)
            taken = value.name != source and value.name not in self._model.used
            if not direct or taken or source in names:
                name = self._model.claim(value.name)
                self._expansion.types[name] = self._expansion.types.get(source)
                copies.append(helper.make_node("Identity", [source], [name]))
                source = name
            names.append(source)
        return copies, tuple(names)

    def _read(self, messages: Sequence[Any], results: Sequence[str]) -> list[Constant]:
        """Return the constants that these nodes read, without those of earlier graphs."""
        read = {*results, *_operands(messages)} - self._constants
        self._constants |= read
        return [each for name, each in self._model.constants.items() if name in read]

    def _tensor(self, constant: Constant) -> Any:
        from onnx import numpy_helper

        return numpy_helper.from_array(initial_data(constant, self._program), constant.value.name)

    def _message(
        self,
        graph: Graph,
        nodes: Sequence[Any],
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        tensors: Sequence[Any],
    ) -> Any:
        from onnx import helper

        infos = [[self._messages.info(value) for value in values] for values in (inputs, outputs)]
        return helper.make_graph(nodes, graph.name or "main", *infos, tensors, doc_string=graph.comment)


def _operands(nodes: Sequence[Any]) -> Iterator[str]:
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _operands(attribute.g.node)
                yield from (each.name for each in attribute.g.output)
