"""Which states the graphs of a program read and update, in the graphs that they call too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nncdbg.engine.graph import Graph, Node, Program


@dataclass(frozen=True, slots=True)
class Effects:
    """The names of the states that a graph reads or updates, and of those that it updates."""

    used: frozenset[str]
    updated: frozenset[str]


def effects_of(program: Program) -> Mapping[str, Effects]:
    """Return the effects of each graph, including those of the graphs that it calls."""
    states = frozenset(state.value.name for state in program.states)
    found = {name: _own_effects(graph, states) for name, graph in program.graphs.items()}
    calls = {
        name: {node.op[1:] for node in all_nodes(graph) if node.op.startswith("@")} & found.keys()
        for name, graph in program.graphs.items()
    }
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


def all_nodes(graph: Graph) -> Iterator[Node]:
    """Yield the statements of a graph and of the blocks inside it."""
    waiting = [graph]
    while waiting:
        for node in waiting.pop().nodes:
            yield node
            waiting.extend(node.subgraphs)


def graphs_called(key: str, graphs: Mapping[str, Graph]) -> list[str]:
    """Return a graph and the graphs that it calls, in these too, by key and in order."""
    found = [key]
    for each in found:
        calls = (node.op[1:] for node in all_nodes(graphs[each]) if node.op.startswith("@"))
        found += dict.fromkeys(name for name in calls if name not in found and name in graphs)
    return found


def _own_effects(graph: Graph, states: frozenset[str]) -> Effects:
    nodes = [*all_nodes(graph)]
    updated = {value.name for node in nodes if node.op == "update" for value in node.outputs}
    blocks = [graph, *(inner for node in nodes for inner in node.subgraphs)]
    ends = {value.name for block in blocks for value in block.outputs}
    read = {name for node in nodes for name in node.inputs if isinstance(name, str)}
    return Effects(frozenset({*read, *ends, *updated} & states), frozenset(updated & states))
