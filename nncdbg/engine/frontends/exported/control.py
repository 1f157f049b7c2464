"""Control flow of exported programs: `torch.cond` as `if`; `while_loop`, `map` and `scan` as `while`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nncdbg.engine.frontends.exported.values import refuse, type_of
from nncdbg.engine.ops.aten.names import OPERAND
from nncdbg.ir.records import Graph, Node, Operand, TensorType, Value

if TYPE_CHECKING:
    from nncdbg.engine.frontends.exported.block import ExportedBlock

_INDEX = TensorType("i64", ())


def _cond(block: ExportedBlock, node: Any) -> None:
    """`cond(condition, graph if true, graph if false, operands)`."""
    condition, *branches, operands = node.args
    given = [block.value(each, f"{node.name}.operand") for each in operands]
    bodies = [block.inside(_module(block, each), given).graph() for each in branches]
    test = block.number(condition, "")
    block.append(node, "if", [test], tuple(block.outputs(node)), subgraphs=bodies)


def _while_loop(block: ExportedBlock, node: Any) -> None:
    """`while_loop(condition graph, body graph, carried, other operands)`; the condition is tested first."""
    test, body, initial, others = node.args
    start = [block.number(each, f"{node.name}.initial") for each in initial]
    around = [block.value(each, f"{node.name}.operand") for each in others]
    module = _module(block, body)
    carried = _carried(block, module, len(start))
    given: list[Operand] = [*(value.name for value in carried), *around]
    tested = block.inside(_module(block, test), given)
    (go,) = tested.results()
    inner = block.inside(module, given).graph([Value(""), *carried])
    loop = Graph(
        node.name,
        inner.inputs,
        inner.outputs,
        (*tested.nodes, Node("break", (go,)), *inner.nodes),
        (*tested.constants, *inner.constants),
    )
    block.append(node, "while", [None, *start], tuple(block.outputs(node)), subgraphs=[loop])


def _scan(block: ExportedBlock, node: Any) -> None:
    """`scan(graph, initial, sequences, other operands)`: an iteration reads a slice of each."""
    body, initial, sequences, others = node.args
    _loop_over(block, node, _module(block, body), initial, sequences, others)


def _map(block: ExportedBlock, node: Any) -> None:
    """`map_impl(graph, sequences, other operands)`: a scan that carries nothing."""
    body, sequences, others = node.args
    _loop_over(block, node, _module(block, body), (), sequences, others)


def _loop_over(
    block: ExportedBlock,
    node: Any,
    module: Any,
    initial: Sequence[Any],
    sequences: Sequence[Any],
    others: Sequence[Any],
) -> None:
    start = [block.number(each, f"{node.name}.initial") for each in initial]
    names = [block.value(each, "") for each in sequences]
    around = [block.value(each, f"{node.name}.operand") for each in others]
    count = Value(block.names.fresh(f"{node.name}.count"), _INDEX)
    block.append(node, "aten.sym_size.int", [names[0]], [count], {"dim": 0})
    carried = _carried(block, module, len(start))
    slices = _carried(block, module, len(names), after=len(start))
    counter = Value(block.names.fresh(f"{node.name}.index"), _INDEX)
    given: list[Operand] = [*(value.name for value in (*carried, *slices)), *around]
    inner = block.inside(module, given).graph([counter, *carried])
    gathered = tuple(
        Node("aten.select.int", (name, counter.name), (part,), {"dim": 0, "index": OPERAND})
        for name, part in zip(names, slices, strict=True)
    )
    loop = Graph(node.name, inner.inputs, inner.outputs, (*gathered, *inner.nodes), inner.constants)
    block.append(node, "while", [count.name, *start], tuple(block.outputs(node)), subgraphs=[loop])


def _without_gradients(block: ExportedBlock, node: Any) -> None:
    """`wrap_with_set_grad_enabled(enabled, graph, *operands)`: the statements of the graph."""
    _, body, *operands = node.args
    given = [block.value(each, f"{node.name}.operand") for each in operands]
    inner = block.inside(_module(block, body), given)
    block.nodes += inner.nodes
    block.scopes += inner.scopes
    block.constants += inner.constants
    block.classes |= inner.classes
    results = inner.results()
    for user in node.users:
        if user.target is not operator.getitem:
            refuse(user)
        block.bind(user, results[user.args[1]])


def _module(block: ExportedBlock, node: Any) -> Any:
    return operator.attrgetter(node.target)(block.module)


def _carried(block: ExportedBlock, module: Any, count: int, *, after: int = 0) -> list[Value]:
    """Return the values of `count` placeholders of a body, from number `after` on."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    return [
        Value(block.names.fresh(node.name), type_of(node.meta.get("val")))
        for node in placeholders[after : after + count]
    ]


CONTROL: Mapping[str, Callable[[ExportedBlock, Any], None]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "map_impl": _map,
    "wrap_with_set_grad_enabled": _without_gradients,
}
"""Name of a higher-order operator to the function that converts it."""
