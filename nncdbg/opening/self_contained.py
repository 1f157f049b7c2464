"""Self-contained programs: all weights in memory, as one store that can be written beside the text."""

from __future__ import annotations

from dataclasses import replace

from nncdbg.engine.compilation.code import initial_data
from nncdbg.engine.dtypes import name_of
from nncdbg.engine.frontends.folder_files import STORE
from nncdbg.engine.frontends.safetensors import STORABLE
from nncdbg.engine.frontends.stores import ArrayStore
from nncdbg.engine.frontends.tensor_file import key_for
from nncdbg.engine.graph import Array, Constant, Graph, Inline, Node, Program, Reference

_INLINE = 16
"""Most elements of a constant that is written inline in the text."""


def self_contained(program: Program) -> Program:
    """Return the program with its weights in memory, in one store named `STORE`, or in the text if small.

    Raises LoadError if they cannot be read.
    """
    weights: dict[str, Array] = {}
    graphs = {name: stored_graph(graph, program, weights) for name, graph in program.graphs.items()}
    stores, readers = ((STORE,), (ArrayStore(weights),)) if weights else ((), ())
    return replace(program, graphs=graphs, stores=stores, readers=readers, listing=None)


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


def stored_data(key: str, array: Array, weights: dict[str, Array]) -> Inline | Reference:
    """Return a constant's data: inline if small, else a reference to `weights`, under `key` if unused."""
    if array.size <= _INLINE or name_of(array.dtype) not in STORABLE:
        return Inline(array)
    if weights.get(key) is not array:  # One array per constant.
        key = key_for(key, weights)
    weights[key] = array
    return Reference(key)
