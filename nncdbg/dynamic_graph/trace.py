"""The trace of a dynamic graph: its symbols, their places in the user's Python code, and its text."""

from __future__ import annotations

import dis
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any
from weakref import ref

from msgspec import Struct

from nncdbg.dynamic_graph.plans import TypeNumbers, literal
from nncdbg.engine.compilation.code import UNSET
from nncdbg.ir.records import Graph, Location, Node, Operand, Value

if TYPE_CHECKING:
    from nncdbg.dynamic_graph.plans import OpPlan


# -- call sites in the user's Python code --------------------------------------------------

_SKIPPED = frozenset({"CACHE", "EXTENDED_ARG", "COPY", "NOP"})


def name_in_frame(frame: FrameType, value: object) -> str:
    """Return the name of a local or global variable that is this very object; "" if there is none."""
    for names in (frame.f_locals, frame.f_globals):
        for name, each in names.items():
            if each is value and not name.startswith("_"):
                return str(name)
    return ""


@lru_cache(maxsize=65536)
def _site(identity: int, position: int, code: CodeType) -> tuple[Location, tuple[str, ...]]:
    """Return the line of an instruction, and the names to which its results are assigned."""
    line = next((line for start, end, line in code.co_lines() if start <= position < end), None)
    return Location(code.co_filename, line), _names_after(code, position)


def _names_after(code: CodeType, position: int) -> tuple[str, ...]:
    """Return the targets of the store instructions that follow the one at `position`."""
    names: list[str] = []
    count = 1
    for instruction in dis.get_instructions(code):
        if instruction.offset <= position or instruction.opname in _SKIPPED:
            continue
        kind, target = instruction.opname, instruction.argval
        if kind == "UNPACK_SEQUENCE" and not names:
            count = int(target)
            continue
        if not kind.startswith("STORE_") or kind in ("STORE_SUBSCR", "STORE_SLICE"):
            # `self.h = ...` loads `self` between the call and the store.
            if count == 1 and not names and kind.startswith("LOAD_") and "FAST" in kind:
                continue
            break
        if kind == "STORE_FAST_LOAD_FAST":
            target = target[:1]
        names.extend(target if isinstance(target, tuple) else (target,))
        if len(names) >= count:
            break
    return tuple(names[:count]) if len(names) >= count else ()


# -- symbols: the values of a trace --------------------------------------------------------


class Symbol(Struct, eq=False, weakref=True):
    """A result of a statement, or a leaf: data from outside of the trace.

    Each statement holds its operands, so reference counting frees what no variable depends on.  The place in
    the user's code is resolved only for print: creating a symbol takes part of a microsecond.
    """

    number: int
    """The order in which the symbols of a session were made."""
    plan: OpPlan | None
    """The op with its kernel; None for a leaf."""
    operands: tuple[Any, ...]
    """Symbols, literals, and None for an omitted operand."""
    code: CodeType | None
    position: int
    """The offset of the calling instruction in `code`."""
    type: int
    """The number of the type, see `plans.TypeNumbers`."""
    tracked: bool
    """True if the value depends on one that requires a gradient."""
    value: Any = UNSET
    """The array, where it is needed again: of leaves, for gradients, and of lazy values."""
    wanted: str = ""
    """The name that the user gave; the printed one has a number if several symbols want it."""
    name: str = ""
    """The name in the text, "" before the first print."""
    first: Symbol | None = None
    """For a further result of a statement: the symbol of its first result."""
    index: int = 0
    """The number of the result."""
    after: Symbol | None = None
    """The call before this one, if it updates the states that this call reads."""
    cut: bool = False
    """True if the symbol becomes a leaf once it is computed."""
    handle: ref[Any] | None = None
    """In a lazy session, the variable that was made with the symbol."""

    @property
    def statement(self) -> Symbol:
        """The symbol of the first result, which has plan and operands."""
        return self if self.first is None else self.first

    @property
    def location(self) -> Location | None:
        """The user's Python line."""
        return None if self.code is None else _site(id(self.code), self.position, self.code)[0]

    def become_leaf(self, value: Any) -> None:
        """Forget the statement of a value: its operands are freed."""
        self.plan, self.operands, self.first, self.index = None, (), None, 0
        self.value, self.cut = value, False


# -- the text of a trace -------------------------------------------------------------------

ENTRY = "trace"
"""The name of the graph of the statements that ran."""


def wanted_name(symbol: Symbol) -> str:
    """Return the given name of a symbol, the Python name that it is assigned to, or one by its op."""
    if symbol.wanted:
        return symbol.wanted
    code = symbol.code
    names = _site(id(code), symbol.position, code)[1] if code is not None else ()
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
    inputs: tuple[Operand, ...] = tuple(
        names[each.number] if isinstance(each, Symbol) else literal(each) for each in statement.operands
    )
    return Node(plan.node.op, inputs, tuple(outputs), plan.node.attributes, location=statement.location)
