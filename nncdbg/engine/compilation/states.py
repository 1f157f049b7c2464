"""Lower a program with states to one without: states become values that calls and blocks pass on.

The lowered program is what runs.  Its statements are those of the text, at the same places, but

* a call has the states that its graph reads or updates as further operands, and those that it updates as
  further results; so do branches and loops,
* ``update`` defines its states again: a later statement reads the latest definition,
* the entry graph is the driver (`text.driver`): it computes the first values of the states, then calls the
  graphs of the runs in loops that carry the states.  A single run from data needs no driver: the states are
  constants of the entry graph, and their new values are results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from nncdbg.engine.compilation.driver_graph import DriverGraph
from nncdbg.engine.compilation.effects import effects_of
from nncdbg.errors import GraphError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import (
    Constant,
    Graph,
    Node,
    Program,
    Value,
)
from nncdbg.ir.rewrite import rewrite
from nncdbg.ir.walk import calls_in, walk_nodes
from nncdbg.text.lexemes import name_text
from nncdbg.text.listing import has_driver


def lowered(
    program: Program, samples: Mapping[str, int] | None = None, given: Collection[str] = ()
) -> Program:
    """Return the program that runs; the same one if it has no states and no runs.

    `samples` are the sizes of the first axis of the driver's inputs; without them the loops of the runs have
    no iterations, and only the types of the inputs are of use.  `given` are the names of states that are
    inputs of the driver, in place of their data.

    Raises GraphError for an update in a loop before a `break`, which would be lost, and for data that do not
    fit the runs.
    """
    if not has_driver(program):
        return program
    if samples is None and given:
        return lowered(program, {}, given)
    if samples is None:
        if "lowered" not in program.kept:
            program.kept["lowered"] = lowered(program, {})
        return program.kept["lowered"]  # type: ignore[no-any-return]
    lowering = Lowering(program)
    graphs = lowering.graphs()
    if _is_single_run(program):
        entry = _with_data(program, graphs[program.entry], given)
        graphs, name = {**graphs, program.entry: entry}, program.entry
    else:
        driver = DriverGraph(program, lowering, samples, given).graph()
        graphs, name = {driver.name: driver, **graphs}, driver.name
    return without_states(program, graphs, name)


def without_states(program: Program, graphs: Mapping[str, Graph], entry: str) -> Program:
    """Return a program of lowered graphs, with the lines of `program`."""
    return replace(program, graphs=graphs, entry=entry, states=(), runs=(), listing=program.as_listing())


def _is_single_run(program: Program) -> bool:
    """Return whether the entry graph runs once, with states that begin with data."""
    computed = any(isinstance(state.first, Node) for state in program.states)
    return not (program.runs or computed or program.entry in calls_in(program))


def _with_data(program: Program, entry: Graph, given: Collection[str]) -> Graph:
    """Return the lowered entry graph with the data of the states; those in `given` are inputs."""
    states, own = program.states, program.graph
    names = {value.name for value in own.outputs}
    new = (value for value in entry.outputs[len(own.outputs) :] if value.name not in names)
    data = (Constant(each.value, each.first) for each in states if not isinstance(each.first, Node))
    return replace(
        entry,
        inputs=(*own.inputs, *(each.value for each in states if each.value.name in given)),
        outputs=(*own.outputs, *new),
        constants=(*entry.constants, *(each for each in data if each.value.name not in given)),
    )


def given_states(program: Program, inputs: object) -> frozenset[str]:
    """Return the states whose first values are data, and for which `inputs` has other data by name."""
    names = {str(name).removeprefix("%") for name in inputs} if isinstance(inputs, Mapping) else set()
    first = {state.value.name for state in program.states if not isinstance(state.first, Node)}
    return frozenset(names & first)


def rebound(program: Program) -> frozenset[str]:
    """Return the names that a lowered program defines more than once per frame."""
    return frozenset(
        value.name for node in walk_nodes(program) if node.kind is Kind.UPDATE for value in node.outputs
    )


def states_with_buffers(program: Program) -> frozenset[str]:
    """Return the states of a program that updates states in place; none if it updates no state."""
    return frozenset(state.value.name for state in program.states) if rebound(program) else frozenset()


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

    def graphs(self) -> dict[str, Graph]:
        """Return all graphs of the program, lowered."""
        return {name: self.graph(name, graph) for name, graph in self._program.graphs.items()}

    def graph(self, key: str, graph: Graph) -> Graph:
        """Return a graph with the states that it uses as inputs, and those that it updates as outputs.

        `key` is its name in calls: the forward graph of a ``backward`` line has the name of another graph.
        """
        effects = self.effects[key]
        return replace(
            rewrite(graph, lambda path, pc, node: self.statement(node)),
            inputs=(*graph.inputs, *self.ordered(effects.used)),
            outputs=(*graph.outputs, *self.ordered(effects.updated)),
        )

    def statement(self, node: Node) -> Node:
        """Return a statement that passes on the states of its callee or its (lowered) blocks."""
        if node.kind is Kind.UPDATE:
            states = tuple(self.types[value.name] for value in node.outputs)
            types = tuple((value.name, value.type) for value in states)
            return replace(node, outputs=states, attributes={"states": types})
        if (called := node.called) is not None:
            effects = self.effects.get(called)
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
        return self._loop(node, states) if node.kind is Kind.WHILE else self._branches(node, states)

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
        if updated and node.kind is Kind.BREAK:
            raise GraphError(
                f"the loop @{body.name or 'body'} breaks after the update of %{name_text(updated)}",
                hint="move the update behind the break, or out of the loop",
            )
