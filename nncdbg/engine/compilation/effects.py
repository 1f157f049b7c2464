"""Which states the graphs of a program read and update, in the graphs that they call too.

The parameters that a training learns are states with a gradient that an `update` changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.optimizers.statement import RATE, Optimizer
from nncdbg.engine.ops.schema import version_of
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Graph, Inline, Literal, Node, Program
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


def inputs_like_states(program: Program) -> frozenset[tuple[str | int, str]]:
    """Return the inputs of graphs that have the name of a state: the graph and the name."""
    states = {state.value.name for state in program.states}
    return frozenset(
        (graph.name, value.name)
        for graph in (program.graphs.values() if states else ())
        for value in graph.inputs
        if value.name in states
    )


def updated_by(program: Program, name: str) -> frozenset[str]:
    """Return the states that a call of a graph can update.

    A branch whose condition is written in the text, or passed as a literal by all callers on the way, is
    entered only if it runs.
    """
    updated: set[str] = set()
    calls: list[tuple[str, frozenset[tuple[str, bool]]]] = [(name, frozenset())]
    for key, facts in calls:
        graph = program.graphs[key]
        known: dict[str, object] = dict(facts)
        known |= {c.value.name: c.data.array.tolist() for c in graph.constants if isinstance(c.data, Inline)}
        nodes = [*graph.nodes]
        for node in nodes:
            values = [
                operand.data if isinstance(operand, Literal) else known.get(operand or "")
                for operand in node.inputs
            ]
            blocks = node.subgraphs
            if node.kind is Kind.UPDATE:
                updated.update(value.name for value in node.outputs)
            elif node.kind is Kind.IF and isinstance(values[0], bool):
                blocks = (blocks[0 if values[0] else 1],)
            elif (called := node.called) is not None and called in program.graphs:
                names = (value.name for value in program.graphs[called].inputs)
                pairs = zip(names, values, strict=False)
                call = called, frozenset((name, value) for name, value in pairs if isinstance(value, bool))
                calls += [call] if call not in calls else []
            nodes += [inner for block in blocks for inner in block.nodes]
    return frozenset(updated)


def _own_effects(graph: Graph, states: frozenset[str]) -> Effects:
    # An input may have the name of a state, which the graph then does not see.
    states -= {value.name for value in graph.inputs}
    nodes = [*walk_nodes(graph)]
    updated = {value.name for node in nodes if node.kind is Kind.UPDATE for value in node.outputs}
    ends = {value.name for _, block in blocks(graph) for value in block.outputs}
    read = {name for node in nodes for name in node.inputs if isinstance(name, str)}
    return Effects(frozenset({*read, *ends, *updated} & states), frozenset(updated & states))


_SUMS = frozenset({"Add", "Sub", "Sum"})
"""Ops that change a value by the other operand."""


@dataclass(frozen=True, slots=True)
class LearnedState:
    """A state that graph `graph` learns; `gradient` is the name of its gradient there (None: unknown)."""

    name: str
    graph: str
    gradient: str | None
    weight_decay: float = 0.0
    """The attribute of the optimizer."""
    rate: str | float | None = None
    """The learning rate of the optimizer: a number, or the name of the value; None: unknown."""


def parameters_of(program: Program) -> Mapping[str, LearnedState]:
    """Return the learned states of a program by name, in the order of their updates."""
    return {
        each.name: each for key, graph in program.graphs.items() for each in _learned(key, graph, program)
    }


def is_changed_by_sum(node: Node, name: str) -> bool:
    """Return whether a statement adds something computed to a value, or subtracts it."""
    others = [each for each in node.inputs if each != name]
    return node.op in _SUMS and len(others) < len(node.inputs) and any(isinstance(o, str) for o in others)


def _learned(key: str, graph: Graph, program: Program) -> Iterator[LearnedState]:
    """Yield the parameters that a graph updates outside of its blocks."""
    makers = {
        value.name: node for node in graph.nodes for value in node.outputs if node.kind is not Kind.UPDATE
    }
    for node in graph.nodes:
        if node.kind is not Kind.UPDATE:
            continue
        for state, new in zip(node.outputs, node.inputs, strict=False):
            maker = makers.get(new) if isinstance(new, str) else None
            if maker is None:
                continue
            op = lookup(maker.op, version_of(maker.op, program.opsets))
            first = (maker.inputs[:1], maker.outputs[0].name) == ((state.name,), new)
            if op is not None and op.optimizer is not None and first:
                gradient, decay = maker.inputs[1], maker.attributes.get("weight_decay", 0.0)
                name = gradient if isinstance(gradient, str) else None
                decay = decay if isinstance(decay, float) else 0.0
                yield LearnedState(state.name, key, name, decay, _rate(maker, op.optimizer))
                continue
            name = _gradient(graph, state.name, program)
            if name is not None or is_changed_by_sum(maker, state.name):
                yield LearnedState(state.name, key, name)


def _rate(node: Node, optimizer: Optimizer) -> str | float | None:
    index = optimizer.operands.index(RATE)
    given = node.inputs[index] if index < len(node.inputs) else None
    found = node.attributes.get("lr") if given is None else given
    return found if isinstance(found, (str, float)) else None


def _gradient(graph: Graph, state: str, program: Program) -> str | None:
    """Return the result for a state of a call of a ``backward`` graph; None without one."""
    backwards = {f"@{line.name}": line.by for line in program.backwards}
    for node in graph.nodes:
        by = backwards.get(node.op, ())
        if state in by:
            return node.outputs[by.index(state)].name
    return None
