"""Self-contained programs: all weights in memory, as one store that can be written beside the text."""

from __future__ import annotations

from dataclasses import replace

from nncdbg.engine.compilation.code import initial_data
from nncdbg.engine.dtypes import name_of
from nncdbg.engine.frontends.folder_files import STORE
from nncdbg.engine.frontends.safetensors import STORABLE
from nncdbg.engine.frontends.stores import ArrayStore
from nncdbg.engine.frontends.tensor_file import key_for
from nncdbg.ir.records import (
    Array,
    Constant,
    Graph,
    Inline,
    Node,
    Program,
    Reference,
    RunLine,
    StateLine,
    Value,
)

_INLINE = 16
"""Most elements of a constant that is written inline in the text."""


def self_contained(program: Program) -> Program:
    """Return the program with its weights in memory, in one store named `STORE`, or in the text if small.

    Raises LoadError if they cannot be read.
    """
    weights: dict[str, Array] = {}
    graphs = {name: stored_graph(graph, program, weights) for name, graph in program.graphs.items()}
    states = tuple(_stored_state(state, program, weights) for state in program.states)
    runs = tuple(_stored_run(run, program, weights) for run in program.runs)
    stores, readers = ((STORE,), (ArrayStore(weights),)) if weights else ((), ())
    return replace(
        program, graphs=graphs, states=states, runs=runs, stores=stores, readers=readers, listing=None
    )


def stored_graph(graph: Graph, program: Program, weights: dict[str, Array]) -> Graph:
    """Return a graph of a program with its weights in `weights`."""
    constants = tuple(_stored_constant(each, program, weights) for each in graph.constants)
    nodes = tuple(stored_blocks(node, program, weights) for node in graph.nodes)
    return replace(graph, constants=constants, nodes=nodes)


def stored_blocks(node: Node, program: Program, weights: dict[str, Array]) -> Node:
    """Return a statement with the weights of its blocks in `weights`."""
    if not node.subgraphs:
        return node
    return replace(node, subgraphs=tuple(stored_graph(each, program, weights) for each in node.subgraphs))


def _stored_constant(constant: Constant, program: Program, weights: dict[str, Array]) -> Constant:
    key = constant.data.key if isinstance(constant.data, Reference) else constant.value.name
    return replace(constant, data=stored_data(key, initial_data(constant, program), weights))


def _stored_state(state: StateLine, program: Program, weights: dict[str, Array]) -> StateLine:
    if isinstance(state.first, Node):
        return replace(state, first=stored_blocks(state.first, program, weights))
    return replace(state, first=_stored_constant(Constant(state.value, state.first), program, weights).data)


def _stored_run(run: RunLine, program: Program, weights: dict[str, Array]) -> RunLine:
    sources = []
    for name, source in zip(run.values, run.sources, strict=False):
        array = initial_data(Constant(Value(name), source), program)
        sources.append(_reference(source.key, array, weights))
    evaluations = tuple(_stored_run(each, program, weights) for each in run.evaluations)
    return replace(run, sources=tuple(sources), evaluations=evaluations)


def stored_data(key: str, array: Array, weights: dict[str, Array]) -> Inline | Reference:
    """Return a constant's data: inline if small, else a reference to `weights`, under `key` if unused."""
    if array.size <= _INLINE or name_of(array.dtype) not in STORABLE:
        return Inline(array)
    return _reference(key, array, weights)


def _reference(key: str, array: Array, weights: dict[str, Array]) -> Reference:
    if weights.get(key) is not array:  # One array per constant.
        key = key_for(key, weights)
    weights[key] = array
    return Reference(key)
