"""The initialization graph of an ONNX training as first values of states: one statement for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from nncdbg.engine.building.statements import Statements
from nncdbg.engine.errors import GraphError
from nncdbg.engine.frontends.order import title
from nncdbg.engine.text.lexemes import name_text
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import claimed_name
from nncdbg.ir.records import Graph, Node, Operand, StateLine, TensorType, Type, Value


class FirstValues:
    """Makes the state lines of initialization graphs.

    `types` are those of all states; `used` are names of values, which no further state may have.
    """

    def __init__(self, types: Mapping[str, Type | None], used: set[str], opsets: Mapping[str, int]) -> None:
        self._types = types
        self._used = used
        self._statements = Statements(opsets, {}, types, used)

    def lines(self, graph: Graph, bindings: Mapping[str, str]) -> Iterator[StateLine]:
        """Yield the states of a graph: `bindings` maps a state to the result that is its first value.

        A value that is bound to no state becomes a state of its own, named ``initial.name``.
        Raises GraphError for a result that does not exist, and for statements that cannot be a first value.
        """
        if graph.inputs:
            raise GraphError(
                f"the initialization graph has the input %{name_text(graph.inputs[0].name)}",
                hint="an initialization graph has no inputs",
            )
        results = {value.name for value in graph.outputs}
        states: dict[str, list[str]] = {}
        for state, result in bindings.items():
            if result not in results:
                raise GraphError(
                    f"initialization_binding reads %{name_text(result)}, which is no result of "
                    f"the initialization graph"
                )
            states.setdefault(result, []).append(state)
        names: dict[str, Operand] = {}

        def claim(value: str) -> str:
            first = states.get(value)
            names[value] = found = first[0] if first else claimed_name(f"initial.{value}", self._used)
            return found

        for constant in graph.constants:
            name = claim(constant.value.name)
            yield StateLine(Value(name, constant.value.type), constant.data)
            yield from self._copies(states.get(constant.value.name, ()))
        for node in graph.nodes:
            _check(node)
            computed = node.outputs[0].name
            operands = tuple(names.get(each, each) if isinstance(each, str) else each for each in node.inputs)
            target = claim(computed)
            value = Value(target, self._types.get(target))
            yield self._line(replace(node, inputs=operands, outputs=(value,)))
            yield from self._copies(states.get(computed, ()))

    def _copies(self, states: Sequence[str]) -> Iterator[StateLine]:
        """Yield the other states that are bound to the result of the first."""
        for other in states[1:]:
            yield self._line(Node("Identity", (states[0],), (Value(other, self._types.get(other)),)))

    def _line(self, node: Node) -> StateLine:
        value, known = node.outputs[0], self._statements.inferred(node)[0]
        if not isinstance(known, TensorType):
            raise GraphError(
                f"the type of %{name_text(value.name)} is not known", hint=f"{title(node)} computes it"
            )
        self._statements.types[value.name] = known
        typed = Value(value.name, known)
        return StateLine(typed, replace(node, outputs=(typed,), comment=""), comment=node.comment)


def _check(node: Node) -> None:
    """Raise GraphError for a statement that cannot compute the first value of a state."""
    if node.subgraphs or node.kind is Kind.CALL or len(node.outputs) != 1 or not node.outputs[0].name:
        raise GraphError(
            f"{title(node)} cannot initialize a state: a first value is an op with one result",
            source=str(node.location) if node.location else None,
            hint="replace functions, If, Loop and ops with several results in the initialization graph",
        )
