"""One backward pass over statements: the cotangents of what they read, from those of what they compute.

For a branch or a loop, the backward graph has an `if` on the same condition, or a `while` over the iterations
in reverse.  Each of their blocks first computes the block of the forward graph again, and then the
cotangents.  So a branch saves nothing, and a loop saves only the values that it carries, as they are at the
start of each iteration, or of some iterations (`loop_history.py`).

The cotangent of a value from outside, such as a weight, is the sum over the iterations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from nncdbg.dtypes import COMPLEX
from nncdbg.engine.differentiation.backward import BackwardBuilder
from nncdbg.engine.differentiation.loop_history import CheckpointedHistory, LoopHistory
from nncdbg.engine.frontends.formula import formula_of
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.gradient import Applied, nothing
from nncdbg.engine.ops.schema import complete, version_of
from nncdbg.errors import Excerpt, GraphError, UnsupportedOp
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import defined, free_names, reads
from nncdbg.ir.records import (
    Graph,
    Node,
    Operand,
    SequenceType,
    TensorType,
    Type,
    Value,
    has_cotangent,
    tensor_only,
    without_sizes,
)
from nncdbg.ir.walk import blocks, walk_nodes
from nncdbg.text.lexemes import name_text

Copies: TypeAlias = "Sequence[tuple[int, Node]]"
"""Copies of the statements of a block, with the numbers of the originals."""

Parts: TypeAlias = "Sequence[tuple[Operand, str]]"
"""Values with a cotangent of each."""

_INDEX = TensorType("i64", ())


class BackwardPass:
    """One backward pass to the values `xs`; `points` are `xs` and the values held constant."""

    checkpoints: int | None = None
    """How many iterations of a loop keep the values that they carry; None: all of them."""

    def __init__(self, builder: BackwardBuilder, points: Iterable[str], xs: Iterable[str]) -> None:
        self._emit = builder
        self._points = frozenset(points)
        self._active = set(xs)
        """Values that depend differentiably on `xs`."""
        self._parts: dict[str, list[str]] = {}
        """Per value the cotangents from the statements that read it."""
        self._open: list[str] = []
        """The graphs of the calls that are being differentiated."""

    def repeat(self, nodes: Sequence[Node], points: Iterable[str]) -> None:
        """Append the statements that depend on `points`, which have other values than around."""
        moved = set(points)
        for node in nodes:
            if moved.isdisjoint(reads(node)):
                continue
            outputs = tuple(
                Value("")
                if value.name in self._points
                else replace(value, type=value.type and without_sizes(value.type))
                for value in node.outputs
            )
            moved.update(value.name for value in outputs if value.name)
            self._emit.append(replace(node, outputs=outputs))

    def varies(self, name: str) -> bool:
        """Return whether a value depends differentiably on `xs` (after `mark`)."""
        return name in self._active

    def run(
        self, nodes: Sequence[Node], seeds: Iterable[tuple[str, str]], wanted: Iterable[str]
    ) -> list[str]:
        """Append the statements of the backward graph; return the cotangents of `wanted`.

        `seeds` are values with cotangents from outside.
        """
        self.pull(nodes, seeds)
        self._emit.origin = ""
        return [self.result(x) for x in wanted]

    def pull(self, nodes: Sequence[Node], seeds: Iterable[tuple[str, str]]) -> None:
        """Append the statements that differentiate `nodes`; `seeds` are as for `run`."""
        for name, cotangent in seeds:
            self._parts.setdefault(name, []).append(cotangent)
        self._pull(nodes)

    def reaches(self, x: str) -> bool:
        """Return whether a cotangent has come back to a value (after `pull`)."""
        return x in self._parts

    def reads(self, node: Node) -> Sequence[str]:
        """Return the values that a statement reads."""
        return reads(node)

    def result(self, x: str, suffix: str = "") -> str:
        """Return the cotangent of a value, zeros if none has come back to it; ``d_x`` with the suffix."""
        self._emit.prefix, self._emit.location = f"d_{x}", None
        cotangent = self._sum(x) if x in self._parts else self._emit("nncdbg.FullLike", x, value=0.0)
        if not self._emit.name(cotangent, f"d_{x}{suffix}"):
            # It is also the cotangent of another value, which gave it its name.
            cotangent = self._emit("Identity", cotangent)
            self._emit.name(cotangent, f"d_{x}{suffix}")
        return cotangent

    def _sum(self, name: str) -> str:
        """Return the cotangent of a value after all its parts have been added."""
        parts = self._parts[name]
        if len(parts) == 1:
            return parts[0]
        for number, part in enumerate(parts, 1):
            self._emit.name(part, f"d_{name}.{number}")
        if isinstance(self._emit.types.get(name), SequenceType):
            return self._emit("nncdbg.SequenceSum", *parts)
        return self._emit("Add" if len(parts) == 2 else "Sum", *parts)

    def mark(self, nodes: Sequence[Node]) -> None:
        """Find the active values among the outputs of the statements."""
        for node in nodes:
            if self._active.isdisjoint(self.reads(node)) or self._rule(node) is nothing:
                continue
            for value in node.outputs:
                if (
                    value.name
                    and value.name not in self._points
                    and has_cotangent(self._emit.types.get(value.name))
                ):
                    self._active.add(value.name)

    def _rule(self, node: Node) -> object:
        declared = lookup(node.op, version_of(node.op, self._emit.opsets))
        return declared.vjp if declared is not None else None

    def _pull(self, nodes: Sequence[Node]) -> None:
        """Differentiate the statements, from the last to the first."""
        for node in reversed(nodes):
            pulled = [value.name in self._parts and value.name not in self._points for value in node.outputs]
            if not any(pulled):
                continue
            self._emit.location = node.location
            self._begin(node)
            cotangents = []
            for value, there in zip(node.outputs, pulled, strict=True):
                self._emit.prefix = f"d_{value.name}"
                cotangent = self._sum(value.name) if there else None
                if cotangent is not None:
                    self._emit.name(cotangent, f"d_{value.name}")
                cotangents.append(cotangent)
            self._emit.prefix = f"d_{node.outputs[pulled.index(True)].name}"
            for operand, part in self._back(node, tuple(cotangents)):
                self._give(operand, part)

    def _begin(self, node: Node) -> None:
        """Prepare for the gradient of a statement."""

    def _give(self, operand: Operand, part: Operand) -> None:
        if isinstance(operand, str) and operand in self._active and isinstance(part, str):
            self._parts.setdefault(operand, []).append(part)
            # A cotangent has the type of its value, which may be known better than from the rule's ops.
            self._emit.types[part] = self._emit.types.get(operand) or self._emit.types.get(part)

    def _back(self, node: Node, cotangents: tuple[str | None, ...]) -> Sequence[tuple[Operand, Operand]]:
        """Return the operands with the cotangent of each."""
        reason = ""
        try:
            parts = self._by_rule(node, cotangents)
            if parts is not None:
                return list(zip(node.inputs, parts, strict=False))
            if self._through(node, cotangents):
                return ()
            declared = lookup(node.op, version_of(node.op, self._emit.opsets))
            reason = declared.no_gradient if declared is not None else ""
        except (UnsupportedOp, GraphError) as error:
            reason = error.message
        self._no_rule(node, reason)
        first = next(each for each in cotangents if each is not None)
        active = [name for name in dict.fromkeys(reads(node)) if name in self._active]
        return [(name, self._missing(first, name, node.op, reason)) for name in active]

    def _missing(self, cotangent: str, like: str, op: str, reason: str) -> str:
        """Emit the statement that fails where a part of the cotangent of `like` is needed."""
        operands = [cotangent] if isinstance(self._emit.types.get(like), SequenceType) else [cotangent, like]
        return self._emit("nncdbg.NoGradientRule", *operands, name=op, reason=reason)

    def _no_rule(self, node: Node, reason: str) -> None:
        """Note a statement that cannot be differentiated: the backward graph fails there."""

    def _by_rule(self, node: Node, cotangents: tuple[str | None, ...]) -> Sequence[Operand] | None:
        """Return the cotangents by the op's rule; None if it has none."""
        version = version_of(node.op, self._emit.opsets)
        declared = lookup(node.op, version)
        if declared is None or declared.vjp is None:
            return None
        known = [self._emit.type_of(each) for each in (*node.inputs, *cotangents)]
        if any(each is not None and each.dtype in COMPLEX for each in known):
            raise UnsupportedOp("its rule is for real numbers")
        # Rules require statements with valid operands and attributes.
        self._emit.rules.inferred(node, self._emit.types_at(node))
        applied = Applied(
            self._emit.operands_of(node),
            tuple(value.name for value in node.outputs),
            cotangents,
            complete(node.op, version, node.attributes),
            node.attributes,
        )
        return declared.vjp(self._emit, applied)

    def _through(self, node: Node, cotangents: tuple[str | None, ...]) -> bool:
        """Differentiate the blocks of a statement, the graph of a call, or the formula of an op.

        Return False if there is none.  Raises UnsupportedOp if it draws random numbers, because a repetition
        would draw others.
        """
        if node.kind in (Kind.IF, Kind.WHILE):
            self._through_blocks(node, cotangents)
            return True
        operands: list[Operand] = [operand for operand in node.inputs if operand is not None]
        graph = self._graph(node)
        if graph is None:
            return False
        if self._draws(node):
            raise UnsupportedOp("its random numbers cannot be drawn again")
        if node.op in self._open:
            raise UnsupportedOp("it calls itself")
        location, prefix = self._emit.location, self._emit.prefix
        self._emit.prefix = node.outputs[0].name or prefix
        nodes, results = self._emit.repeated(graph, operands)
        self._open.append(node.op)
        self.mark(nodes)
        for result, cotangent in zip(results, cotangents, strict=False):
            self._give(result, cotangent)
        self._pull(nodes)
        self._open.pop()
        self._emit.location, self._emit.prefix = location, prefix
        return True

    def _graph(self, node: Node) -> Graph | None:
        if (called := node.called) is not None:
            return self._emit.graphs.get(called)
        types = list(map(tensor_only, self._emit.types_at(node)))
        for operand, known in zip(node.inputs, types, strict=True):
            if isinstance(operand, str) and known is None:
                raise UnsupportedOp(f"the type of %{name_text(operand)} is not known before the run")
        program = formula_of(node, types, self._emit.opsets)
        graph = program.graphs[program.entry] if program is not None else None
        if graph is not None and len(graph.outputs) < len(node.outputs):
            raise UnsupportedOp("its formula computes only its first results")
        return graph

    def _draws(self, node: Node) -> bool:
        """Return whether a statement, or one in its blocks or the graphs it calls, draws random numbers."""
        for each in walk_nodes(node, self._emit.graphs):
            declared = lookup(each.op, version_of(each.op, self._emit.opsets))
            if declared is not None and declared.random and declared.draws(each.inputs):
                return True
        return False

    # -- branches and loops -------------------------------------------------------------------

    def inner(
        self, builder: BackwardBuilder, xs: Iterable[str], node: Node, number: int, copies: Copies
    ) -> BackwardPass:
        """Return a pass over block `number` of a statement: over `copies`, which are in `builder`."""
        xs = [*xs]
        walk = BackwardPass(builder, xs, xs)
        walk._open = [*self._open]
        walk.checkpoints = self.checkpoints
        return walk

    def check_repeatable(self, node: Node) -> None:
        """Raise UnsupportedOp if the blocks of a statement cannot be computed again.

        An ``update`` is not repeated: a gradient that needs the updated state is an error.
        """
        if self._draws(node):
            raise UnsupportedOp("its random numbers cannot be drawn again")

    def replaced(self, node: Node, other: Node) -> bool:
        """Let a statement compute further values; return False if it is not part of what is written."""
        return self._emit.replaced(node, other)

    def _through_blocks(self, node: Node, cotangents: tuple[str | None, ...]) -> None:
        self.check_repeatable(node)
        location = self._emit.location
        through = self._branches if node.kind is Kind.IF else self._loop
        for operand, part in through(node, cotangents):
            self._give(operand, part)
        self._emit.location = location

    def outside(self, node: Node) -> list[str]:
        """Return the values that the blocks of a statement read, and that have a cotangent."""
        return [name for name in dict.fromkeys(self.reads(node)) if self.varies(name)]

    # -- branches -----------------------------------------------------------------------------

    def _branches(self, node: Node, cotangents: Sequence[str | None]) -> Parts:
        wanted = self.outside(node)
        blocks = [_Block(self, node, number, ()) for number in (0, 1)]
        for block in blocks:
            walk = block.walk = block.inner(wanted)
            walk.pull(block.nodes, _seeds(walk, zip(block.results, cotangents, strict=True)))
        reached = [x for x in wanted if any(block.walk.reaches(x) for block in blocks)]
        graphs = tuple(
            block.graph((), [block.walk.result(x, ".branch") for x in reached]) for block in blocks
        )
        return self._statement(node, Node("if", node.inputs, (), {}, graphs), reached)

    def _statement(self, node: Node, made: Node, targets: Sequence[Operand]) -> Parts:
        """Append the statement `made`, whose results are cotangents of `targets`; return the parts."""
        outputs, parts = [], []
        for target in targets:
            there = isinstance(target, str) and self.varies(target)
            name = self._emit.anonymous(f"d_{target}.{node.op}") if there else ""
            outputs.append(Value(name))
            parts += [(target, name)] if there else []
        if parts:
            self._emit.append(replace(made, outputs=tuple(outputs), location=node.location))
        return parts

    # -- loops --------------------------------------------------------------------------------

    def _loop(self, node: Node, cotangents: Sequence[str | None]) -> Parts:
        carried = node.subgraphs[0].inputs[1:]
        history = self._history(node)
        block = _Block(self, node, 0, (history.index, *history.carried))
        wanted, active = self.outside(node), self._active_carried(node, block, history)
        walk = block.walk = block.inner([*wanted, *(history.carried[j] for j in active)])
        following = {j: block.builder.fresh(f"d_{block.results[j]}") for j in active}
        for j, name in following.items():
            self._emit.types[name] = history.types[j]
        seeds: list[tuple[Operand, str | None]] = [(block.results[j], name) for j, name in following.items()]
        for j in range(len(carried), len(cotangents)):
            cotangent = cotangents[j]
            if cotangent is not None:
                block.builder.prefix = f"d_{block.results[j]}"
                seeds.append((block.results[j], block.builder("Gather", cotangent, history.index, axis=0)))
        walk.pull(block.nodes, _seeds(walk, seeds))
        reached = [x for x in wanted if walk.reaches(x)]
        sums = [walk.add_to(x, block.builder.fresh(f"d_{x}.sum")) for x in reached]
        results = [walk.result(history.carried[j]) for j in active]
        results += [walk.result(x, ".next") for x in reached]
        inputs = (Value(history.turn, _INDEX), *map(self._typed, (*following.values(), *sums)))
        finals = {j: history.final(j) for j in active if cotangents[j] is None}
        body = history.completed(block.graph(inputs, results), self)
        last = [cotangents[j] or self._zeros(finals[j]) for j in active]
        first = (history.steps, *last, *map(self._zeros, reached), *history.first)
        targets = [*(node.inputs[1 + j] for j in active), *reached, *(None for _ in history.first)]
        return self._statement(node, Node("while", first, (), {}, (body,)), targets)

    def _history(self, node: Node) -> LoopHistory:
        if self.checkpoints is None:
            return LoopHistory(self._emit, node)
        return CheckpointedHistory(self._emit, node, self.checkpoints)

    def _active_carried(self, node: Node, block: _Block, history: LoopHistory) -> list[int]:
        """Return the numbers of the carried values that depend differentiably on values from outside."""
        first = enumerate(node.inputs[1:])
        active = [j for j, each in first if isinstance(each, str) and self.varies(each)]
        while True:
            walk = block.inner([*self.outside(node), *(history.carried[j] for j in active)])
            results = block.results[: len(history.carried)]
            found = [j for j, each in enumerate(results) if j in active or walk.varies(str(each))]
            if found == active:
                return active
            active = found

    def _typed(self, name: str) -> Value:
        return Value(name, self._emit.types.get(name))

    def _zeros(self, like: str) -> str:
        self._emit.prefix = f"d_{like}"
        return self._emit("nncdbg.FullLike", like, value=0.0)

    def add_to(self, x: str, total: str) -> str:
        """Let the cotangent of a value add to `total`, a value of its type; return `total`."""
        self._parts[x].insert(0, total)
        self._emit.types[total] = self._emit.types.get(x)
        return total


