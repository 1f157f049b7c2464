"""Reverse-mode differentiation: from the statements that compute a value to its gradient graph.

The gradient is an ordinary graph.  The cotangent of ``%x`` is ``%d_x``; if several statements read
``%x`` it is the sum of ``%d_x.1``, ``%d_x.2`` ...  Each op is differentiated by its rule (`Op.vjp`).
An op without a rule, and a call, is differentiated through its formula or graph, and the statements
of that are repeated here.  If neither is possible, the graph contains a statement that fails with
the reason when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nncdbg.engine.differentiation.backward import BackwardBuilder
from nncdbg.engine.differentiation.backward_pass import BackwardPass, inner_names
from nncdbg.ir.names import free_names
from nncdbg.ir.records import Graph, Node, Type, Value, without_sizes


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
