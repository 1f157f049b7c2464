"""ONNX ``Loop`` as ``while``: the condition becomes a carried value and a ``break`` that reads it.

ONNX tests the condition before each iteration, so ``break`` is the first statement of the body.
If no condition is given and the body returns a constant, the loop runs by its count alone.
As in onnxruntime and onnx.reference, a condition that the body computes ends the loop even if
the node has no condition input.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from nncdbg.engine.errors import GraphError
from nncdbg.engine.frontends.onnx_node import need_names, node_title
from nncdbg.engine.frontends.order import reads
from nncdbg.engine.graph import Graph, Inline, Literal, Node, Operand, Value


def loop_node(
    node: Any,
    body: Graph | None,
    inputs: Sequence[Operand],
    outputs: Sequence[Value],
    true: Collection[str],
) -> Node:
    """Return the ``while`` of a Loop NodeProto (ONNX Loop-1 to 25).

    `inputs` are (count, condition, *initial) of the node; `body.inputs` (counter, condition,
    *carried); `body.outputs` (condition, *next, *collected); `true` the outer values known to be true.
    Raises GraphError for counts that do not match, or a carried value without a name.
    """
    title = node_title(node)
    if body is None:
        raise GraphError(f"{title} has no body")
    times, condition, *initial = [*inputs, None, None][: max(2, len(inputs))]
    carried = len(initial)
    if len(body.inputs) != carried + 2 or len(body.outputs) < carried + 1:
        raise GraphError(
            f"{title} carries {carried} values, but its body has {len(body.inputs)} inputs"
            f" and {len(body.outputs)} outputs",
            hint="pass the counter, condition and carried values to the body; return all but the counter",
        )
    if len(outputs) > len(body.outputs) - 1:
        raise GraphError(f"{title} has {len(outputs)} outputs, but its body returns {len(body.outputs) - 1}")
    results = (*outputs, *(Value(""),) * (len(body.outputs) - 1 - len(outputs)))
    start: Operand = Literal(True) if condition is None else condition
    tested = not (_known_true(condition, true) and _stays_true(body, true))
    if tested:
        body = replace(body, nodes=(Node("break", (body.inputs[1].name,)), *body.nodes))
    elif not _reads(body, body.inputs[1].name):
        body = replace(body, inputs=(body.inputs[0], *body.inputs[2:]), outputs=body.outputs[1:])
        need_names(title, body.inputs[1:])
        return Node("while", (times, *initial), results, subgraphs=(body,))
    need_names(title, body.inputs[1:])
    return Node("while", (times, start, *initial), (Value(""), *results), subgraphs=(body,))


def _known_true(condition: Operand, true: Collection[str]) -> bool:
    return condition is None or condition in true


def _stays_true(body: Graph, true: Collection[str]) -> bool:
    """Return whether the body's condition output is a true constant, or its condition input."""
    name = body.outputs[0].name
    identities = (node for node in body.nodes if node.op == "Identity" and node.inputs and node.outputs)
    copies = {node.outputs[0].name: node.inputs[0] for node in identities}
    while name in copies:
        name = str(copies[name])
    constants = {constant.value.name: constant.data for constant in body.constants}
    if name in constants:
        data = constants[name]
        return isinstance(data, Inline) and data.array.size == 1 and bool(data.array.all())
    own = {value.name for node in body.nodes for value in node.outputs} | {v.name for v in body.inputs}
    return name == body.inputs[1].name or (name in true and name not in own)


def _reads(body: Graph, name: str) -> bool:
    """Return whether a statement reads the value, or it is a result besides the condition itself."""
    used = any(name in reads(node) for node in body.nodes)
    return used or any(value.name == name for value in body.outputs[1:])
