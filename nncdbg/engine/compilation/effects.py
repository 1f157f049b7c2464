"""Which states the graphs of a program read and update, in the graphs that they call too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Graph, Program
from nncdbg.ir.walk import blocks, calls_in, walk_nodes


@dataclass(frozen=True, slots=True)
class Effects:
    """The names of the states that a graph reads or updates, and of those that it updates."""

    used: frozenset[str]
    updated: frozenset[str]


def effects_of(program: Program) -> Mapping[str, Effects]:
    """Return the effects of each graph, including those of the graphs that it calls."""
    states = frozenset(state.value.name for state in program.states)
    found = {name: _own_effects(graph, states) for name, graph in program.graphs.items()}
    calls = {name: found.keys() & calls_in(graph) for name, graph in program.graphs.items()}
    changed = True
    while changed:
        changed = False
        for name, called in calls.items():
            parts = [found[name], *(found[each] for each in called)]
            joined = Effects(
                frozenset().union(*(each.used for each in parts)),
                frozenset().union(*(each.updated for each in parts)),
            )
            if joined != found[name]:
                found[name], changed = joined, True
    return found


def _own_effects(graph: Graph, states: frozenset[str]) -> Effects:
    nodes = [*walk_nodes(graph)]
    updated = {value.name for node in nodes if node.kind is Kind.UPDATE for value in node.outputs}
    ends = {value.name for _, block in blocks(graph) for value in block.outputs}
    read = {name for node in nodes for name in node.inputs if isinstance(name, str)}
    return Effects(frozenset({*read, *ends, *updated} & states), frozenset(updated & states))
