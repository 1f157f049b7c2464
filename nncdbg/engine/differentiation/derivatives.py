"""Derivatives of statements that have run, as a graph over their values: grad, vjp, jvp, hvp, nested.

A derivative extends the statements by others, which later derivatives go back through as well.  The forward
mode is a derivative of the reverse mode: ``vjp(y, x, c)`` is linear in ``c``, and its vjp by ``c`` is the
Jacobian times a tangent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from nncdbg.dtypes import FLOATS
from nncdbg.engine.differentiation.backward import BackwardBuilder
from nncdbg.engine.differentiation.backward_pass import BackwardPass, Copies, inner_names, raise_gaps
from nncdbg.errors import GraphError, UnsupportedOp
from nncdbg.expression.functions import DerivativeRequest
from nncdbg.ir.names import claimed_name, free_names, needed_nodes, reads
from nncdbg.ir.records import Constant, Graph, Node, Operand, Type, Value, tensor_only
from nncdbg.text.lexemes import name_text


@dataclass(frozen=True, slots=True)
class ExecutedStatements:
    """Statements that have run, in order; each name is defined once.

    `types` are those of all their values; `place` names the line of a statement.  `blocked` are statements
    that a gradient cannot pass, by identity, with the reason.
    """

    nodes: tuple[Node, ...]
    types: Mapping[str, Type | None]
    opsets: Mapping[str, int]
    graphs: Mapping[str, Graph]
    place: Callable[[Node], str]
    blocked: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class BackwardStep:
    """The gradient of one statement: what it adds to the cotangents of values.

    `place` names the line of the statement; `parts` are pairs of a value and what is added to its cotangent.
    """

    place: str
    statement: Node
    parts: list[tuple[str, str]]


class Derivatives:
    """Derivatives of values of `executed`."""

    def __init__(self, executed: ExecutedStatements) -> None:
        self._executed = executed
        self._types = dict(executed.types)
        self._used = {*executed.types, *(value.name for node in executed.nodes for value in node.outputs)}
        self._made: list[Node] = []
        self._constants: list[Constant] = []

    def graph(self, wanted: DerivativeRequest, *, again: bool = False) -> tuple[Graph, dict[str, int]]:
        """Return the graph of a derivative, and its inputs that are vectors, with their numbers.

        The other inputs are values of the statements.  With `again`, the graph first computes `wanted.y`, its
        first result, from `wanted.x` and values that do not depend on it.

        Raises GraphError if the derivative does not exist, with all ops that have none.
        """
        vectors: dict[str, int] = {}
        result = self._result(wanted, vectors)
        results = (wanted.y, result) if again and isinstance(wanted.y, str) else (result,)
        repeated = _depending(self._executed.nodes, wanted.x) if again else ()
        return self._graph_of(results, repeated), vectors

    def chain(self, y: str, xs: Sequence[str]) -> tuple[Graph, list[BackwardStep]]:
        """Return the steps of the backward pass from `y` to `xs`, and the graph of their parts, in order.

        Raises GraphError as `graph` does.
        """
        for name in (y, *xs):
            self._check_float(name)
        seed = self._filled(y, 1.0)
        walk, nodes = self._walk(y, xs)
        if not walk.varies(y):
            raise _independent(y, xs[0])
        walk.pull(nodes, [(y, seed)])
        made = self._finished(walk, [part for each in walk.steps for _, part in each.parts])
        names = iter(made)
        steps = [
            replace(each, parts=[(value, next(names)) for value, _ in each.parts]) for each in walk.steps
        ]
        return self._graph_of(made, ()), steps

    def _graph_of(self, results: Sequence[str], repeated: Sequence[Node]) -> Graph:
        """Return the graph of these results, with the statements before that are `repeated`."""
        nodes = needed_nodes([*repeated, *self._made], results)
        constants = tuple(each for each in self._constants if any(each.value.name in reads(n) for n in nodes))
        body = Graph("derivative", (), tuple(map(Value, results)), nodes, constants)
        inputs = tuple(Value(name, self._types.get(name)) for name in dict.fromkeys(free_names(body)))
        return replace(body, inputs=inputs)

    def _result(self, wanted: DerivativeRequest, vectors: dict[str, int]) -> str:
        y = wanted.y if isinstance(wanted.y, str) else self._result(wanted.y, vectors)
        nested = not isinstance(wanted.y, str)
        self._check_float(y, nested)
        self._check_float(wanted.x)
        if wanted.kind == "grad":
            return self._pulled(y, wanted.x, self._filled(y, 1.0), constant=nested)
        vector = claimed_name(wanted.kind, self._used)
        assert wanted.vector is not None
        vectors[vector] = wanted.vector
        if wanted.kind == "hvp":
            self._types[vector] = self._types.get(wanted.x)
            gradient = self._pulled(y, wanted.x, self._filled(y, 1.0), constant=nested)
            return self._pulled(gradient, wanted.x, vector, constant=True)
        if wanted.kind == "vjp":
            self._types[vector] = self._types.get(y)
            return self._pulled(y, wanted.x, vector, constant=nested)
        self._types[vector] = self._types.get(wanted.x)
        probe = self._filled(y, 1.0)
        back = self._pulled(y, wanted.x, probe, constant=nested)
        return self._pulled(back, probe, vector, constant=True)

    def _check_float(self, name: str, derived: bool = False) -> None:
        known = tensor_only(self._types.get(name))
        if not derived and known is not None and known.dtype not in FLOATS:
            raise GraphError(f"%{name_text(name)} is {known}, and only floats have derivatives")

    def _filled(self, like: str, value: float) -> str:
        """Append a statement for a tensor of one number, in the type of another value; return its name."""
        name = claimed_name(f"d_{like}", self._used)
        self._types[name] = self._types.get(like)
        self._made.append(Node("nncdbg.FullLike", (like,), (Value(name),), {"value": value}))
        return name

    def _pulled(self, y: str, x: str, cotangent: str, *, constant: bool) -> str:
        """Append the statements for the cotangent of `x`, given that of `y`; return its name.

        It is zero if `y` does not depend on `x` and may be `constant`; otherwise, GraphError is raised.
        """
        walk, nodes = self._walk(y, (x,))
        if not walk.varies(y):
            if constant:
                return self._filled(x, 0.0)
            raise _independent(y, x)
        return self._finished(walk, walk.run(nodes, [(y, cotangent)], (x,)))[0]

    def _walk(self, y: str, xs: Sequence[str]) -> tuple[_CompletePass, tuple[Node, ...]]:
        """Return a backward pass from `y` to `xs`, and its statements."""
        nodes = needed_nodes([*self._executed.nodes, *self._made], (y,))
        executed = self._executed
        builder = BackwardBuilder(executed.opsets, executed.graphs, self._types, self._used)
        builder.reserved, builder.prefix = inner_names(nodes), f"d_{y}"
        walk = _CompletePass(builder, xs, executed, {})
        walk.mark(nodes)
        return walk, nodes

    def _finished(self, walk: _CompletePass, results: Sequence[str]) -> list[str]:
        """Append what a backward pass has made for these results; return their names."""
        names, kept, constants = walk.builder.finished(results)
        hint = "name values with a path that does not pass through them"
        raise_gaps(walk.gaps, hint)
        self._types = dict(walk.builder.types)
        self._made += kept
        self._constants += constants
        return names


def _independent(y: str, x: str) -> GraphError:
    return GraphError(
        f"%{name_text(y)} does not depend on %{name_text(x)} by differentiable statements",
        hint=f"name a value that was computed from %{name_text(x)}",
    )


class _CompletePass(BackwardPass):
    """A backward pass that collects all ops without a gradient in `gaps`."""

    def __init__(
        self, builder: BackwardBuilder, xs: Iterable[str], executed: ExecutedStatements, gaps: dict[str, None]
    ) -> None:
        xs = (*xs,)
        super().__init__(builder, xs, xs)
        self.builder = builder
        self.steps: list[BackwardStep] = []
        """The gradients of the executed statements so far."""
        self._executed = executed
        self._lines = {id(node) for node in executed.nodes}
        self._line = ""
        self.gaps = gaps

    def inner(
        self, builder: BackwardBuilder, xs: Iterable[str], node: Node, number: int, copies: Copies
    ) -> _CompletePass:
        walk = _CompletePass(builder, xs, self._executed, self.gaps)
        walk._open, walk._line = [*self._open], self._line
        return walk

    def _begin(self, node: Node) -> None:
        if id(node) in self._lines:
            self._line = self._executed.place(node)
            self.steps.append(BackwardStep(self._line, node, []))

    def _give(self, operand: Operand, part: Operand) -> None:
        super()._give(operand, part)
        if not (self.steps and isinstance(operand, str) and isinstance(part, str)):
            return
        # The values inside a call or a formula have cotangents too.
        if self.varies(operand) and operand in self._read:
            self.steps[-1].parts.append((operand, part))

    @cached_property
    def _read(self) -> frozenset[str]:
        """The values that the executed statements read."""
        return frozenset(name for node in self._executed.nodes for name in reads(node))

    def _by_rule(self, node: Node, cotangents: tuple[str | None, ...]) -> Sequence[Operand] | None:
        if (reason := self._executed.blocked.get(id(node))) is not None:
            raise UnsupportedOp(reason)
        return super()._by_rule(node, cotangents)

    def _no_rule(self, node: Node, reason: str) -> None:
        place = f"{self._line}: " if self._line else ""
        self.gaps[f"{place}{node.op}{f' ({reason})' if reason else ''}"] = None


def _depending(nodes: Sequence[Node], x: str) -> list[Node]:
    """Return the statements that depend on a value, without the one that computes it."""
    moved, kept = {x}, []
    for node in nodes:
        outputs = {value.name for value in node.outputs if value.name}
        if x not in outputs and not moved.isdisjoint(reads(node)):
            moved |= outputs
            kept.append(node)
    return kept
