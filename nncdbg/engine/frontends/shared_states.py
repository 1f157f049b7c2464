"""Graphs that receive states as operands, changed to graphs that read them as states."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from nncdbg.engine.building.copies import copied_node
from nncdbg.engine.compilation.effects import all_nodes
from nncdbg.engine.graph import Graph, Node, Operand, Value
from nncdbg.engine.text.lexemes import fresh_name


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
    calls = [(name, node) for name, graph in graphs.items() for node in all_nodes(graph) if _called(node)]
    changed = True
    while changed:
        changed = False
        for caller, node in calls:
            callee = node.op[1:]
            for value, operand in zip(graphs[callee].inputs, node.inputs, strict=True):
                passed = operand == value.name and value.name in shared[caller]
                if value.name in shared[callee] and not passed and callee not in roots:
                    shared[callee].remove(value.name)
                    changed = True
    return {
        name: _Sharing(graphs, shared, {*states} - shared[name]).graph(graph)
        for name, graph in graphs.items()
    }


def definitions(graph: Graph) -> Iterator[str]:
    """Yield the names of all values that a graph and the blocks inside it define."""
    blocks = [graph, *(inner for node in all_nodes(graph) for inner in node.subgraphs)]
    for block in blocks:
        yield from (value.name for value in block.inputs)
        yield from (constant.value.name for constant in block.constants)
        yield from (value.name for node in block.nodes for value in node.outputs)


def _called(node: Node) -> bool:
    return node.op.startswith("@")


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
        used = {*definitions(graph)}
        renamed = {name: fresh_name(f"{name}.own", used) for name in used if name in self._foreign}
        inputs = tuple(value for value in graph.inputs if value.name not in self._shared[graph.name])
        changed = replace(graph, inputs=inputs, nodes=tuple(map(self._statement, graph.nodes)))
        return _with_names(changed, renamed) if renamed else changed

    def _statement(self, node: Node) -> Node:
        if node.subgraphs:
            blocks = (replace(each, nodes=tuple(map(self._statement, each.nodes))) for each in node.subgraphs)
            return replace(node, subgraphs=tuple(blocks))
        if not _called(node):
            return node
        pairs = zip(self._graphs[node.op[1:]].inputs, node.inputs, strict=True)
        dropped = self._shared[node.op[1:]]
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
