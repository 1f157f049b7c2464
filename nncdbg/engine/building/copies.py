"""Copies of statements and blocks under other names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from nncdbg.ir.records import Graph, Node, Operand, Type, Value

Claim = Callable[[str], str]
"""Returns the name of a copied value, from that of the original."""


def same_type(type_: Type | None) -> Type | None:
    """Return the type: the default for the values of a copy."""
    return type_


def copied_node(
    node: Node,
    names: dict[str, Operand],
    claim: Claim,
    retyped: Callable[[Type | None], Type | None] = same_type,
) -> Node:
    """Return a statement that reads `names[x]` instead of ``%x``, and with outputs named by `claim`.

    The outputs are added to `names`.  `retyped` returns the type of a copied value.
    """
    blocks = tuple(_copied_block(each, names, claim, retyped) for each in node.subgraphs)
    inputs = tuple(names.get(each, each) if isinstance(each, str) else each for each in node.inputs)
    outputs = tuple(_copied_value(value, names, claim, retyped) for value in node.outputs)
    return replace(node, inputs=inputs, outputs=outputs, subgraphs=blocks)


def renamed(graph: Graph, new: Mapping[str, str]) -> Graph:
    """Return the graph with new names for some of the inputs and of the values that its statements read."""

    def spelled(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(replace(value, name=new.get(value.name, value.name)) for value in values)

    nodes = tuple(copied_node(node, {**new}, lambda own: own) for node in graph.nodes)
    return replace(graph, inputs=spelled(graph.inputs), outputs=spelled(graph.outputs), nodes=nodes)


def _copied_block(
    block: Graph, names: dict[str, Operand], claim: Claim, retyped: Callable[[Type | None], Type | None]
) -> Graph:
    inside = dict(names)
    inputs = tuple(_copied_value(value, inside, claim, retyped) for value in block.inputs)
    constants = tuple(
        replace(each, value=_copied_value(each.value, inside, claim, same_type)) for each in block.constants
    )
    nodes = tuple(copied_node(node, inside, claim, retyped) for node in block.nodes)
    outputs = tuple(replace(value, name=str(inside.get(value.name, value.name))) for value in block.outputs)
    return replace(block, inputs=inputs, outputs=outputs, nodes=nodes, constants=constants)


def _copied_value(
    value: Value,
    names: dict[str, Operand],
    claim: Claim,
    retyped: Callable[[Type | None], Type | None],
) -> Value:
    if not value.name:
        return value
    names[value.name] = name = claim(value.name)
    return Value(name, retyped(value.type))
