"""Graphs that receive states as operands, changed to graphs that read them as states."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from nncdbg.engine.building.copies import copied_node
from nncdbg.ir.names import all_defined, fresh_name
from nncdbg.ir.records import Graph, Node, Operand, Value
from nncdbg.ir.rewrite import rewrite_node
from nncdbg.ir.walk import walk_nodes


def with_shared_states(
    graphs: Mapping[str, Graph], states: Collection[str], roots: Collection[str]
) -> dict[str, Graph]:
    """Return the graphs without the inputs that are states, and without the operands for them.

    The graphs in `roots`, which no statement calls, have each state as an input of its name.  Another graph
    loses an input if every call passes the state of its name; its other values get names that no state has.
    """
    shared = {
        name: {value.name for value in graph.inputs if value.name in states} for name, graph in graphs.items()
    }
    calls = [
        (name, called, node)
        for name, graph in graphs.items()
        for node in walk_nodes(graph)
        if (called := node.called) is not None
    ]
    changed = True
    while changed:
        changed = False
        for caller, callee, node in calls:
            for value, operand in zip(graphs[callee].inputs, node.inputs, strict=True):
                passed = operand == value.name and value.name in shared[caller]
                if value.name in shared[callee] and not passed and callee not in roots:
                    shared[callee].remove(value.name)
                    changed = True
    return {
        name: _Sharing(graphs, shared, {*states} - shared[name]).graph(graph)
        for name, graph in graphs.items()
    }


class _Sharing:
    """Rewrites one graph, in which `foreign` are the states whose names belong to other values."""

    def __init__(
        self, graphs: Mapping[str, Graph], shared: Mapping[str, Collection[str]], foreign: Collection[str]
    ) -> None:
        self._graphs = graphs
        self._shared = shared
        self._foreign = foreign

    def graph(self, graph: Graph) -> Graph:
        """Return the graph with its own values renamed, and its calls without states."""
        used = {value.name for value in all_defined(graph)}
        renamed = {name: fresh_name(f"{name}.own", used) for name in used if name in self._foreign}
        inputs = tuple(value for value in graph.inputs if value.name not in self._shared[graph.name])
        changed = replace(
            graph, inputs=inputs, nodes=tuple(rewrite_node(node, self._statement) for node in graph.nodes)
        )
        return _with_names(changed, renamed) if renamed else changed

    def _statement(self, node: Node) -> Node:
        if (called := node.called) is None:
            return node
        pairs = zip(self._graphs[called].inputs, node.inputs, strict=True)
        dropped = self._shared[called]
        return replace(node, inputs=tuple(operand for value, operand in pairs if value.name not in dropped))


def _with_names(graph: Graph, names: Mapping[str, str]) -> Graph:
    operands: dict[str, Operand] = {**names}

    def named(value: Value) -> Value:
        return replace(value, name=names.get(value.name, value.name))

    return replace(
        graph,
        inputs=tuple(map(named, graph.inputs)),
        constants=tuple(replace(each, value=named(each.value)) for each in graph.constants),
        nodes=tuple(copied_node(node, operands, lambda name: names.get(name, name)) for node in graph.nodes),
        outputs=tuple(map(named, graph.outputs)),
    )
