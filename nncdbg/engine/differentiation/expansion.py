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

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

from nncdbg.engine.compilation.effects import effects_of, inputs_like_states
from nncdbg.engine.differentiation.backward import BackwardBuilder
from nncdbg.engine.differentiation.backward_calls import (
    SAVED,
    BackwardCalls,
    Derivative,
    Variant,
    between_calls,
    saved_calls,
    variants_in,
    whole,
)
from nncdbg.engine.differentiation.backward_pass import BackwardPass, Copies, inner_names, raise_gaps
from nncdbg.errors import Excerpt, GraphError, UnsupportedOp
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import claimed_name, free_names, reads
from nncdbg.ir.records import BackwardLine, Graph, Node, Operand, Path, Program, Type, Value
from nncdbg.ir.rewrite import renamed
from nncdbg.ir.walk import calls_in, graphs_called, walk_nodes
from nncdbg.text.lexemes import name_text
from nncdbg.text.listing import Listing
from nncdbg.textual_repr.printer import with_graphs

_TITLE = "the graphs of the lines `backward`"


def with_backward_graphs(program: Program) -> Program:
    """Return the program with the graphs of its ``backward`` lines, listed after its text.

    Raises GraphError if a gradient does not exist.
    """
    if not program.backwards and not inputs_like_states(program):
        return program
    if "with backward graphs" not in program.kept:
        program.kept["with backward graphs"] = expanded(_unhidden_states(program))
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

    A backward graph reads what the forward graph saved, but computes the blocks of branches and loops again.
    """
    if not program.states:
        return
    lines, effects = {f"@{line.name}": line.of for line in program.backwards}, effects_of(expanded)
    for graph in program.graphs.values():
        for path, pc, node, saved in saved_calls(graph, lines):
            own = (each for name, each in effects.items() if f"@{name}.".startswith(f"{node.op}."))
            used = frozenset[str]().union(*(each.used for each in own))
            if found := sorted(effects[lines[node.op]].updated & used):
                raise GraphError(
                    f"{node.op} recomputes with %{name_text(found[0])}, which @{name_text(lines[node.op])} "
                    f"updates",
                    excerpt=program.as_listing().excerpt(path, pc),
                    hint="move the update behind the call of the graph",
                )
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


def _unhidden_states(program: Program) -> Program:
    """Return the program with other names for inputs that are named like a state which their graph passes on.

    Such a graph calls graphs that use the state.
    """
    if not inputs_like_states(program):
        return program
    effects = effects_of(program)
    graphs = dict(program.graphs)
    for key, graph in program.graphs.items():
        hiding = names_of(graph.inputs) & effects[key].used
        if hiding:
            used = {*names_of(graph.inputs), *inner_names(graph.nodes), *effects[key].used}
            used |= {name for node in graph.nodes for name in names_of(node.outputs)}
            graphs[key] = renamed(graph, {name: claimed_name(f"{name}.input", used) for name in hiding})
    return replace(program, graphs=graphs, listing=program.as_listing())


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


class GraphDerivatives:
    """Makes the graphs of the ``backward`` lines of a program; `taken` are further names of graphs."""

    def __init__(self, program: Program, listing: Listing, taken: Collection[str]) -> None:
        self.program = program
        self.listing = listing
        self.states: dict[str, Type | None] = {s.value.name: s.value.type for s in program.states}
        self.effects = effects_of(program)
        self.made: dict[str, Graph] = {}
        self.backwards: set[str] = set()
        self.tops: dict[Variant, Derivative] = {}
        """The derivatives of the ``backward`` lines."""
        self._names = {*program.graphs, *(line.name for line in program.backwards), *taken}
        self._done: dict[tuple[str, tuple[int, ...], tuple[str, ...], int | None], Derivative] = {}
        self._open: list[str] = []
        self._gaps: dict[str, Excerpt | None] = {}

    def top(self, line: BackwardLine, called: Sequence[Variant]) -> None:
        """Make the graphs of a ``backward`` line: of the variants that are called, or else of all results."""
        graph = self.program.graphs[line.of]
        unknown = [name for name in line.by if name not in self.states and name not in names_of(graph.inputs)]
        if unknown:
            raise GraphError(
                f"%{name_text(unknown[0])} is neither a state nor an input of @{name_text(line.of)}",
                hint="differentiate by states and by inputs of the graph",
            )
        name = line.name
        for variant in dict.fromkeys(called or [whole(line, graph)]):
            by = tuple(line.by[number] for number in variant.wanted)
            self.tops[variant] = self.derivative(line.of, variant.given, by, line.checkpoints, name)
            name = ""

    def derivative(
        self,
        name: str,
        given: tuple[int, ...],
        by: tuple[str, ...],
        checkpoints: int | None,
        backward: str = "",
    ) -> Derivative:
        """Return the derivative of a graph by these inputs and states, made at its first use.

        `given` are the results with a cotangent, by number.
        """
        key = (name, given, by, checkpoints)
        if key in self._done and not backward:
            return self._done[key]
        if name in self._open:
            raise UnsupportedOp("it calls itself")
        self._open.append(name)
        backward = backward or claimed_name(f"{self.program.graphs[name].name}.backward", self._names)
        found = self._made(name, given, by, checkpoints, backward)
        self._open.pop()
        self._done.setdefault(key, found)
        return found

    def _made(
        self, name: str, given: tuple[int, ...], by: tuple[str, ...], checkpoints: int | None, backward: str
    ) -> Derivative:
        graph = self.program.graphs[name]
        forward = claimed_name(f"{graph.name}.forward", self._names)
        values = (*graph.inputs, *(constant.value for constant in graph.constants))
        types = self.states | {value.name: value.type for value in values}
        used = {*types, *(value.name for node in graph.nodes for value in node.outputs)}
        builder = BackwardBuilder(self.program.opsets, self.program.graphs, types, used)
        builder.reserved = inner_names(graph.nodes)
        nodes = [node for node in graph.nodes if node.kind is not Kind.UPDATE]
        for node in nodes:
            builder.learn(node)
        cotangents = []
        for index in given:
            value = graph.outputs[index]
            cotangent = Value(builder.fresh(f"d_{value.name}"), value.type or builder.types.get(value.name))
            builder.types[cotangent.name] = cotangent.type
            cotangents.append(cotangent)
        walk = _LayeredPass(builder, by, self)
        walk.checkpoints = checkpoints
        walk.place((graph.name,), enumerate(graph.nodes))
        walk.mark(nodes)
        pairs = zip((graph.outputs[index].name for index in given), cotangents, strict=True)
        seeds = [(key, cotangent.name) for key, cotangent in pairs if walk.varies(key)]
        results, kept, constants = builder.finished(walk.run(nodes, seeds, by))
        body = Graph(backward, (), tuple(map(Value, results)), kept, constants)
        free = dict.fromkeys(each for each in free_names(body) if each not in names_of(cotangents))
        own = tuple(constant for constant in graph.constants if constant.value.name in free)
        named = {constant.value.name for constant in own}
        saved = tuple(Value(each, builder.types.get(each)) for each in free if each not in named)
        self._check_saved(graph, body, [value.name for value in saved], self.effects[name].updated)
        self.made[forward] = replace(
            graph, nodes=walk.augmented(graph.nodes), outputs=(*graph.outputs, *saved)
        )
        by_text = ", ".join(f"%{each}" for each in by)
        self.made[backward] = replace(
            body,
            inputs=(*cotangents, *saved),
            outputs=tuple(Value(result, types.get(x)) for result, x in zip(results, by, strict=True)),
            constants=(*own, *constants),
            comment=f"The gradient of @{graph.name} by {by_text}.",
        )
        self.backwards.add(backward)
        return Derivative(forward, backward, saved)

    def _check_saved(self, graph: Graph, body: Graph, saved: Sequence[str], updated: Collection[str]) -> None:
        """Raise GraphError for a state that the backward graph `body` needs and the graph changes.

        The graph may change it in one branch of an ``if`` if only the gradient of the other one needs it.
        """
        for name in saved:
            if name not in updated:
                continue
            changing = _branches(graph, partial(self._changes, name))
            reading = _branches(body, partial(_reads, name))
            if any(c is None or (c[0], 1 - c[1]) != r for c in changing for r in reading):
                raise GraphError(
                    f"the gradient of @{name_text(graph.name)} needs %{name_text(name)}, "
                    f"which the graph updates",
                    hint="move the update behind the call of the graph",
                )

    def _changes(self, name: str, block: Graph) -> bool:
        """Return whether a block, or a graph that it calls, updates a state."""
        own = (value.name for node in walk_nodes(block) if node.kind is Kind.UPDATE for value in node.outputs)
        return name in own or any(name in self.effects[called].updated for called in calls_in(block))

    def gap(self, place: str, node: Node, reason: str, excerpt: Excerpt | None) -> None:
        """Note a statement through which no gradient passes."""
        self._gaps.setdefault(f"{place}: {node.op}{f' ({reason})' if reason else ''}", excerpt)

    def raise_gaps(self) -> None:
        """Raise GraphError if a gradient cannot pass through some statements."""
        hint = "leave the ops out, or differentiate by values that do not pass through them"
        raise_gaps(self._gaps, hint, next(reversed(self._gaps.values()), None))


class _LayeredPass(BackwardPass):
    """A backward pass that calls a backward graph for each call."""

    def __init__(self, builder: BackwardBuilder, by: Iterable[str], derivatives: GraphDerivatives) -> None:
        self._by = tuple(by)
        super().__init__(builder, self._by, self._by)
        self._derivatives = derivatives
        self._excerpt: Excerpt | None = None
        """The statement whose gradient is being written."""
        self._places: dict[int, tuple[Node, Path, int]] = {}
        """By the identity of a statement, or of a copy of it: its block and its number there."""
        self._saving: dict[int, Node] = {}
        """The statements that save values, by the identity of the original statement."""

    def place(self, path: Path, statements: Iterable[tuple[int, Node]]) -> None:
        """Note the numbers of these statements, or of their originals, in the block at `path`."""
        self._places |= {id(node): (node, path, pc) for pc, node in statements}

    def inner(
        self, builder: BackwardBuilder, xs: Iterable[str], node: Node, number: int, copies: Copies
    ) -> _LayeredPass:
        walk = _LayeredPass(builder, xs, self._derivatives)
        walk._excerpt, walk.checkpoints = self._excerpt, self.checkpoints
        if id(node) in self._places:
            _, path, pc = self._places[id(node)]
            walk.place((*path, pc, number), copies)
        return walk

    def reads(self, node: Node) -> Sequence[str]:
        return [*reads(node), *self._states_of(node)]

    def _states_of(self, node: Node) -> tuple[str, ...]:
        """Return the differentiated states that a call, or the calls in its blocks, use."""
        effects = self._derivatives.effects
        used = {name for call in calls_in(node) for name in effects[call].used}
        return tuple(name for name in self._by if name in self._derivatives.states and name in used)

    def check_repeatable(self, node: Node) -> None:
        super().check_repeatable(node)
        for call in calls_in(node):
            if self._derivatives.effects[call].updated:
                raise UnsupportedOp(f"@{call} updates a state, and would update it again")

    def replaced(self, node: Node, other: Node) -> bool:
        if not super().replaced(node, other):
            self._saving[id(node)] = other
        return True

    def _begin(self, node: Node) -> None:
        if id(node) in self._places:
            _, path, pc = self._places[id(node)]
            self._emit.origin = f"of line {self._derivatives.listing.line(path, pc)}"
            self._excerpt = self._derivatives.listing.excerpt(path, pc)

    def _no_rule(self, node: Node, reason: str) -> None:
        line = self._emit.origin.removeprefix("of ") or "a block"
        self._derivatives.gap(line, node, reason, self._excerpt)

    def _through(self, node: Node, cotangents: tuple[str | None, ...]) -> bool:
        if (name := node.called) is None:
            return super()._through(node, cotangents)
        called = self._derivatives.program.graphs[name]
        operands = [
            (value.name, operand)
            for value, operand in zip(called.inputs, node.inputs, strict=True)
            if isinstance(operand, str) and self.varies(operand)
        ]
        states = self._states_of(node)
        given = tuple(i for i, cotangent in enumerate(cotangents) if cotangent is not None)
        by = (*(name for name, _ in operands), *states)
        derivative = self._derivatives.derivative(name, given, by, self.checkpoints)
        saved = tuple(
            Value(self._emit.fresh(f"{called.name}.{value.name}"), value.type) for value in derivative.saved
        )
        for value in saved:
            self._emit.types[value.name] = value.type
        self.replaced(node, replace(node, op=f"@{derivative.forward}", outputs=(*node.outputs, *saved)))
        targets = [*(operand for _, operand in operands), *states]
        parts = [self._emit.fresh(f"d_{name}.{called.name}") for name in targets]
        arguments = (*(cotangents[i] for i in given), *(value.name for value in saved))
        outputs = tuple(
            Value(part, self._emit.types.get(target)) for part, target in zip(parts, targets, strict=True)
        )
        self._emit.append(Node(f"@{derivative.backward}", arguments, outputs, location=self._emit.location))
        for target, part in zip(targets, parts, strict=True):
            self._give(target, part)
        return True

    def augmented(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """Return the statements with calls and loops that also return what the backward graph needs."""
        return tuple(self._saving.get(id(node), node) for node in nodes)


def _reads(name: str, block: Graph) -> bool:
    return name in free_names(block)


def _branches(graph: Graph, concerned: Callable[[Graph], bool]) -> list[tuple[Operand, int] | None]:
    """Return the places of some statements: the condition and number of a branch, None for elsewhere.

    `concerned` returns whether a block has one of the statements.  Blocks in branches are part of them.
    """
    found: list[tuple[Operand, int] | None] = []
    for node in graph.nodes:
        branches = node.subgraphs if node.kind is Kind.IF else ()
        found += [(node.inputs[0], number) for number, block in enumerate(branches) if concerned(block)]
        outside = replace(node, subgraphs=()) if branches else node
        found += [None] if concerned(Graph("", nodes=(outside,))) else []
    return found


def names_of(values: Sequence[Value]) -> set[str]:
    """Return the names of these values."""
    return {value.name for value in values}
