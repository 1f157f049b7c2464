"""One backward pass over statements: the cotangents of what they read, from those of what they compute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nncdbg.dtypes import COMPLEX
from nncdbg.engine.differentiation.backward import BackwardBuilder
from nncdbg.engine.frontends.formula import formula_of
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.gradient import Applied, nothing
from nncdbg.engine.ops.schema import complete, version_of
from nncdbg.errors import GraphError, UnsupportedOp
from nncdbg.ir.names import reads
from nncdbg.ir.records import (
    Graph,
    Node,
    Operand,
    SequenceType,
    Type,
    Value,
    has_cotangent,
    tensor_only,
    without_sizes,
)
from nncdbg.ir.walk import walk_nodes
from nncdbg.text.lexemes import name_text


class BackwardPass:
    """One backward pass to the values `xs`; `points` are `xs` and the values held constant."""

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
                Value("") if value.name in self._points else replace(value, type=_resized(value.type))
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
                if value.name and value.name not in self._points and self._may_vary(value.name):
                    self._active.add(value.name)

    def _may_vary(self, name: str) -> bool:
        """Return False for a value that is known to be of integers, bools or text."""
        return has_cotangent(self._emit.types.get(name))

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
        """Differentiate the graph of a call, or the formula of an op; return False if there is none."""
        graph, operands = self._inside(node)
        if graph is None:
            return False
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

    def _inside(self, node: Node) -> tuple[Graph | None, list[Operand]]:
        """Return the graph behind a statement, and the operands that are given.

        Raises UnsupportedOp if it draws random numbers, because a repetition would draw others.
        """
        operands: list[Operand] = [operand for operand in node.inputs if operand is not None]
        graph = self._graph(node)
        if graph is not None and self._draws(node):
            raise UnsupportedOp("its random numbers cannot be drawn again")
        return graph, operands

    def _graph(self, node: Node) -> Graph | None:
        if (called := node.called) is not None:
            return self._emit.graphs.get(called)
        if node.subgraphs:
            return None
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


def _resized(type_: Type | None) -> Type | None:
    return without_sizes(type_) if type_ is not None else None
