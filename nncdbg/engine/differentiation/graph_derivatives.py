"""The derivatives of graphs: for each a forward graph, which saves values, and a backward graph.

Each call inside a differentiated graph has a derivative of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from nncdbg.engine.compilation.effects import effects_of
from nncdbg.engine.differentiation.backward import BackwardBuilder
from nncdbg.engine.differentiation.backward_calls import Derivative, Variant, whole
from nncdbg.engine.differentiation.control_flow import ControlFlowPass, Copies, inner_names
from nncdbg.errors import Excerpt, GraphError, UnsupportedOp
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import claimed_name, free_names, reads
from nncdbg.ir.records import BackwardLine, Graph, Node, Path, Program, Type, Value
from nncdbg.ir.walk import calls_in
from nncdbg.text.lexemes import name_text
from nncdbg.text.listing import Listing


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
        types = {v.name: v.type for v in (*graph.inputs, *(c.value for c in graph.constants))} | self.states
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
        self._check_saved(graph.name, [value.name for value in saved], self.effects[name].updated)
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

    def _check_saved(self, graph: str, saved: Sequence[str], updated: Collection[str]) -> None:
        """Raise GraphError for a state that the backward graph needs and the graph changes."""
        changed = next((name for name in saved if name in updated), None)
        if changed is not None:
            raise GraphError(
                f"the gradient of @{name_text(graph)} needs %{name_text(changed)}, which the graph updates",
                hint="move the update behind the call of the graph",
            )

    def gap(self, place: str, node: Node, reason: str, excerpt: Excerpt | None) -> None:
        """Note a statement through which no gradient passes."""
        self._gaps.setdefault(f"{place}: {node.op}{f' ({reason})' if reason else ''}", excerpt)

    def raise_gaps(self) -> None:
        """Raise GraphError if a gradient cannot pass through some statements."""
        if self._gaps:
            gaps = [*self._gaps]
            count = "an op" if len(gaps) == 1 else f"{len(gaps)} ops"
            raise GraphError(
                f"the gradient cannot go back through {count}: {'; '.join(gaps)}",
                excerpt=self._gaps[gaps[-1]],
                hint="leave the ops out, or differentiate by values that do not pass through them",
            )


class _LayeredPass(ControlFlowPass):
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


def names_of(values: Sequence[Value]) -> set[str]:
    """Return the names of these values."""
    return {value.name for value in values}
