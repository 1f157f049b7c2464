"""ONNX ``Loop`` and ``Scan`` as ``while``.

ONNX tests the condition of a Loop before each iteration, so ``break`` is the first statement of the body.
If no condition is given and the body returns a constant, the loop runs by its count alone.
As in onnxruntime and onnx.reference, a condition that the body computes ends the loop even if
the node has no condition input.

Each iteration of a Scan gathers its slices; the outputs are collected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nncdbg.engine.differentiation.backward_pass import GradientRequest, gradient_graph
from nncdbg.engine.frontends.onnx_node import node_title
from nncdbg.engine.frontends.order import title
from nncdbg.errors import GraphError, UnsupportedOp
from nncdbg.ir.names import claimed_name, defined, free_names
from nncdbg.ir.records import (
    Attribute,
    Graph,
    Inline,
    Literal,
    Node,
    Operand,
    Reference,
    TensorType,
    Type,
    Value,
    tensor_only,
)
from nncdbg.text.lexemes import name_text

# -- Gradient --------------------------------------------------------------------------------------
# ONNX ``Gradient`` as a call of the backward graph of its own graph.
#
# ``Gradient(x1, x2, z, xs=["a", "b"], zs=["c"], y="loss")`` is the gradient of ``%loss`` by ``%a``
# and ``%b`` at ``%a`` = ``%x1``, ``%b`` = ``%x2`` and ``%c`` = ``%z``.  If an operand is the value
# of that name itself, as usual, the surrounding values are used; otherwise its dependents are
# recomputed.  Source: Gradient-1 of ai.onnx.preview.training.

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
        request = request_of(node)
        if request.y in here:
            graph = gradient_graph(claim("gradient"), done, request, types, graphs, opsets)
            graphs[graph.name] = graph
            at = dict(zip((*request.xs, *request.held), node.inputs, strict=True))
            inputs = tuple(at.get(value.name, value.name) for value in graph.inputs)
            outputs: tuple[Value, ...] = tuple(value for value in node.outputs if value.name)
            node = replace(node, op=f"@{graph.name}", inputs=inputs, outputs=outputs, attributes={})
        done.append(node)
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


# -- Loop and Scan ---------------------------------------------------------------------------------

_INDEX = TensorType("i64", ())


def loop_node(
    node: Any,
    body: Graph | None,
    inputs: Sequence[Operand],
    outputs: Sequence[Value],
    true: Collection[str],
    known: Mapping[str, Type | None],
    taken: frozenset[str],
) -> list[Node]:
    """Return the ``while`` of a Loop NodeProto (ONNX Loop-1 to 25), and a statement before it if needed.

    `inputs` are (count, condition, *initial) of the node; `body.inputs` (counter, condition,
    *carried); `body.outputs` (condition, *next, *collected); `true` the outer values known to be true,
    `known` the types of outer values, `taken` the names in use.  As in onnxruntime, counter and condition
    have one axis in a body that declares them so.  Raises GraphError for counts that do not match, or a
    carried value without a name.
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
    before: list[Node] = []
    start: Operand = Literal(True) if condition is None else condition
    names = _Names(outputs, body, taken)
    if isinstance(start, str) and _is_row(known.get(start)):
        before.append(Node("Squeeze", (start,), (Value(names.fresh("condition"), TensorType("bool", ())),)))
        start = before[0].outputs[0].name
    if _is_row(body.inputs[0].type):
        body = _with_row_counter(body, names)
    tested = not ((condition is None or condition in true) and _stays_true(body, true))
    if tested:
        body = _with_single_condition(body, names)
        body = replace(body, nodes=(Node("break", (body.inputs[1].name,)), *body.nodes))
    elif body.inputs[1].name not in free_names(replace(body, inputs=(), outputs=body.outputs[1:])):
        body = replace(body, inputs=(body.inputs[0], *body.inputs[2:]), outputs=body.outputs[1:])
        _need_names(title, body.inputs[1:])
        return [Node("while", (times, *initial), results, subgraphs=(body,))]
    else:
        body = _with_single_condition(body, names)
    _need_names(title, body.inputs[1:])
    return [*before, Node("while", (times, start, *initial), (Value(""), *results), subgraphs=(body,))]


def _is_row(type: Type | None) -> bool:
    """Return whether a type has one axis."""
    return isinstance(type, TensorType) and type.shape is not None and len(type.shape) == 1


def _with_row_counter(body: Graph, names: _Names) -> Graph:
    """Return the body with a counter of a single number, from which it makes the declared row."""
    row, number = body.inputs[0], names.fresh("index")
    if not row.name:
        return replace(body, inputs=(Value(""), *body.inputs[1:]))
    made = Node("Reshape", (number, Literal((1,))), (row,))
    return replace(body, inputs=(Value(number, _INDEX), *body.inputs[1:]), nodes=(made, *body.nodes))


