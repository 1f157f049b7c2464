"""Commands that show the model as a whole: `layers` and `info model`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nncdbg.commands.table import command
from nncdbg.dtypes import NUMPY
from nncdbg.errors import UsageError
from nncdbg.expression import spelled
from nncdbg.ir.constants import initial_data
from nncdbg.ir.kinds import is_transfer
from nncdbg.ir.records import Graph, Inline, Node, Program, TensorType, type_of
from nncdbg.ir.walk import blocks
from nncdbg.presentation.elements import element, is_text
from nncdbg.presentation.text_table import ColumnFormat, put_columns
from nncdbg.stats import Summary
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession
    from nncdbg.target.target import Target

_MANY = 100
"""Maximum number of layers that `layers` lists."""

_COLUMNS = ("layer", "calls", "statements", "ops", "parameters", "nan", "inf", "largest")


@dataclass(slots=True)
class _Worst:
    """The largest counts and the largest magnitude of single values; `seen` counts the values."""

    nan: int = 0
    inf: int = 0
    largest: float = 0.0
    seen: int = 0

    def add(self, nan: int, inf: int, largest: float, seen: int) -> None:
        self.nan, self.inf = max(self.nan, nan), max(self.inf, inf)
        self.largest, self.seen = max(self.largest, largest), self.seen + seen


@command("layers", group="looking", arguments="[@GRAPH]", completes=("graph",))
def layers(session: CommandSession, text: str) -> None:
    """Show the tree of layers with their sizes and worst statistics.

    A layer is a called graph, and a row includes the layers that it calls.  `statements` are the lines of
    its graphs, and `ops` are those that are neither calls nor control flow.  `nan` and `inf` are the
    most NaN and Inf elements in one value, and `largest` is the largest finite magnitude, over all values
    in the history since the last edit; `-` before the first value.  With @GRAPH, show the tree of this
    graph.  Each name is a place: `break @layer`, `list @layer`, `table @layer`.
    """
    program = session.target.lowered
    root = graph_named(program, text) if text else program.entry
    callees = {name: Counter(_calls(graph)) for name, graph in program.graphs.items()}
    tree = [*_tree(root, callees)]
    parameters = parameter_sizes(session.target)
    used = {name: _parameters_of(name, graph, parameters) for name, graph in program.graphs.items()}
    worst, dropped = _worst_by_graph(session.target)
    rows = []
    for depth, name, calls, again in tree[:_MANY]:
        inside = _reached(name, callees)
        nodes = [node for each in inside for node in _statements(program.graphs[each])]
        held = {each for key in inside for each in used[key]}
        total = _Worst()
        for title in {program.graphs[each].name for each in inside}:
            found = worst.get(title, _Worst())
            total.add(found.nan, found.inf, found.largest, found.seen)
        figures = (total.nan, total.inf, element(total.largest)) if total.seen else ("-", "-", "-")
        cells = (
            f"{'  ' * depth}@{name_text(program.graphs[name].name)}{' (see above)' if again else ''}",
            f"{calls}",
            f"{len(nodes)}",
            f"{sum(not is_transfer(node.op) for node in nodes)}",
            _total(parameters[each] for each in held)[0],
            *map(str, figures),
        )
        rows.append(dict(zip(_COLUMNS, cells, strict=True)))
    more = len(tree) - len(rows)
    after = f"and {counted(more, 'layer')} more; `layers @GRAPH` shows the tree of a graph" if more else ""
    form = ColumnFormat(_COLUMNS[1:], keep_end=("layer",), optional=("ops", "calls"))
    put_columns(session.screen, _COLUMNS, rows, form, after)
    say_dropped(session, dropped)


def model(session: CommandSession, text: str) -> None:
    """Show the inputs, outputs, parameters and ops of the model; `text` is not used."""
    program, put = session.target.program, session.screen.put
    graph = program.graphs[program.entry]
    for title, values in (("input", graph.inputs), ("output", graph.outputs)):
        for value in values:
            put(f"{title} {spelled(value.name)}: {value.type or 'unknown type'}")
        if not values:
            put(f"the model has no {title}s")
    sizes = parameter_sizes(session.target)
    elements, size = _total(sizes.values())
    put(f"parameters: {elements} in {counted(len(sizes), 'tensor', ',')}, {size} bytes")
    counts = Counter(node.op for each in program.graphs.values() for node in _statements(each))
    put(f"statements: {sum(counts.values()):,} in {counted(len(program.graphs), 'graph', ',')}")
    kernels = Counter({op: count for op, count in counts.items() if not is_transfer(op)})
    put(f"ops: {ops_text(kernels) or 'none'}")


def ops_text(counts: Counter[str]) -> str:
    """Return the ops with their counts, the most frequent first."""
    return ", ".join(f"{op} {count}" for op, count in counts.most_common())


def graph_named(program: Program, text: str) -> str:
    """Return the graph `@NAME` of the program. Raises UsageError if there is none."""
    name = text.removeprefix("@").strip('"')
    if name not in program.graphs:
        known = ", ".join(f"@{name_text(each)}" for each in [*program.graphs][:10])
        raise UsageError(f"the program has no graph @{name_text(name)}", hint=f"use one of: {known}")
    return name


def say_dropped(session: CommandSession, dropped: int) -> None:
    """Print how many values of the run are missing in a table."""
    if dropped:
        verb = "is" if dropped == 1 else "are"
        session.screen.put(
            f"{counted(dropped, 'value', ',')} {verb} not included: dropped, or in memory that was reused"
        )
    floor = session.target.now.floor
    if floor:
        session.screen.put(f"the history starts after {counted(floor, 'statement', ',')}")


def _statements(graph: Graph) -> Iterator[Node]:
    """Return the statements of a graph, and of its branches and loops."""
    return (node for _, block in blocks(graph) for node in block.nodes)


def _calls(graph: Graph) -> Iterator[str]:
    return (name for node in _statements(graph) if (name := node.called) is not None)


def _tree(root: str, callees: Mapping[str, Counter[str]]) -> Iterator[tuple[int, str, int, bool]]:
    """Yield (depth, graph, calls in its caller, whether its tree was shown before), callers first."""
    shown: set[str] = set()
    stack = [(0, root, 1)]
    while stack:
        depth, name, calls = stack.pop()
        again = name in shown and bool(callees[name])
        yield depth, name, calls, again
        if name not in shown:
            shown.add(name)
            stack.extend((depth + 1, *each) for each in reversed(callees[name].items()))


def _reached(name: str, callees: Mapping[str, Counter[str]]) -> set[str]:
    """Return a graph and all graphs that it calls."""
    return {each for _, each, _, _ in _tree(name, callees)}


def parameter_sizes(target: Target) -> dict[tuple[str, str], tuple[int, int] | None]:
    """Return (elements, bytes) of each parameter, by (graph, name); the graph of a state is "".

    A parameter is a constant with an axis, other than shapes (i64), bools and strings, or a state that
    belongs to no other state.  None: its size is not known yet.
    """
    program = target.program
    found: dict[tuple[str, str], tuple[int, int] | None] = {}
    for name, graph in program.graphs.items():
        for _, each in blocks(graph):
            for constant in each.constants:
                known = (
                    type_of(constant.data.array) if isinstance(constant.data, Inline) else constant.value.type
                )
                if not isinstance(known, TensorType) or not known.concrete:
                    known = type_of(initial_data(constant, program))
                if known is not None and known.shape and known.dtype not in ("i64", "bool", "str"):
                    found[name, constant.value.name] = _size(known)
    for state in program.states:
        if state.of is None:
            found["", state.value.name] = _size(state.value.type) or _size(
                _state_type(target, state.value.name)
            )
    return found


def _total(sizes: Iterable[tuple[int, int] | None]) -> tuple[str, str]:
    """Return the sums of elements and bytes as text; "?" if a size is unknown."""
    known = [*sizes]
    sums = [sum(pair) for pair in zip(*(each for each in known if each), strict=True)] or [0, 0]
    return ("?", "?") if None in known else (f"{sums[0]:,}", f"{sums[1]:,}")


def _state_type(target: Target, name: str) -> TensorType | None:
    """Return the type of the present value of a state; None before its first value."""
    states = target.states
    return type_of(states[name]) if name in states else None


def _size(known: object) -> tuple[int, int] | None:
    """Return the elements and bytes of a type; None if a size is unknown."""
    if not isinstance(known, TensorType) or not known.concrete or known.dtype == "str":
        return None
    count = math.prod(known.shape or ())  # type: ignore[arg-type]
    return count, count * NUMPY[known.dtype].itemsize


def _parameters_of(name: str, graph: Graph, parameters: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the parameters of a graph: its weights, and the states that its statements read."""
    operands = {each for node in _statements(graph) for each in node.inputs if isinstance(each, str)}
    return {(home, each) for home, each in parameters if home == name or (not home and each in operands)}


def _worst_by_graph(target: Target) -> tuple[dict[str, _Worst], int]:
    """Return the worst statistics of the results of ops by graph, and the number of values not kept."""
    scope = target.scope()
    found: dict[str, _Worst] = {}
    dropped = 0
    for each in target.computed(latest=False):
        if not each.from_kernel:
            continue
        if each.dropped:
            dropped += 1
            continue
        array = target.host(each.content)
        if type_of(array) is None or is_text(array):
            continue
        summary: Summary = scope.summary(array)
        largest = max(abs(summary.min or 0), abs(summary.max or 0))
        worst = found.setdefault(str(each.place.path[0]), _Worst())
        worst.add(summary.nan, summary.posinf + summary.neginf, largest, 1)
    return found, dropped
