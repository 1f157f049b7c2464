"""Lower a program with states to one without: states become values that calls and blocks pass on.

The lowered program is what runs.  Its statements are those of the text, at the same places, but

* a call has the states that its graph reads or updates as further operands, and those that it updates as
  further results; so do branches and loops,
* ``update`` defines its states again: a later statement reads the latest definition,
* the entry graph is the driver (`text.driver`): it computes the first values of the states, then calls the
  graphs of the runs in loops that carry the states.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from nncdbg.engine.compilation.driver_graph import DriverGraph
from nncdbg.engine.compilation.effects import all_nodes, effects_of
from nncdbg.engine.errors import GraphError
from nncdbg.engine.graph import (
    Graph,
    Node,
    Program,
    Value,
)
from nncdbg.engine.text.driver import has_driver


def lowered(program: Program, samples: Mapping[str, int] | None = None) -> Program:
    """Return the program that runs; the same one if it has no states and no runs.

    `samples` are the sizes of the first axis of the driver's inputs; without them the loops of the runs have
    no iterations, and only the types of the inputs are of use.

    Raises GraphError for an update in a loop before a `break`, which would be lost, and for data that do not
    fit the runs.
    """
    if not has_driver(program):
        return program
    if samples is None:
        if "lowered" not in program.kept:
            program.kept["lowered"] = lowered(program, {})
        return program.kept["lowered"]  # type: ignore[no-any-return]
    lowering = Lowering(program)
    graphs = {name: lowering.graph(name, graph) for name, graph in program.graphs.items()}
    driver = DriverGraph(program, lowering, samples).graph()
    return replace(
        program,
        graphs={driver.name: driver, **graphs},
        entry=driver.name,
        states=(),
        runs=(),
        listing=program.as_listing(),
    )


def rebound(program: Program) -> frozenset[str]:
    """Return the names that a lowered program defines more than once per frame."""
    return frozenset(
        value.name
        for graph in program.graphs.values()
        for node in all_nodes(graph)
        if node.op == "update"
        for value in node.outputs
    )


class Lowering:
    """Adds the states to the graphs of one program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.types = {state.value.name: state.value for state in program.states}
        self.effects = effects_of(program)

    def ordered(self, names: frozenset[str]) -> tuple[Value, ...]:
        """Return these states in the order of the program."""
        return tuple(value for name, value in self.types.items() if name in names)

    # -- graphs and blocks ------------------------------------------------------------------------

    def graph(self, key: str, graph: Graph) -> Graph:
        """Return a graph with the states that it uses as inputs, and those that it updates as outputs.

        `key` is its name in calls: the forward graph of a ``backward`` line has the name of another graph.
        """
        effects = self.effects[key]
        return replace(
            self._block(graph),
            inputs=(*graph.inputs, *self.ordered(effects.used)),
            outputs=(*graph.outputs, *self.ordered(effects.updated)),
        )

    def _block(self, graph: Graph) -> Graph:
        """Return a block with lowered statements, and its own inputs and outputs."""
        # The inner blocks come first; no recursion, as blocks may be nested deeper than Python's stack.
        order = [graph]
        for each in order:
            order.extend(inner for node in each.nodes for inner in node.subgraphs)
        done: dict[int, Graph] = {}
        for each in reversed(order):
            nodes = [
                self.statement(replace(node, subgraphs=tuple(done[id(inner)] for inner in node.subgraphs)))
                for node in each.nodes
            ]
            done[id(each)] = replace(each, nodes=tuple(nodes))
        return done[id(graph)]

    def statement(self, node: Node) -> Node:
        """Return a statement that passes on the states of its callee or its (lowered) blocks."""
        if node.op == "update":
            states = tuple(self.types[value.name] for value in node.outputs)
            types = tuple((value.name, value.type) for value in states)
            return replace(node, outputs=states, attributes={"states": types})
        if node.op.startswith("@"):
            effects = self.effects.get(node.op[1:])
            if effects is None:
                return node
            operands = tuple(value.name for value in self.ordered(effects.used))
            outputs = (*node.outputs, *self.ordered(effects.updated))
            return replace(node, inputs=(*node.inputs, *operands), outputs=outputs)
        updated = frozenset(
            value.name
            for block in node.subgraphs
            for inner in block.nodes
            for value in inner.outputs
            if value.name in self.types
        )
        if not updated:
            return node
        states = self.ordered(updated)
        return self._loop(node, states) if node.op == "while" else self._branches(node, states)

    def _branches(self, node: Node, states: tuple[Value, ...]) -> Node:
        blocks = [replace(each, outputs=(*each.outputs, *states)) for each in node.subgraphs]
        return replace(node, subgraphs=tuple(blocks), outputs=(*node.outputs, *states))

    def _loop(self, node: Node, states: tuple[Value, ...]) -> Node:
        body = node.subgraphs[0]
        _check_break(body, {value.name for value in states})
        carried = len(body.inputs) - 1
        body = replace(
            body,
            inputs=(*body.inputs, *states),
            outputs=(*body.outputs[:carried], *states, *body.outputs[carried:]),
        )
        return replace(
            node,
            inputs=(*node.inputs, *(value.name for value in states)),
            subgraphs=(body,),
            outputs=(*node.outputs[:carried], *states, *node.outputs[carried:]),
        )


def _check_break(body: Graph, states: Collection[str]) -> None:
    """Raise GraphError if a loop may leave after an update in the same iteration."""
    updated = ""
    for node in body.nodes:
        updated = next((value.name for value in node.outputs if value.name in states), updated)
        if updated and node.op == "break":
            raise GraphError(
                f"the loop @{body.name or 'body'} breaks after the update of %{updated}",
                hint="move the update behind the break, or out of the loop",
            )
