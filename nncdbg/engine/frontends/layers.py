"""Group module scopes into called graphs, so that stepping over, into and out works by layer.

The names of values and the results do not change: a layer's parameters have the names of the
values passed to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby
from os.path import commonprefix
from types import MappingProxyType
from typing import TypeAlias

from nncdbg.ir.names import defined, reads
from nncdbg.ir.records import Constant, Graph, Node, Value

ModulePath: TypeAlias = "tuple[str, ...]"
"""Modules around a node, outermost first, each by its full name."""

_SMALLEST = 2
"""The fewest statements of a layer."""


@dataclass(frozen=True)
class _Run:
    """Consecutive nodes of one module; None for nodes outside of modules."""

    module: str | None
    nodes: tuple[Node, ...]
    scopes: tuple[ModulePath, ...]


def all_known(scopes: Sequence[Sequence[str] | None]) -> list[ModulePath]:
    """Return the scopes with each None replaced by the common scope of both known neighbors.

    Exporters insert a Cast or a Reshape between the nodes of a module without naming its scope.
    """
    before: list[Sequence[str]] = [()]
    for scope in scopes:
        before.append(before[-1] if scope is None else scope)
    filled: list[ModulePath] = []
    after: Sequence[str] = ()
    for scope, left in zip(reversed(scopes), reversed(before[1:]), strict=True):
        after = after if scope is None else scope
        filled.append(tuple(commonprefix([list(left), list(after)])))
    return filled[::-1]


def group_layers(
    graph: Graph,
    scopes: Sequence[ModulePath],
    claim: Callable[[str], str],
    classes: Mapping[str, str] = MappingProxyType({}),
    states: Set[str] = frozenset(),
) -> list[Graph]:
    """Return the graph with its layers called, then the layers, outer before inner, in execution order.

    `scopes` has one entry for each node; `claim` returns a free graph name for a module's name.
    `classes` maps a module to its class, which becomes the comment of its layers.  `states` are the names of
    states, which layers read without an input.
    """

    def made(layer: Graph) -> Graph:
        return replace(layer, name=claim(layer.name), comment=classes.get(layer.module, ""))

    return _grouped(graph, tuple(scopes), 0, made, states)


def _grouped(
    graph: Graph,
    scopes: tuple[ModulePath, ...],
    depth: int,
    made: Callable[[Graph], Graph],
    states: Set[str],
) -> list[Graph]:
    if all(len(scope) <= depth for scope in scopes):
        return [graph]
    runs = _runs(graph.nodes, scopes, depth)
    if len(runs) == 1:
        # A module that is all of its parent would be a frame with only one call.
        return _grouped(graph, scopes, depth + 1, made, states)
    around = _Around(graph, runs)
    nodes: list[Node] = []
    layers: list[Graph] = []
    moved: set[str] = set()
    for index, run in enumerate(runs):
        layer = _layer(run, index, around, states)
        if layer is None:
            nodes.extend(run.nodes)
            continue
        layer = made(layer)
        moved |= {constant.value.name for constant in layer.constants}
        nodes.append(Node(f"@{layer.name}", tuple(value.name for value in layer.inputs), layer.outputs))
        layers.extend(_grouped(layer, run.scopes, depth + 1, made, states))
    constants = tuple(constant for constant in graph.constants if constant.value.name not in moved)
    return [replace(graph, nodes=tuple(nodes), constants=constants), *layers]


def _runs(nodes: Sequence[Node], scopes: Sequence[ModulePath], depth: int) -> list[_Run]:
    pairs = zip(nodes, scopes, strict=True)
    runs = []
    for module, members in groupby(pairs, lambda pair: pair[1][depth] if len(pair[1]) > depth else None):
        inside, theirs = zip(*members, strict=True)
        runs.append(_Run(module, inside, theirs))
    return runs


class _Around:
    """The facts about the surrounding graph that are needed to extract a layer."""

    def __init__(self, graph: Graph, runs: Sequence[_Run]) -> None:
        self.values = {value.name: value for value in defined(graph)}
        self.reads = [
            tuple(dict.fromkeys(name for node in run.nodes for name in reads(node))) for run in runs
        ]
        self.last_read: dict[str, int] = {}
        """Name to the index of the last run that reads it, beyond the last for outputs."""
        readers: dict[str, int] = {}
        for index, names in enumerate([*self.reads, tuple(value.name for value in graph.outputs)]):
            for name in names:
                self.last_read[name] = index
                readers[name] = readers.get(name, 0) + (2 if index == len(runs) else 1)
        self.movable: dict[str, Constant] = {
            constant.value.name: constant
            for constant in graph.constants
            if readers.get(constant.value.name, 0) == 1
        }
        """Constants that only one run reads."""


def _layer(run: _Run, index: int, around: _Around, states: Set[str]) -> Graph | None:
    """Return the run as a graph; None if it is too small, outside of modules, or without results."""
    if run.module is None or len(run.nodes) < _SMALLEST:
        return None
    defined = [value for node in run.nodes for value in node.outputs if value.name]
    outputs = tuple(value for value in defined if around.last_read.get(value.name, -1) > index)
    if not outputs:
        return None
    used = around.reads[index]
    constants = tuple(around.movable[name] for name in used if name in around.movable)
    own = {value.name for value in defined} | {constant.value.name for constant in constants} | states
    inputs = tuple(around.values.get(name, Value(name)) for name in used if name not in own)
    return Graph(run.module, inputs, outputs, run.nodes, constants)