def raise_gaps(gaps: Collection[str], hint: str, excerpt: Excerpt | None = None) -> None:
    """Raise GraphError if there are statements through which no gradient passes."""
    if gaps:
        count = "an op" if len(gaps) == 1 else f"{len(gaps)} ops"
        raise GraphError(
            f"the gradient cannot go back through {count}: {'; '.join(gaps)}", excerpt=excerpt, hint=hint
        )


class _Block:
    """A block of the backward graph: the statements of block `number` of `node` again, then cotangents."""

    def __init__(self, around: BackwardPass, node: Node, number: int, operands: Sequence[Operand]) -> None:
        self._around, self._node, self._number = around, node, number
        block = node.subgraphs[number]
        self._label = f"{block.name}.backward" if block.name else ""
        # Every iteration in the backward pass is one that did not leave the loop, and it changes no state.
        left_out = (Kind.BREAK, Kind.UPDATE)
        kept = [(pc, each) for pc, each in enumerate(block.nodes) if each.kind not in left_out]
        self.builder = around._emit.block()
        self.builder.origin = ""
        repeated = replace(block, nodes=tuple(each for _, each in kept))
        self.nodes, self.results = self.builder.computed_again(repeated, operands)
        self._numbers = [pc for pc, _ in kept]
        self.walk = around

    def inner(self, xs: Iterable[str]) -> BackwardPass:
        """Return a pass over the statements, by `xs`."""
        copies = [*zip(self._numbers, self.nodes, strict=True)]
        walk = self._around.inner(self.builder, xs, self._node, self._number, copies)
        walk.mark(self.nodes)
        return walk

    def graph(self, inputs: Sequence[Value], results: Sequence[str]) -> Graph:
        """Return the block with what its results need."""
        names, kept, constants = self.builder.finished(results)
        return Graph(self._label, tuple(inputs), tuple(map(Value, names)), kept, constants)


