"""The graphs of one model: each is flattened, expanded and written as a GraphProto."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nncdbg.engine.compilation.code import initial_data
from nncdbg.engine.errors import GraphError
from nncdbg.engine.inference.statements import literal_dtype
from nncdbg.engine.text.lexemes import name_text
from nncdbg.ir.names import all_defined
from nncdbg.ir.records import Constant, Graph, Literal, Node, Operand, Program, Value
from nncdbg.opening.onnx_export.expansion import Expansion, Refusals
from nncdbg.opening.onnx_export.inlining import Inlining, ModelValues, first_result
from nncdbg.opening.onnx_export.messages import Messages


@dataclass(frozen=True)
class WrittenGraph:
    """A GraphProto with the names of the results of its graph, in their order."""

    message: Any
    results: tuple[str, ...]


class Parts:
    """Writes graphs that share their values: a later graph can read those of an earlier one."""

    def __init__(self, program: Program, model: ModelValues, refusals: Refusals) -> None:
        self._program = program
        self._model = model
        self._expansion = Expansion(program.opsets, model, refusals)
        self._messages = Messages(program.opsets, model, self._expansion.types, refusals)
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
            source = self._as_name(result)
            direct = source in computed or (value.name == source and source in present)
            taken = value.name != source and value.name not in self._model.used
            if not direct or taken or source in names:
                name = self._model.claim(value.name)
                self._expansion.types[name] = self._expansion.types.get(source)
                copies.append(helper.make_node("Identity", [source], [name]))
                source = name
            names.append(source)
        return copies, tuple(names)

    def _as_name(self, result: Operand) -> str:
        if isinstance(result, Literal):
            return self._model.literal(result, literal_dtype(result, None, 0, (), {}))
        assert result is not None
        return result

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
    """Yield the names that nodes and their blocks read."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _operands(attribute.g.node)
                yield from (each.name for each in attribute.g.output)