def _with_single_condition(body: Graph, names: _Names) -> Graph:
    """Return the body with a condition of one bool without axes, if it declares a row."""
    row, result = body.inputs[1], body.outputs[0]
    if not _is_row(row.type):
        return body
    flag, following = (Value(names.fresh(word), TensorType("bool", ())) for word in ("flag", "following"))
    made = Node("Reshape", (flag.name, Literal((1,))), (row,))
    last = Node("Squeeze", (result.name,), (following,))
    return replace(
        body,
        inputs=(body.inputs[0], flag, *body.inputs[2:]),
        outputs=(Value(following.name), *body.outputs[1:]),
        nodes=(made, *body.nodes, last),
    )


def is_true(data: Inline | Reference, dtype: type | None = None) -> bool:
    """Return whether data has one element and that is true; with `dtype`, of this type."""
    if not isinstance(data, Inline) or data.array.size != 1:
        return False
    return (dtype is None or data.array.dtype == dtype) and bool(data.array.all())


def _stays_true(body: Graph, true: Collection[str]) -> bool:
    """Return whether the body's condition output is a true constant, or its condition input."""
    name = body.outputs[0].name
    identities = (node for node in body.nodes if node.op == "Identity" and node.inputs and node.outputs)
    copies = {node.outputs[0].name: node.inputs[0] for node in identities}
    while name in copies:
        name = str(copies[name])
    constants = {constant.value.name: constant.data for constant in body.constants}
    if name in constants:
        return is_true(constants[name])
    own = {value.name for value in defined(body)}
    return name == body.inputs[1].name or (name in true and name not in own)


def _need_names(title: str, carried: Iterable[Value]) -> None:
    """Raise GraphError for a loop's carried value without a name, as ONNX and graph text require one."""
    if not all(value.name for value in carried):
        raise GraphError(
            f"{title} carries a value that has no name in its body", hint="name the inputs of the body"
        )


class _Names:
    """Generates unused names for the values that ONNX leaves implicit."""

    def __init__(self, outputs: Sequence[Value], body: Graph, taken: frozenset[str]) -> None:
        self._stem = next((value.name for value in outputs if value.name), "Scan")
        self._taken = {*taken, *(value.name for value in defined(body))}

    def fresh(self, what: str) -> str:
        return claimed_name(f"{self._stem}.{what}", self._taken)


def scan_nodes(
    node: Any,
    body: Graph | None,
    inputs: Sequence[Operand],
    outputs: Sequence[Value],
    attributes: Mapping[str, Attribute],
    taken: frozenset[str],
) -> list[Node]:
    """Return the statements of a Scan NodeProto (ONNX Scan-9 to 25).

    `inputs` are (*initial, *sequences); `body.inputs` (*carried, *slices); `body.outputs`
    (*next, *collected); `taken` are the names in use.  Raises GraphError for counts that do not match,
    UnsupportedOp for an output stacked along an axis of unknown position.
    """
    title = node_title(node)
    count = attributes.get("num_scan_inputs")
    if body is None or not isinstance(count, int) or not 1 <= count <= len(inputs):
        raise GraphError(f"{title} needs a body, and num_scan_inputs of at least 1")
    carried = len(inputs) - count
    if len(body.inputs) != len(inputs) or len(body.outputs) < max(carried, len(outputs)):
        raise GraphError(
            f"{title} has {len(inputs)} inputs and {len(outputs)} outputs;"
            f" its body has {len(body.inputs)} inputs and {len(body.outputs)} outputs"
        )
    stacked = len(body.outputs) - carried
    names = _Names(outputs, body, taken)
    in_axes = _numbers(attributes, "scan_input_axes", count, title)
    backward = _numbers(attributes, "scan_input_directions", count, title)
    sequences = inputs[carried:]
    before, times = _length(sequences[0], in_axes[0], names)
    _need_names(title, body.inputs[:carried])
    gathered, counter = _slices(body.inputs[carried:], sequences, in_axes, backward, times, names)
    body = replace(body, inputs=(counter, *body.inputs[:carried]), nodes=(*gathered, *body.nodes))
    results = [*outputs, *(Value(""),) * (len(body.outputs) - len(outputs))]
    out_axes = _numbers(attributes, "scan_output_axes", stacked, title)
    reverse = _numbers(attributes, "scan_output_directions", stacked, title)
    after: list[Node] = []
    for index in range(stacked):
        place = carried + index
        results[place], fixes = _oriented(results[place], out_axes[index], reverse[index], names, title)
        after += fixes
    loop = Node("while", (times, *inputs[:carried]), tuple(results), subgraphs=(body,))
    return [*before, loop, *after]


