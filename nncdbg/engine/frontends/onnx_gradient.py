"""ONNX ``Gradient`` as a call of the backward graph of its own graph.

``Gradient(x1, x2, z, xs=["a", "b"], zs=["c"], y="loss")`` is the gradient of ``%loss`` by ``%a``
and ``%b`` at ``%a`` = ``%x1``, ``%b`` = ``%x2`` and ``%c`` = ``%z``.  If an operand is the value
of that name itself, as usual, the surrounding values are used; otherwise its dependents are
recomputed.  Source: Gradient-1 of ai.onnx.preview.training.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from nncdbg.engine.differentiation.grad import GradientRequest, gradient_graph
from nncdbg.engine.errors import GraphError
from nncdbg.engine.frontends.order import title
from nncdbg.ir.records import Graph, Node, Type, Value

GRADIENT = "ai.onnx.preview.training.Gradient"


def with_target(node: Node) -> Node:
    """Return a Gradient statement that also reads its differentiated value, so that it comes after it."""
    return replace(node, inputs=(*node.inputs, request_of(node).y)) if node.op == GRADIENT else node


def with_gradients(
    nodes: Sequence[Node],
    types: Mapping[str, Type | None],
    graphs: dict[str, Graph],
    opsets: Mapping[str, int],
    claim: Callable[[str], str],
) -> tuple[Node, ...]:
    """Return the statements, one for one; a Gradient (of `with_target`) becomes a call of a new graph.

    The new graph is added to `graphs` under a name from `claim`.  `types` are those of the inputs and
    constants, as far as known.  A Gradient of a value that an outer graph computes is unchanged, and
    cannot run.
    """
    done: list[Node] = []
    for node in nodes:
        if node.op != GRADIENT:
            done.append(node)
            continue
        node = replace(node, inputs=node.inputs[:-1])
        here: Collection[str] = {*types, *(value.name for each in done for value in each.outputs)}
        done.append(_call(node, done, types, graphs, opsets, claim) if request_of(node).y in here else node)
    return tuple(done)


def request_of(node: Node) -> GradientRequest:
    """Return the request of a Gradient statement.  Raises GraphError for invalid attributes or operands."""
    y, xs, zs = node.attributes.get("y"), _names_in(node, "xs"), _names_in(node, "zs")
    if not isinstance(y, str) or not xs:
        raise GraphError(f"{title(node)} must have one value in y, and at least one in xs")
    names = (*xs, *zs)
    operands = node.inputs[: len(names)]
    if len(operands) != len(names) or None in operands or len(node.outputs) > len(xs):
        raise GraphError(
            f"{title(node)} lists {len(names)} values in xs and zs, but has {len(node.inputs)} operands and"
            f" {len(node.outputs)} outputs",
            hint="use one operand for each value in xs and zs, and at most one output for each value in xs",
        )
    moved = frozenset(name for name, operand in zip(names, operands, strict=True) if name != operand)
    wanted = tuple(x for x, value in zip(xs, node.outputs, strict=False) if value.name)
    return GradientRequest(y, xs, wanted, zs, moved)


def _names_in(node: Node, attribute: str) -> tuple[str, ...]:
    given = node.attributes.get(attribute)
    return tuple(name for name in given if isinstance(name, str)) if isinstance(given, tuple) else ()


def _call(
    node: Node,
    before: Sequence[Node],
    types: Mapping[str, Type | None],
    graphs: dict[str, Graph],
    opsets: Mapping[str, int],
    claim: Callable[[str], str],
) -> Node:
    request = request_of(node)
    graph = gradient_graph(claim("gradient"), before, request, types, graphs, opsets)
    graphs[graph.name] = graph
    at = dict(zip((*request.xs, *request.held), node.inputs, strict=True))
    inputs = tuple(at.get(value.name, value.name) for value in graph.inputs)
    outputs: tuple[Value, ...] = tuple(value for value in node.outputs if value.name)
    return replace(node, op=f"@{graph.name}", inputs=inputs, outputs=outputs, attributes={})
