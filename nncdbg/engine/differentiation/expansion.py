"""Expand ``backward`` lines: the backward graph of a graph, and the graph with the values that it needs.

For ``backward @loss.backward of @loss by (%w)`` two graphs are made:

* ``loss.forward`` is `loss` with further results, the values that the backward graph needs.  It keeps the
  name and the lines of `loss`: to the user it is the same graph.
* ``loss.backward`` takes the cotangents of the float results of `loss`, then those values, and returns the
  cotangents of ``%w``.

A call of ``loss.backward`` that omits a cotangent or a result (``_``) calls a variant of the graph, which
does not compute what only these need.

A call inside `loss` is differentiated by graphs of its own, so that the frames of the backward graph mirror
those of the forward graph.

A graph that computes gradients, such as a gradient penalty, is differentiated like any other, after the lines
of its gradients: their graphs are then graphs of the program.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from nncdbg.engine.building.copies import renamed
from nncdbg.engine.compilation.effects import effects_of
from nncdbg.engine.differentiation.backward_calls import (
    SAVED,
    BackwardCalls,
    between_calls,
    saved_calls,
    variants_in,
)
from nncdbg.engine.differentiation.control_flow import inner_names
from nncdbg.engine.differentiation.graph_derivatives import GraphDerivatives, names_of
from nncdbg.errors import GraphError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import claimed_name
from nncdbg.ir.records import BackwardLine, Graph, Node, Program
from nncdbg.ir.walk import calls_in, graphs_called, walk_nodes
from nncdbg.text.lexemes import name_text
from nncdbg.text.listing import Listing
from nncdbg.textual_repr.printer import with_graphs

_TITLE = "the graphs of the lines `backward`"


def with_backward_graphs(program: Program) -> Program:
    """Return the program with the graphs of its ``backward`` lines, listed after its text.

    Raises GraphError if a gradient does not exist.
    """
    if not program.backwards:
        return program
    if "with backward graphs" not in program.kept:
        program.kept["with backward graphs"] = expanded(program)
    return program.kept["with backward graphs"]  # type: ignore[no-any-return]


def expanded(program: Program) -> Program:
    """Return the program with the graphs of its ``backward`` lines, listed after its text.

    Raises GraphError for an op without a gradient, with all of them in one message, and for a call of a
    backward graph that does not fit.
    """
    _check_lines(program)
    title = _TITLE
    while program.backwards:
        program = _with_next(program, title)
        title = f"{_TITLE} of graphs that compute gradients"
    return program


def _check_lines(program: Program) -> None:
    """Raise GraphError for a line that differentiates the graph of another line."""
    for line in program.backwards:
        other = next((other for other in program.backwards if other.name == line.of), None)
        if other is not None:
            raise GraphError(
                f"@{name_text(line.of)} is the graph of a `backward` line, and not differentiated by itself",
                hint=f"differentiate a graph that calls @{name_text(other.of)} and @{name_text(line.of)}",
            )


def _with_next(program: Program, title: str) -> Program:
    """Return the program with the graphs of those lines whose graphs compute no gradient of another line."""
    listing = program.as_listing()
    lines = _first_lines(program, listing)
    later = tuple(line for line in program.backwards if line not in lines)
    program = replace(program, backwards=lines)
    expansion = GraphDerivatives(program, listing, {line.name for line in later})
    variants = [
        each for graph in program.graphs.values() for each in variants_in(graph, program, listing).values()
    ]
    for line in lines:
        expansion.top(line, [each for each in variants if each.line == line.name])
    expansion.raise_gaps()
    graphs = {**program.graphs, **expansion.made}
    calls = BackwardCalls(program, expansion.tops, graphs, listing, {line.of for line in later})
    made = {name: calls.graph(graph) for name, graph in graphs.items()}
    states = {state.value.name for state in program.states}
    made |= {name: _unhidden(made[name], states) for name in expansion.backwards}
    written = [made[name] for name in made if name in expansion.backwards]
    found = replace(program, graphs=made, backwards=later, listing=with_graphs(listing, written, title))
    _check_recomputation(program, found)
    return found


def _check_recomputation(program: Program, expanded: Program) -> None:
    """Raise GraphError if a backward graph recomputes with a state that was updated after its forward graph.

    A backward graph reads what the forward graph saved, but computes the bodies of loops again.
    """
    if not program.states:
        return
    lines, effects = {f"@{line.name}" for line in program.backwards}, effects_of(expanded)
    for graph in program.graphs.values():
        for path, pc, node, saved in saved_calls(graph, lines):
            own = (each for name, each in effects.items() if f"@{name}.".startswith(f"{node.op}."))
            used = frozenset[str]().union(*(each.used for each in own))
            for later in between_calls(graph, saved, path, pc):
                changed = {value.name for value in later.outputs} if later.kind is Kind.UPDATE else set()
                if (called := later.called) is not None and called in effects:
                    changed |= effects[called].updated
                if found := sorted(changed & used):
                    name = found[0]
                    raise GraphError(
                        f"{node.op} recomputes with %{name_text(name)}, which was updated since "
                        f"the forward pass",
                        excerpt=program.as_listing().excerpt(path, pc),
                        hint=f"call {node.op} before the update of %{name_text(name)}",
                    )


def _unhidden(graph: Graph, states: Collection[str]) -> Graph:
    """Return the graph with other names for inputs that are named like a state: values saved of it.

    The saved value is the one that the forward graph has read, also if the state has been updated since.
    """
    used = {*names_of(graph.inputs), *inner_names(graph.nodes), *states}
    used |= {name for node in graph.nodes for name in names_of(node.outputs)}
    hiding = [value.name for value in graph.inputs if value.name in states]
    return renamed(graph, {name: claimed_name(f"{name}.saved", used) for name in hiding})


def _first_lines(program: Program, listing: Listing) -> tuple[BackwardLine, ...]:
    """Return the lines whose graphs compute no gradient of another line.

    Raises GraphError if there is none: a graph differentiates itself.
    """
    backward = {line.name for line in program.backwards}
    forward = {line.of for line in program.backwards}
    uses: dict[str, tuple[str, int] | None] = {}
    for line in program.backwards:
        uses[line.name] = next(
            (
                (key, pc)
                for key in graphs_called(line.of, program.graphs)
                for pc, node in enumerate(program.graphs[key].nodes)
                if not backward.isdisjoint(calls_in(node)) or not forward.isdisjoint(_saving(node))
            ),
            None,
        )
    found = tuple(line for line in program.backwards if uses[line.name] is None)
    if not found:
        first = program.backwards[0]
        key, pc = uses[first.name] or ("", 0)
        raise GraphError(
            f"@{name_text(first.of)} uses its own gradient",
            excerpt=listing.excerpt((program.graphs[key].name,), pc),
            hint="call the backward graph in a graph that the `backward` line does not differentiate",
        )
    return found


def _saving(node: Node) -> list[str]:
    """Return the graphs that a statement, or the statements in its blocks, call to save values."""
    calls = ((each.called, each.attributes) for each in walk_nodes(node))
    return [name for name, attributes in calls if name is not None and SAVED in attributes]
