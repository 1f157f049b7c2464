"""Which statements an inspection executes, and which of their values are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nncdbg.dynamic_graph.plans import TypeNumbers
from nncdbg.dynamic_graph.symbols import Symbol
from nncdbg.engine.compilation.code import UNSET


def pending_statements(wanted: Iterable[Symbol]) -> list[Symbol]:
    """Return the statements to execute for these symbols, in order."""
    found: dict[int, Symbol] = {}
    stack = [*wanted]
    while stack:
        symbol = stack.pop()
        if symbol.value is not UNSET or symbol.statement.number in found:
            continue
        statement = found[symbol.statement.number] = symbol.statement
        stack += [each for each in (*statement.operands, statement.after) if isinstance(each, Symbol)]
    return [found[number] for number in sorted(found)]


def value_in(symbol: Symbol, done: Mapping[int, Any]) -> Any:
    """Return the value of a symbol from its statement's results, if it has none yet."""
    if symbol.value is not UNSET:
        return symbol.value
    results, plan = done[symbol.statement.number], symbol.statement.plan
    return results if plan is None or len(plan.node.outputs) == 1 else results[symbol.index]


def keep_needed(
    symbols: Iterable[Symbol],
    done: Mapping[int, Any],
    wanted: Sequence[Symbol],
    types: TypeNumbers,
    *,
    everything: bool,
) -> None:
    """Keep the values that are needed again; the others are computed again if they are inspected.

    `symbols` are those of the trace; `done` has the results of the executed statements by number.
    """
    cut = []
    for symbol in symbols:
        if symbol.statement.number not in done or symbol.value is not UNSET:
            continue
        plan = symbol.statement.plan
        variable = symbol.handle() if symbol.handle is not None else None
        needed = everything or symbol.tracked or (plan is not None and plan.once)
        if needed or symbol in wanted or (variable is not None and variable._symbol is symbol):
            symbol.value = value_in(symbol, done)
            symbol.type = types.of(symbol.value)
            cut += [symbol] if symbol.cut else []
    for symbol in cut:
        symbol.become_leaf(symbol.value)
