"""The scope of one ONNX graph during conversion, and the checks of its names and types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from nncdbg.engine.errors import GraphError
from nncdbg.engine.frontends import onnx_node
from nncdbg.engine.frontends.onnx_store import GraphPath
from nncdbg.engine.graph import Constant, Graph, Inline, Operand, Type, Value


@dataclass(frozen=True)
class Scope:
    """The names and facts visible inside one graph during conversion.

    `outer` are the visible names of surrounding graphs; `true` the values known to be constant true;
    `attributes` (AttributeProtos by name) and `absent` (inputs that are not given) come from the call
    of the surrounding function.
    """

    path: GraphPath = ()
    outer: frozenset[str] = frozenset()
    true: frozenset[str] = frozenset()
    types: Mapping[str, Type] = field(default_factory=dict)
    known: Mapping[str, Type | None] = field(default_factory=dict)
    """The types of values of this graph and of surrounding ones, as far as the model states them."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()


def inputs_of(node: Any, scope: Scope) -> tuple[Operand, ...]:
    """Return the operands of a NodeProto, without trailing omitted ones."""
    operands = [name if name and name not in scope.absent else None for name in node.input]
    while operands and operands[-1] is None:
        operands.pop()
    return tuple(operands)


def outputs_of(node: Any, scope: Scope) -> tuple[Value, ...]:
    """Return the output values of a NodeProto with the types stated in the model."""
    return tuple(Value(name, scope.types.get(name)) for name in node.output)


def padded(outputs: tuple[Value, ...], count: int, title: str) -> tuple[Value, ...]:
    """Return the outputs padded to `count` with unused ones.  Raises GraphError if there are more."""
    if len(outputs) > count:
        raise GraphError(f"{title} has {len(outputs)} outputs, but its graph returns {count}")
    return outputs + (Value(""),) * (count - len(outputs))


def graph_inputs(proto: Any, scope: Scope) -> list[Value]:
    """Return the inputs of a GraphProto or FunctionProto, without those that the call omits."""
    if hasattr(proto, "initializer"):
        return [onnx_node.value_of(info) for info in proto.input]
    types = onnx_node.typed_values(getattr(proto, "value_info", ()))
    return [Value(name, types.get(name)) for name in proto.input if name not in scope.absent]


def stated_types(proto: Any) -> dict[str, Type]:
    """Return the types that a GraphProto or FunctionProto states for its values."""
    types = onnx_node.typed_values(getattr(proto, "value_info", ()))
    if hasattr(proto, "initializer"):
        types |= onnx_node.typed_values(proto.output)
    return types


def output_value(output: Any, types: Mapping[str, Type]) -> Value:
    """Return an output of a GraphProto or FunctionProto as a Value."""
    name = output if isinstance(output, str) else output.name
    return Value(name, types.get(name))


def check_outputs(outputs: Sequence[Value], names: frozenset[str], graph: str) -> None:
    """Raise GraphError for an output that nothing defines."""
    for value in outputs:
        if value.name not in names:
            raise GraphError(
                f"graph @{graph} returns %{value.name}, which is not defined",
                hint="export the model again: it is incomplete",
            )


def defined_once(names: Sequence[str], graph: str) -> set[str]:
    """Return the names as a set.  Raises GraphError for a duplicate."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise GraphError(
                f"%{name} is defined twice as an input or constant of graph @{graph}",
                hint="rename one of the values: each value of a graph has one definition",
            )
        seen.add(name)
    return seen


def check_hiding(graph: Graph, around: Set[str] = frozenset()) -> None:
    """Raise GraphError if a branch or body redefines a name that is visible from `around` it."""
    visible = set(around)

    def define(values: Iterable[Value]) -> None:
        for value in values:
            if value.name in around:
                raise GraphError(
                    f"%{value.name} is defined in graph @{graph.name} and in an enclosing graph",
                    hint="rename one of the values: ONNX names are unique in a model",
                )
            if value.name:
                visible.add(value.name)

    define(graph.inputs)
    define(constant.value for constant in graph.constants)
    for node in graph.nodes:
        for inner in node.subgraphs:
            check_hiding(inner, visible)
        define(node.outputs)


def is_true(constant: Constant) -> bool:
    """Return whether a constant has one element and that is true."""
    data = constant.data
    return (
        isinstance(data, Inline)
        and data.array.dtype == bool
        and data.array.size == 1
        and bool(data.array.all())
    )