def batched_scan_nodes(
    node: Any,
    body: Graph | None,
    inputs: Sequence[Operand],
    outputs: Sequence[Value],
    attributes: Mapping[str, Attribute],
    taken: frozenset[str],
) -> list[Node]:
    """Return the statements of a Scan NodeProto of ONNX Scan-8: a batch loop around that of Scan-9.

    `inputs` are (lengths or None, *initial, *sequences), each with the batch as its first axis.
    Raises UnsupportedOp if lengths are given, GraphError for counts that do not match.
    """
    title = node_title(node)
    if body is None or len(inputs) < 2:
        raise GraphError(f"{title} needs a body and a sequence")
    if inputs[0] is not None:
        raise UnsupportedOp(
            f"{title} uses sequence_lens, which nncdbg does not support",
            hint="convert the model to opset 9 or later: onnx.version_converter",
        )
    names = _Names(outputs, body, taken)
    before, times = _length(inputs[1], 0, names)
    counter = Value(names.fresh("batch"), _INDEX)
    parts = [Value(names.fresh("part")) for _ in inputs[1:]]
    results = [Value(names.fresh("result")) for _ in body.outputs]
    gathered = [
        Node("Gather", (operand, counter.name), (part,), {"axis": 0})
        for operand, part in zip(inputs[1:], parts, strict=True)
    ]
    inner = {key: value for key, value in attributes.items() if key != "directions"}
    if "directions" in attributes:
        inner["scan_input_directions"] = attributes["directions"]
    own = frozenset(value.name for value in [counter, *parts, *results]) | {times}
    scanned = scan_nodes(node, body, [part.name for part in parts], results, inner, taken | own)
    batch = Graph("batch", (counter,), tuple(results), (*gathered, *scanned))
    wanted = (*outputs, *(Value(""),) * (len(results) - len(outputs)))
    return [*before, Node("while", (times,), wanted, subgraphs=(batch,))]


def _numbers(attributes: Mapping[str, Attribute], name: str, count: int, title: str) -> list[int]:
    """Return one number per input or output, 0 if the attribute is omitted."""
    given = attributes.get(name)
    if given is None:
        return [0] * count
    if not isinstance(given, tuple) or len(given) != count:
        raise GraphError(f"{title} needs {count} {name}, not {given!r}")
    return [int(number) for number in given]


def _length(sequence: Operand, axis: int, names: _Names) -> tuple[list[Node], str]:
    """Return statements that compute the number of iterations, and its name."""
    shape, times = names.fresh("shape"), names.fresh("times")
    size = Node("Gather", (shape, Literal(axis)), (Value(times, _INDEX),))
    return [Node("Shape", (sequence,), (Value(shape),)), size], times


def _slices(
    values: Sequence[Value],
    sequences: Sequence[Operand],
    axes: Sequence[int],
    backward: Sequence[int],
    times: str,
    names: _Names,
) -> tuple[list[Node], Value]:
    """Return the first statements of the body, which define the slices, and the counter they read."""
    counter = names.fresh("index")
    nodes: list[Node] = []
    mirrored = counter
    if any(backward):
        left, mirrored = names.fresh("left"), names.fresh("mirrored")
        nodes.append(Node("Sub", (times, counter), (Value(left, _INDEX),)))
        nodes.append(Node("Sub", (left, Literal(1)), (Value(mirrored, _INDEX),)))
    for value, sequence, axis, turned in zip(values, sequences, axes, backward, strict=True):
        index = mirrored if turned else counter
        nodes.append(Node("Gather", (sequence, index), (value,), {"axis": axis}))
    return nodes, Value(counter, _INDEX)


def _oriented(value: Value, axis: int, reverse: int, names: _Names, title: str) -> tuple[Value, list[Node]]:
    """Return the loop's output for `value`, and the statements that reverse it or move its axis."""
    if not value.name or not (axis or reverse):
        return value, []
    nodes: list[Node] = []
    steps = [*(["reversed"] if reverse else []), *(["moved"] if axis else [])]
    stacked = Value(names.fresh("stacked"))
    current = stacked
    for step in steps:
        target = value if step == steps[-1] else Value(names.fresh(step))
        if step == "reversed":
            last = (Literal((-1,)), Literal((int(np.iinfo(np.int64).min),)), Literal((0,)), Literal((-1,)))
            nodes.append(Node("Slice", (current.name, *last), (target,)))
        else:
            nodes.append(
                Node("Transpose", (current.name,), (target,), {"perm": _permutation(value, axis, title)})
            )
        current = target
    return stacked, nodes


def _permutation(value: Value, axis: int, title: str) -> tuple[int, ...]:
    known = tensor_only(value.type)
    if known is None or known.shape is None:
        raise UnsupportedOp(
            f"{title} stacks %{name_text(value.name)} along axis {axis}, but its number of axes is unknown",
            hint="run onnx.shape_inference.infer_shapes on the model, and save it",
        )
    rank = len(known.shape)
    perm = list(range(1, rank))
    perm.insert(axis % rank, 0)
    return tuple(perm)
