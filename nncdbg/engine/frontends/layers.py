"""Module scopes become graphs that are called, so that stepping over, into and out means a layer.

The names of values and the results do not change: a layer's parameters have the names of the
values they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

from nncdbg.engine.frontends.order import reads
from nncdbg.engine.graph import Constant, Graph, Node, Value

Scope: TypeAlias = "tuple[str, ...]"
"""Modules around a node, outermost first, each by its full name."""

_SMALLEST = 2
"""A layer of fewer statements is not worth a step in."""


@dataclass(frozen=True)
class _Run:
    """Consecutive nodes of one module, or None for nodes of none."""

    module: str | None
    nodes: tuple[Node, ...]
    scopes: tuple[Scope, ...]


def group_layers(graph: Graph, scopes: Sequence[Scope], claim: Callable[[str], str]) -> list[Graph]:
    """The graph with its layers called, then the layers, outer before inner, in order of execution.

    `scopes` has one entry for each node; `claim` turns a module's name into a free graph name.
    """
    return _grouped(graph, tuple(scopes), 0, claim)


def _grouped(graph: Graph, scopes: tuple[Scope, ...], depth: int, claim: Callable[[str], str]) -> list[Graph]:
    if all(len(scope) <= depth for scope in scopes):
        return [graph]
    runs = _runs(graph.nodes, scopes, depth)
    if len(runs) == 1:
        # A module that is all of its parent would be a frame with one call in it.
        return _grouped(graph, scopes, depth + 1, claim)
    types = _types(graph)
    later = _read_later(graph, runs)
    kept = _constants_outside(graph, runs)
    nodes: list[Node] = []
    layers: list[Graph] = []
    moved: set[str] = set()
    for run, read in zip(runs, later, strict=True):
        layer = _layer(run, graph, kept, read, types)
        if layer is None:
            nodes.extend(run.nodes)
            continue
        layer = replace(layer, name=claim(layer.name))
        moved |= {constant.value.name for constant in layer.constants}
        nodes.append(Node(f"@{layer.name}", tuple(value.name for value in layer.inputs), layer.outputs))
        layers.extend(_grouped(layer, run.scopes, depth + 1, claim))
    constants = tuple(constant for constant in graph.constants if constant.value.name not in moved)
    return [replace(graph, nodes=tuple(nodes), constants=constants), *layers]


def _runs(nodes: Sequence[Node], scopes: Sequence[Scope], depth: int) -> list[_Run]:
    pairs = zip(nodes, scopes, strict=True)
    runs = []
    for module, members in groupby(pairs, lambda pair: pair[1][depth] if len(pair[1]) > depth else None):
        inside, theirs = zip(*members, strict=True)
        runs.append(_Run(module, inside, theirs))
    return runs


def _read_later(graph: Graph, runs: Sequence[_Run]) -> list[set[str]]:
    """For each run, the names that are read after it."""
    read = {value.name for value in graph.outputs}
    found = []
    for run in reversed(runs):
        found.append(set(read))
        read.update(name for node in run.nodes for name in reads(node))
    return found[::-1]


def _constants_outside(graph: Graph, runs: Sequence[_Run]) -> set[str]:
    """Constants that more than one run reads, or that are outputs: they stay where they are."""
    names = {constant.value.name for constant in graph.constants}
    seen = {value.name for value in graph.outputs} & names
    shared = set(seen)
    for run in runs:
        here = {name for node in run.nodes for name in reads(node)} & names
        shared |= here & seen
        seen |= here
    return shared


def _layer(run: _Run, graph: Graph, kept: set[str], read: set[str], types: dict[str, Value]) -> Graph | None:
    """The run as a graph, None if it is too small, belongs to no module, or gives nothing."""
    if run.module is None or len(run.nodes) < _SMALLEST:
        return None
    outputs = tuple(
        value for node in run.nodes for value in node.outputs if value.name and value.name in read
    )
    if not outputs:
        return None
    used = list(dict.fromkeys(_reads_in_order(run.nodes)))
    own = {value.name for node in run.nodes for value in node.outputs}
    constants: tuple[Constant, ...] = tuple(
        constant
        for constant in graph.constants
        if constant.value.name in used and constant.value.name not in kept
    )
    own |= {constant.value.name for constant in constants}
    inputs = tuple(types.get(name, Value(name)) for name in used if name not in own)
    return Graph(run.module, inputs, outputs, run.nodes, constants)


def _reads_in_order(nodes: Sequence[Node]) -> Iterator[str]:
    for node in nodes:
        yield from reads(node)


def _types(graph: Graph) -> dict[str, Value]:
    """Every value that a layer could be given, with its type."""
    values = {value.name: value for value in graph.inputs}
    values |= {constant.value.name: constant.value for constant in graph.constants}
    values |= {value.name: value for node in graph.nodes for value in node.outputs if value.name}
    return values