def _seeds(walk: BackwardPass, pairs: Iterable[tuple[Operand, str | None]]) -> Iterator[tuple[str, str]]:
    """Yield the values that vary in a block, with their cotangents."""
    for value, cotangent in pairs:
        if isinstance(value, str) and cotangent is not None and walk.varies(value):
            yield value, cotangent


def inner_names(nodes: Iterable[Node]) -> frozenset[str]:
    """Return the names of the values in the blocks of these statements."""
    inside = (block for path, block in blocks(Graph("", nodes=(*nodes,))) if len(path) > 1)
    return frozenset(value.name for block in inside for value in defined(block))


@dataclass(frozen=True, slots=True)
class GradientRequest:
    """The gradient of `y` by `xs`, with `held` constant; `wanted` are the members of `xs` to return.

    `moved` are the members of `xs` and `held` with values that differ from those of the statements
    around: their dependents are recomputed.
    """

    y: str
    xs: tuple[str, ...]
    wanted: tuple[str, ...]
    held: tuple[str, ...] = ()
    moved: frozenset[str] = frozenset()

    @property
    def points(self) -> tuple[str, ...]:
        """The values at which the gradient is evaluated."""
        return tuple(dict.fromkeys((*self.xs, *self.held)))


def gradient_graph(
    name: str,
    nodes: Sequence[Node],
    request: GradientRequest,
    types: Mapping[str, Type | None],
    graphs: Mapping[str, Graph],
    opsets: Mapping[str, int],
) -> Graph:
    """Return the graph of the cotangents of `request.wanted`, each of the type of its value.

    `nodes` are in order; `types` are those of the values that no node computes, as far as they are
    known; `graphs` are those that nodes may call.  Inputs are `request.points`, then the values of the
    surrounding statements that the graph reads, all under their own names.
    """
    points = request.points
    defined = {*types, *points, *(value.name for node in nodes for value in node.outputs)}
    builder = BackwardBuilder(opsets, graphs, types, defined)
    for node in nodes:
        builder.learn(node)
    builder.reserved = inner_names(nodes)
    for point in request.moved:
        known = builder.types.get(point)
        builder.types[point] = without_sizes(known) if known is not None else None
    backward = BackwardPass(builder, request.points, request.xs)
    backward.repeat(nodes, request.moved)
    backward.mark(nodes)
    y = request.y
    builder.prefix = f"d_{y}"
    seeds = [(y, builder("nncdbg.FullLike", y, value=1.0))] if backward.varies(y) else []
    results, kept, constants = builder.finished(backward.run(nodes, seeds, request.wanted))
    body = Graph(name, (), tuple(map(Value, results)), kept, constants)
    inputs = dict.fromkeys((*points, *free_names(body)))
    words = ", ".join(f"%{x}" for x in request.xs)
    return replace(
        body,
        inputs=tuple(Value(key, builder.types.get(key)) for key in inputs),
        outputs=tuple(Value(key, builder.types.get(key)) for key in results),
        comment=f"The gradient of %{request.y} by {words}.",
    )
