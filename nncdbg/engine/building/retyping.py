"""The types of an edited graph: inferred again, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nncdbg.engine.compilation.code import initial_data
from nncdbg.engine.compilation.effects import all_nodes
from nncdbg.engine.differentiation.backward_calls import SAVED
from nncdbg.engine.errors import NncdbgError
from nncdbg.engine.frontends.order import title
from nncdbg.engine.graph import Graph, Node, Program, Type, Value
from nncdbg.engine.inference.graphs import GraphInference
from nncdbg.engine.inference.types import common_type, type_of_array
from nncdbg.engine.text.listing import Path


def retyped(program: Program, graph: Graph) -> Graph:
    """Return a graph of a program with the types of its values inferred from its inputs.

    A declared type stays if the inferred one agrees with it, and where none is inferred.  Raises GraphError
    for a statement that reads a value before its definition, or that does not fit the types of its operands.
    """
    states = {line.value.name: line.value for line in program.states}
    kept = {str(node.attributes[SAVED]) for node in all_nodes(graph) if SAVED in node.attributes}
    around = (*states.values(), *map(Value, kept))
    open_graph = replace(_untyped(graph), inputs=(*graph.inputs, *around))

    def complain(path: Path, pc: int, error: NncdbgError) -> NncdbgError:
        block = _block_at(graph, path)
        where = title(block.nodes[pc]) if pc < len(block.nodes) else "the last line"
        error.message = f"{where} in graph @{graph.name}: {error.message}"
        return error

    inference = GraphInference(
        program.opsets,
        program.graphs,
        lambda constant: type_of_array(initial_data(constant, program)),
        complain,
        rebound=states.keys(),
    )
    types = inference.infer(open_graph, [None] * len(open_graph.inputs))
    return _typed(graph, types)


def _block_at(graph: Graph, path: Path) -> Graph:
    for pc, number in zip(path[1::2], path[2::2], strict=True):
        graph = graph.nodes[int(pc)].subgraphs[int(number)]
    return graph


def _order(graph: Graph) -> list[tuple[Path, Graph]]:
    """Return a graph and the blocks inside it with their paths, outer before inner."""
    found: list[tuple[Path, Graph]] = [((graph.name,), graph)]
    for path, block in found:
        for pc, node in enumerate(block.nodes):
            found += [((*path, pc, number), inner) for number, inner in enumerate(node.subgraphs)]
    return found


def _rebuilt(graph: Graph, node_of: Any, outputs_of: Any) -> Graph:
    """Return a graph with other statements and outputs, without recursion."""
    made: dict[Path, Graph] = {}
    for path, block in reversed(_order(graph)):
        nodes = []
        for pc, node in enumerate(block.nodes):
            inner = tuple(made[*path, pc, number] for number in range(len(node.subgraphs)))
            nodes.append(replace(node_of(path, node), subgraphs=inner))
        made[path] = replace(block, nodes=tuple(nodes), outputs=outputs_of(path, block))
    return made[graph.name,]


def _untyped(graph: Graph) -> Graph:
    """Return a graph whose results have no declared types; those of inputs and carried values stay."""

    def node_of(path: Path, node: Node) -> Node:
        known = node.op.startswith("@")
        return replace(node, outputs=tuple(each if known else Value(each.name) for each in node.outputs))

    return _rebuilt(graph, node_of, lambda path, block: tuple(Value(each.name) for each in block.outputs))


def _typed(graph: Graph, types: Mapping[Path, Mapping[str, Type | None]]) -> Graph:
    def typed(value: Value, path: Path) -> Value:
        found = types[path].get(value.name)
        if found is None or not value.name:
            return value
        agreed = common_type(value.type, found) if value.type is not None else found
        return Value(value.name, found if agreed is None else agreed)

    def node_of(path: Path, node: Node) -> Node:
        if node.op == "update":
            return node
        return replace(node, outputs=tuple(typed(each, path) for each in node.outputs))

    def outputs_of(path: Path, block: Graph) -> tuple[Value, ...]:
        return tuple(typed(each, path) for each in block.outputs) if len(path) == 1 else block.outputs

    return _rebuilt(graph, node_of, outputs_of)
