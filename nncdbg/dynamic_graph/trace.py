"""The text of a trace: its symbols as a graph, named after the user's Python code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nncdbg.dynamic_graph.call_sites import assigned_names
from nncdbg.dynamic_graph.plans import TypeNumbers
from nncdbg.dynamic_graph.symbols import Symbol
from nncdbg.engine.building.values import literal_data
from nncdbg.engine.compilation.code import UNSET
from nncdbg.ir.names import claimed_name
from nncdbg.ir.records import Graph, Literal, Node, Operand, Value

ENTRY = "trace"
"""The name of the graph of the statements that ran."""


def claim_names(symbols: Sequence[Symbol], states: Iterable[str]) -> None:
    """Give each symbol a name that no other one and no state has; symbols keep the names that they have."""
    used = {*states, *(symbol.name for symbol in symbols)}
    for symbol in symbols:
        if not symbol.name:
            symbol.name = claimed_name(wanted_name(symbol), used)


def wanted_name(symbol: Symbol) -> str:
    """Return the given name of a symbol, the Python name that it is assigned to, or one by its op."""
    if symbol.wanted:
        return symbol.wanted
    names = assigned_names(symbol.code, symbol.position) if symbol.code is not None else ()
    if len(names) > symbol.index and names[symbol.index] != "_":
        return names[symbol.index]
    plan = symbol.statement.plan
    return plan.node.op.rpartition(".")[2].lower().lstrip("@") if plan is not None else "array"


def trace_graph(symbols: Sequence[Symbol], types: TypeNumbers) -> Graph:
    """Return the graph of named symbols, in order.

    Leaves are inputs, and results that no statement reads are outputs.  The result of a random op is an input
    as well: no other run draws the same numbers.
    """
    names = {symbol.number: symbol.name for symbol in symbols}
    nodes = [trace_node(group, types, names) for group in statements(symbols)]
    read = {name for node in nodes for name in node.inputs if isinstance(name, str)}
    inputs = [
        Value(each.name, types[each.type])
        for each in symbols
        if is_input(each) and (each.wanted or each.name in read)
    ]
    outputs = [value for node in nodes for value in node.outputs if value.name and value.name not in read]
    return Graph(ENTRY, tuple(inputs), tuple(outputs), tuple(nodes))


def is_input(symbol: Symbol) -> bool:
    """Return whether a symbol is an input of the trace."""
    plan = symbol.statement.plan
    return plan is None or plan.random


def statements(symbols: Iterable[Symbol]) -> list[list[Symbol]]:
    """Return the results of each statement that the trace can run, in order."""
    found: dict[int, list[Symbol]] = {}
    for symbol in symbols:
        if not is_input(symbol):
            found.setdefault(symbol.statement.number, []).append(symbol)
    return [*found.values()]


def trace_node(results: Sequence[Symbol], types: TypeNumbers, names: Mapping[int, str]) -> Node:
    """Return a statement with those of its results that exist; `names` are by the numbers of symbols."""
    statement = results[0].statement
    plan = statement.plan
    assert plan is not None
    outputs = [Value("")] * len(plan.node.outputs)
    for symbol in results:
        outputs[symbol.index] = Value(names[symbol.number], types[symbol.type])
    inputs = tuple(_operand(each, names) for each in statement.operands)
    return Node(plan.node.op, inputs, tuple(outputs), plan.node.attributes, location=statement.location)


def _operand(operand: Any, names: Mapping[int, str]) -> Operand:
    if isinstance(operand, Symbol):
        return names[operand.number]
    return None if operand is None else Literal(literal_data(operand))


def input_data(graph: Graph, symbols: Sequence[Symbol], to_host: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Return the arrays of the inputs of a trace by name."""
    held = {symbol.name: symbol.value for symbol in symbols if symbol.value is not UNSET}
    return {value.name: to_host(held[value.name]) for value in graph.inputs}
