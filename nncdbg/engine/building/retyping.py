"""The types of an edited graph: inferred again, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nncdbg.engine.differentiation.backward_calls import SAVED
from nncdbg.engine.frontends.order import title
from nncdbg.engine.inference.graphs import GraphInference
from nncdbg.engine.inference.types import common_type, type_of_array
from nncdbg.errors import NncdbgError
from nncdbg.ir.constants import initial_data
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Graph, Node, Path, Program, Type, Value
from nncdbg.ir.rewrite import rewrite
from nncdbg.ir.walk import block_at, walk_nodes


def retyped(program: Program, graph: Graph) -> Graph:
    """Return a graph of a program with the types of its values inferred from its inputs.

    A declared type stays if the inferred one agrees with it, and where none is inferred.  Raises GraphError
    for a statement that reads a value before its definition, or that does not fit the types of its operands.
    """
    states = {line.value.name: line.value for line in program.states}
    kept = {str(node.attributes[SAVED]) for node in walk_nodes(graph) if SAVED in node.attributes}
    around = (*states.values(), *map(Value, kept))
    open_graph = replace(_untyped(graph), inputs=(*graph.inputs, *around))

    def complain(path: Path, pc: int, error: NncdbgError) -> NncdbgError:
        block = block_at(graph, path)
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


def _untyped(graph: Graph) -> Graph:
    """Return a graph whose results have no declared types; those of inputs and carried values stay."""

    def statement(path: Path, pc: int, node: Node) -> Node:
        known = node.kind is Kind.CALL
        return replace(node, outputs=tuple(each if known else Value(each.name) for each in node.outputs))

    def block(path: Path, new: Graph) -> Graph:
        return replace(new, outputs=tuple(Value(each.name) for each in new.outputs))

    return rewrite(graph, statement, block)


def _typed(graph: Graph, types: Mapping[Path, Mapping[str, Type | None]]) -> Graph:
    def typed(value: Value, path: Path) -> Value:
        found = types[path].get(value.name)
        if found is None or not value.name:
            return value
        agreed = common_type(value.type, found) if value.type is not None else found
        return Value(value.name, found if agreed is None else agreed)

    def statement(path: Path, pc: int, node: Node) -> Node:
        if node.kind is Kind.UPDATE:
            return node
        return replace(node, outputs=tuple(typed(each, path) for each in node.outputs))

    new = rewrite(graph, statement)
    return replace(new, outputs=tuple(typed(each, (graph.name,)) for each in new.outputs))
