"""The graph tab: the whole graph with its changes at each stop, or the blocks around the current statement.

A block is a graph that is drawn open: one on the stack, or one that the user has expanded.  Data flow is
followed through open blocks, so that an edge leads from the statement that computes a value to the one that
reads it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import msgspec

from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.variables.places import statement_of
from nncdbg.dap_server.variables.value_text import Glance, is_tensor
from nncdbg.errors import UsageError
from nncdbg.expression import spelled
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import captures
from nncdbg.presentation.elements import is_text

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from nncdbg.dap_server.session import Session
    from nncdbg.ir.records import Graph, Node, Path
    from nncdbg.stats import Summary
    from nncdbg.target.records import FinishedBlock, Frame

MOST_STATEMENTS = 60
"""Shown statements, also of expanded blocks."""

MOST_OF_ALL = 20_000
"""Shown statements of a whole graph."""

LEVELS = 8
"""Shown blocks of the stack, the innermost ones."""

SLIDE = 8
"""Consecutive steps that keep the shown part of a long graph, so that clients seldom redo the layout."""

OUTWARDS = 3
"""Distance, in statements, that each enclosing block adds."""

MOST_FINISHED = 10_000
"""Finished layers, branches and iterations whose statistics one answer considers, the latest ones."""

_LAST_LINES = {"loop": "next", "branch": "yield"}

_KINDS = {"while": "loop", "if": "branch"}

_DRAWN = re.compile("rand|bernoulli|multinomial|normal|dropout", re.IGNORECASE)
"""Ops that draw numbers: without operands, they are no constants."""


@dataclass(frozen=True, slots=True, eq=False)
class GraphIndex:
    """The names of a graph: the numbers of the statements that define each, -1 for an input.

    For a graph on the stack, `positions` is the order of all its names, and `results` has the numbers of the
    first result of each statement, None for one without results.
    """

    graph: Graph
    definitions: Mapping[str, Sequence[int]]
    positions: Mapping[str, int]
    results: Sequence[int | None]


def index_of(session: Session, graph: Graph, frame: Frame | None = None) -> GraphIndex:
    """The index of a graph, which is made once; `frame` runs it."""
    indexes = session.program.shown.indexes
    key = id(graph), frame is None
    if key not in indexes:
        definitions: dict[str, list[int]] = {value.name: [-1] for value in graph.inputs}
        for pc, node in enumerate(graph.nodes):
            for value in node.outputs:
                definitions.setdefault(value.name, []).append(pc)
        positions, results = {}, []
        if frame is not None:
            cells, number = session.program.target.cells, frame.number
            positions = {name: position for position, name in enumerate(frame.names)}
            results = [next(iter(cells("results", number, pc)), None) for pc in range(len(graph.nodes))]
        # With the graph, so that its id is not reused.
        indexes[key] = GraphIndex(graph, definitions, positions, results)
    index: GraphIndex = indexes[key]
    return index


@dataclass(eq=False)
class ShownBlock:
    """A graph shown with its statements; it is the body of statement `pc` of `outer`.

    `frame` and `here` (its statement) are those of a block on the stack; `frame` is None for an expanded
    block.
    """

    id: str
    graph: Graph
    path: Path
    index: GraphIndex
    outer: ShownBlock | None = None
    pc: int = -1
    frame: Frame | None = None
    here: int = -1
    done: bool = False
    """Whether the statement at `here` has run."""
    shown: list[int] = field(default_factory=list)
    inside: dict[int, list[ShownBlock]] = field(default_factory=dict)
    """The blocks shown in place of a statement, by its number."""

    @property
    def origin(self) -> ShownBlock:
        """The block on the stack from which this one is expanded; itself, if it is one."""
        block = self
        while block.frame is None and block.outer is not None:
            block = block.outer
        return block

    @property
    def kind(self) -> str:
        if self.outer is None:
            return "graph"
        if self.frame is not None and self.frame.place.micro is not None:
            return "micro"
        op = self.outer.graph.nodes[self.pc].op
        return _KINDS.get(op, "layer")

    @property
    def title(self) -> str:
        """The name of the graph; without a name the kind, for branches `then` or `else`."""
        if self.kind == "branch" and not self.graph.name:
            return "then" if self.path[-1] == 0 else "else"
        return f"@{self.graph.name}" if self.graph.name else self.kind

    def statement_id(self, pc: int) -> str:
        return f"{self.id}/{pc}"

    def statement(self, session: Session, pc: int) -> dict[str, Any]:
        """The fields of a drawn statement: `id`, `kind`, `label`, `values`, `line`."""
        end = pc == len(self.graph.nodes)
        op = _LAST_LINES.get(self.kind, "return") if end else self.graph.nodes[pc].op
        outputs = () if end else self.graph.nodes[pc].outputs
        names = [] if end else [f"@{graph.name}" for graph in self.graph.nodes[pc].subgraphs if graph.name]
        frame = self.origin.frame
        assert frame is not None, "the outermost block is on the stack"
        line = frame.listing.line(self.path, pc)
        return {
            "id": self.statement_id(pc),
            "kind": "end" if end else _KINDS.get(op, "layer" if op[0] == "@" else "op"),
            "label": f"{op} {' or '.join(names)}" if names else op,
            "values": [spelled(value.name) for value in outputs[:4] if value.name],
            "line": session.client.outgoing_line(line),
        }

    def definition(self, name: str) -> int | None:
        """The number of the statement that defines a value of this block, as its next statement reads it."""
        definitions = self.index.definitions.get(name)
        if definitions is None:
            return None
        done = len(self.graph.nodes) if self.frame is None else self.frame.place.pc
        # A state may have several definitions: the latest one that has run, else its input.
        ran = [pc for pc in definitions if pc < done]
        pc = ran[-1] if ran else definitions[-1]
        return pc if pc >= 0 else None

    def reads(self, pc: int) -> Iterable[str]:
        """The names that a statement reads, also in its blocks; at the end, what the last line reads."""
        end = pc == len(self.graph.nodes)
        names = [value.name for value in self.graph.outputs] if end else _operands(self.graph.nodes[pc])
        if self.frame is None:
            return names
        inner = [] if end else captures(self.graph.nodes[pc])
        return sorted({*names, *inner} - {""}, key=self.index.positions.__getitem__)


def _operands(node: Node) -> list[str]:
    return [operand for operand in node.inputs if isinstance(operand, str)]


@dataclass(frozen=True, slots=True)
class ValueSource:
    """The source of a value: a statement, or with pc -1 an input of the outermost block.

    `name` is its name there; `carried`: carried by a loop, from one iteration to the next.
    """

    block: ShownBlock
    pc: int
    name: str
    carried: bool = False


def neighbourhood(session: Session, opened: Container[str], closed: Container[str]) -> list[ShownBlock]:
    """The blocks to show, outer before inner.

    `opened` are ids of statements to expand, `closed` of those on the stack to collapse.
    """
    blocks = on_the_stack(session, closed, LEVELS)
    inner = len(blocks) - 1
    centers = [block.here for block in blocks]
    centers[inner] += SLIDE // 2 - centers[inner] % SLIDE
    candidates = (
        (abs(pc - centers[level]) + OUTWARDS * (inner - level), -level, pc)
        for level, block in enumerate(blocks)
        for pc in _around(block)
    )
    wanted = MOST_STATEMENTS * 2 // 3 if opened else MOST_STATEMENTS
    for _, level, pc in sorted(nsmallest(wanted, candidates), key=lambda each: each[2]):
        blocks[-level].shown.append(pc)
    room = MOST_STATEMENTS - sum(len(block.shown) for block in blocks)
    return [*blocks, *_looked_into(session, blocks, opened, room)]


def whole(session: Session, opened: Container[str]) -> list[ShownBlock]:
    """The entry graph with all its statements, and its expanded blocks: outer before inner."""
    root = on_the_stack(session, ())[0]
    root.inside = {}
    root.shown = list(range(min(MOST_OF_ALL, len(root.graph.nodes) + 1)))
    room = MOST_OF_ALL - len(root.shown)
    return [root, *_looked_into(session, [root], opened, room)]


def _around(block: ShownBlock) -> range:
    last = len(block.graph.nodes)
    return range(max(0, block.here - MOST_STATEMENTS), min(last, block.here + MOST_STATEMENTS) + 1)


def on_the_stack(session: Session, closed: Container[str], levels: int | None = None) -> list[ShownBlock]:
    """The innermost blocks of the stack, outer before inner, without those below a collapsed statement."""
    blocks: list[ShownBlock] = []
    target = session.program.target
    for number in reversed(range(target.frame(0).depth + 1)[:levels]):
        frame = target.frame(number)
        outer = blocks[-1] if blocks else None
        if outer is not None and outer.statement_id(outer.here) in closed:
            break
        pc, done = statement_of(session, frame)
        path = frame.place.path
        name = f"{frame.depth}:{frame.graph.name}" if outer is None else outer.statement_id(outer.here)
        branch = f".{path[-1]}" if outer is not None and len(path) > 1 else ""
        index = index_of(session, frame.graph, frame)
        block = ShownBlock(f"{name}{branch}", frame.graph, path, index, outer, -1, frame, pc, done)
        if outer is not None:
            block.pc = outer.here
            outer.inside[outer.here] = [block]
        blocks.append(block)
    return blocks


def _looked_into(
    session: Session, blocks: Sequence[ShownBlock], opened: Container[str], room: int
) -> Iterator[ShownBlock]:
    waiting = list(blocks)
    while waiting:
        block = waiting.pop(0)
        for pc in block.shown:
            if room <= 0 or pc in block.inside or block.statement_id(pc) not in opened:
                continue
            for inner in _bodies(session, block, pc):
                inner.shown = list(range(min(room, len(inner.graph.nodes) + 1)))
                room -= len(inner.shown)
                block.inside.setdefault(pc, []).append(inner)
                waiting.append(inner)
                yield inner


def _bodies(session: Session, block: ShownBlock, pc: int) -> Iterator[ShownBlock]:
    if pc == len(block.graph.nodes):
        return
    node, name, frame = block.graph.nodes[pc], block.statement_id(pc), block.origin.frame
    micro = frame is not None and frame.place.micro is not None
    graphs = frame.callees if frame is not None and micro else session.program.target.program.graphs
    if (called := node.called) is not None and called in graphs:
        yield ShownBlock(name, graphs[called], (called,), index_of(session, graphs[called]), block, pc)
    for number, graph in enumerate(node.subgraphs):
        path = *block.path, pc, number
        yield ShownBlock(f"{name}.{number}", graph, path, index_of(session, graph), block, pc)


# -- data flow ----------------------------------------------------------------------------------


def sources(block: ShownBlock, name: str) -> list[ValueSource]:
    """The statements, shown or not, that produce a value visible in a block; inside open blocks too."""
    found: dict[tuple[str, int, str, bool], ValueSource] = {}
    waiting, seen = [(block, name, False)], set()
    while waiting:
        block, name, carried = waiting.pop()
        if (block, name) in seen:
            continue
        seen.add((block, name))
        pc = block.definition(name)
        if pc is None:
            further = _from_outside(block, name, carried)
            if block.outer is None and any(value.name == name for value in block.graph.inputs):
                found[(block.id, -1, name, carried)] = ValueSource(block, -1, name, carried)
        else:
            further = _from_inside(block, pc, name, carried)
            if pc not in block.inside:
                found[(block.id, pc, name, carried)] = ValueSource(block, pc, name, carried)
        waiting += further
    return list(found.values())


def _from_inside(block: ShownBlock, pc: int, name: str, carried: bool) -> list[tuple[ShownBlock, str, bool]]:
    """The sources of a result of a statement that is shown as its blocks."""
    results = [value.name for value in block.graph.nodes[pc].outputs]
    index = results.index(name)
    return [
        (inner, inner.graph.outputs[index].name, carried)
        for inner in block.inside.get(pc, ())
        if index < len(inner.graph.outputs)
    ]


def _from_outside(block: ShownBlock, name: str, carried: bool) -> list[tuple[ShownBlock, str, bool]]:
    """The sources of an input of a block, or of a value captured from the enclosing block."""
    if block.outer is None:
        return []
    inputs = [value.name for value in block.graph.inputs]
    if name not in inputs:
        return [(block.outer, name, carried)] if block.kind in ("loop", "branch") else []
    index, node = inputs.index(name), block.outer.graph.nodes[block.pc]
    found = [(block.outer, given, carried) for given in _given(block, node, index)]
    if block.kind == "loop" and 1 <= index <= len(block.graph.outputs):
        found.append((block, block.graph.outputs[index - 1].name, True))
    return found


def _given(block: ShownBlock, node: Node, index: int) -> Iterator[str]:
    if block.kind == "loop" and index == 0:
        return  # the iteration number
    operands = [each for each in node.inputs if each is not None] if block.kind == "micro" else node.inputs
    if index < len(operands) and isinstance(operands[index], str):
        yield operands[index]  # type: ignore[misc]


MOST_OPENED = 4096
"""Expanded statements of one request."""


class GraphArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of statements to replace with their blocks (at most 4096); `all` replaces all statements."""

    open: list[str] = []
    all: bool = False


class _Everything:
    """Contains all ids."""

    def __contains__(self, name: object) -> bool:
        return True


class GraphStateArguments(msgspec.Struct, frozen=True, kw_only=True):
    statistics: bool = False


@request("nncdbg/graph", when=LIVE, values=True, arguments=GraphArguments, reads=True)
def graph(session: Session, arguments: GraphArguments) -> dict[str, Any]:
    """Return the whole graph: `nodes` in program order, `edges`, `blocks`, `source` and `leftOut`.

    Each node has `id`, `block`, `kind`, `label`, `values`, `type` and `line`, and `aside` if it only
    initializes or updates `states`, or has no operands.  Each edge is `[from, to, value, carried]`.  `from`
    and `to` are positions in `nodes`, or -1 for an input.
    """
    if len(arguments.open) > MOST_OPENED:
        raise UsageError(
            f"cannot open {len(arguments.open)} statements at once",
            hint=f"open at most {MOST_OPENED} statements",
        )
    opened = _Everything() if arguments.all else frozenset(arguments.open)
    blocks, target = whole(session, opened), session.program.target
    places = list(_in_order(blocks[0]))
    states = dict.fromkeys(state.value.name for state in target.program.states)
    number = {(block, pc): index for index, (block, pc) in enumerate(places)}
    return {
        "source": session.program.sources.of_place(target.frame(target.frame(0).depth).place),
        "blocks": [_block(block) for block in blocks],
        "nodes": [_node(session, block, pc, states) for block, pc in places],
        "states": [spelled(name) for name in states],
        "edges": list(_edges(session, places, number)),
        "leftOut": sum(len(block.graph.nodes) + 1 - len(block.shown) for block in blocks),
    }


def _in_order(block: ShownBlock) -> Iterator[tuple[ShownBlock, int]]:
    """The statements in the order of the program; those of an expanded block replace its statement."""
    for pc in block.shown:
        inner = block.inside.get(pc)
        if inner is None:
            yield block, pc
        else:
            for each in inner:
                yield from _in_order(each)


def _block(block: ShownBlock) -> dict[str, Any]:
    outer = block.outer
    return {
        "id": block.id,
        "parent": None if outer is None else outer.id,
        "node": None if outer is None else outer.statement_id(block.pc),
        "title": block.title,
        "kind": block.kind,
    }


def _node(session: Session, block: ShownBlock, pc: int, states: Container[str]) -> dict[str, Any]:
    type_ = "" if pc == len(block.graph.nodes) else _type(block, block.graph.nodes[pc])
    fields = {"block": block.id, "type": type_, **block.statement(session, pc)}
    return {**fields, "aside": True} if _is_aside(block, pc, states) else fields


def _is_aside(block: ShownBlock, pc: int, states: Container[str]) -> bool:
    """Whether a statement initializes or updates states, or computes a constant."""
    if pc == len(block.graph.nodes):
        return False
    node = block.graph.nodes[pc]
    if node.kind is not Kind.OP:
        return node.kind is Kind.UPDATE
    if block.outer is None and node.outputs and all(value.name in states for value in node.outputs):
        return True
    return not (_operands(node) or _DRAWN.search(node.op))


def _type(block: ShownBlock, node: Node) -> str:
    """The type of the first result, as far as it is known."""
    if not node.outputs:
        return ""
    value = node.outputs[0]
    inferred = block.frame.types.get(value.name) if block.frame is not None else None
    return str(inferred or value.type or "")


def _edges(
    session: Session, places: Sequence[tuple[ShownBlock, int]], number: dict[tuple[ShownBlock, int], int]
) -> Iterator[list[Any]]:
    for to, (block, pc) in enumerate(places):
        session.queue.check_cancelled()
        found = (each for name in block.reads(pc) for each in sources(block, name))
        for source in dict.fromkeys(found):
            given = -1 if source.pc < 0 else number.get((source.block, source.pc))
            if given is not None:
                yield [given, to, spelled(source.name), source.carried]


@request("nncdbg/graphState", when=LIVE, values=True, arguments=GraphStateArguments, reads=True)
def graph_state(session: Session, arguments: GraphStateArguments) -> dict[str, Any]:
    """Return the state of the graph: `stack`, `ended`, `flags`, and `statistics` if requested.

    `stack` lists `block` and `pc`, outermost frame first.  `flags` maps a statement to `nan` or `inf`, by
    its latest result, also in layers that have returned.  `statistics` maps a statement to the largest
    absolute value, mean, standard deviation and share of zeros of its first result.  They are the logged
    statistics: no tensor is read for them.
    """
    blocks = on_the_stack(session, ())
    glance = Glance(session.program.shown, False, session.queue.check_cancelled)
    flags: dict[str, str] = {}
    statistics: dict[str, list[float | None]] = {}
    live = (_summaries(session, glance, block) for block in blocks)
    summaries: dict[str, Summary] = {}
    for name, summary in chain(*live, _finished_summaries(session, glance, blocks)):
        summaries.setdefault(name, summary)
    for name, summary in summaries.items():
        if summary.nan or summary.posinf or summary.neginf:
            flags[name] = "nan" if summary.nan else "inf"
        if arguments.statistics:
            figures: list[float | None] = [None] * 4
            if summary.min is not None and summary.max is not None:
                zeros = summary.zero / max(1, summary.count)
                figures = [max(-summary.min, summary.max), summary.mean, summary.std, zeros]
            statistics[name] = figures
    return {
        "stack": [{"block": block.id, "pc": block.here} for block in blocks],
        "ended": session.program.target.now.ended,
        "flags": flags,
        **({"statistics": statistics} if arguments.statistics else {}),
    }


def _summaries(session: Session, glance: Glance, block: ShownBlock) -> Iterator[tuple[str, Summary]]:
    """The logged statistics of the first result of each executed statement of a block, by its id."""
    assert block.frame is not None, "the block is on the stack"
    target, frame = session.program.target, block.frame.number
    first = enumerate(block.index.results[: block.frame.place.pc])
    results = {pc: number for pc, number in first if number is not None}
    for pc, content in zip(results, target.contents(results.values(), frame), strict=True):
        if (summary := _summary(glance, content)) is not None:
            yield block.statement_id(pc), summary


def _summary(glance: Glance, content: Any) -> Summary | None:
    return glance.at_hand(content) if is_tensor(content) and not is_text(content) else None


def _finished_summaries(
    session: Session, glance: Glance, stack: Sequence[ShownBlock]
) -> Iterator[tuple[str, Summary]]:
    """The same of the latest visit of each block that is not on the stack, latest first."""
    visits = Counter(block.id for block in stack for _ in range(_VISITS))
    for block in islice(session.program.target.finished(), MOST_FINISHED):
        session.queue.check_cancelled()
        name = _finished_id(stack[0].id, block)
        visits[name] += 1
        if visits[name] > _VISITS:
            continue
        for pc, content in block.results:
            if (summary := _summary(glance, content)) is not None:
                yield f"{name}/{pc}", summary


_VISITS = 2
"""Considered visits of a block: the last iteration of a loop may have executed only some statements."""


def _finished_id(root: str, block: FinishedBlock) -> str:
    """The id of the block, as that of a `ShownBlock` in its place."""
    name = root
    inner = (*(path for path, _ in block.calls[1:]), block.path)
    for (_, pc), path in zip(block.calls, inner, strict=True):
        name = f"{name}/{pc}.{path[-1]}" if len(path) > 1 else f"{name}/{pc}"
    return name


MOST_TOGGLED = 64
"""Statements that are expanded or collapsed by the user, in one request."""

MOST_INPUTS = 12
"""Drawn inputs of the outermost graph."""


class MapArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Ids of nodes to expand, and of nodes on the stack to collapse (at most 64 in total)."""

    open: list[str] = []
    closed: list[str] = []


@dataclass(slots=True)
class Drawing:
    """Builder of one answer."""

    session: Session
    glance: Glance
    blocks: Sequence[ShownBlock]
    _flags: dict[tuple[ShownBlock, int], dict[str, str]] = field(default_factory=dict)

    def flag(self, block: ShownBlock, pc: int, name: str) -> str | None:
        """Return nan or inf, if a result of a statement of a block, or an input (`pc` -1), holds one."""
        if (block, pc) not in self._flags:
            self._flags[block, pc] = dict(self._find_flags(block, pc))
        return self._flags[block, pc].get(name)

    def _find_flags(self, block: ShownBlock, pc: int) -> Iterator[tuple[str, str]]:
        if block.frame is None or pc == len(block.graph.nodes):
            return
        target, frame = self.session.program.target, block.frame.number
        if pc < 0:
            values, numbers = block.graph.inputs, target.cells("inputs", frame)
        else:
            values, numbers = block.graph.nodes[pc].outputs, target.cells("results", frame, pc)
        names = [value.name for value in values if value.name or pc >= 0]
        for name, content in zip(names, target.contents(numbers, frame), strict=True):
            summary = self.glance.at_hand(content) if is_tensor(content) and not is_text(content) else None
            if summary is not None and (summary.nan or summary.posinf or summary.neginf):
                yield name, "nan" if summary.nan else "inf"

    # -- blocks and statements ---------------------------------------------------------------

    def cluster(self, block: ShownBlock) -> dict[str, Any]:
        title = block.title if block.frame is None else block.frame.title
        first, last = (block.shown[0], block.shown[-1]) if block.shown else (0, -1)
        return {
            "id": block.id,
            "parent": block.outer.id if block.outer is not None else None,
            "node": block.outer.statement_id(block.pc) if block.outer is not None else None,
            "title": title,
            "kind": block.kind,
            "onStack": block.frame is not None,
            "before": first,
            "after": len(block.graph.nodes) - last if block.shown else len(block.graph.nodes) + 1,
        }

    def node(self, block: ShownBlock, pc: int) -> dict[str, Any]:
        outputs = block.graph.nodes[pc].outputs if pc < len(block.graph.nodes) else ()
        flags = [self.flag(block, pc, value.name) for value in outputs]
        fields = {
            **block.statement(self.session, pc),
            "cluster": block.id,
            "source": self.blocks.index(block.origin),
            "state": self._state(block, pc),
        }
        if block.frame is not None and pc == block.here and block.frame.number:
            # With the iteration of a running loop.
            fields["label"] = self.session.program.target.frame(block.frame.number - 1).title
        worst = next((each for each in ("nan", "inf") if each in flags), None)
        return fields if worst is None else {**fields, "flag": worst}

    def _state(self, block: ShownBlock, pc: int) -> str:
        if block.frame is None:
            outer = block.outer
            assert outer is not None, "an opened node needs a parent"
            state = self._state(outer, block.pc)
            return "next" if state == "current" else state
        if pc != block.here:
            return "done" if pc < block.here else "next"
        return "current"

    # -- edges ---------------------------------------------------------------------------------

    def edges(self) -> Iterator[dict[str, Any]]:
        """Edges from the statement that produces a value to each shown statement that reads it."""
        shown = {(block, pc) for block in self.blocks for pc in block.shown if pc not in block.inside}
        for block in self.blocks:
            self.session.queue.check_cancelled()
            for pc in block.shown:
                if (block, pc) in shown:
                    found = (each for name in block.reads(pc) for each in sources(block, name))
                    for source in dict.fromkeys(found):
                        if (source.block, source.pc) in shown or source.pc < 0:
                            yield self._edge(source, block.statement_id(pc))

    def _edge(self, source: ValueSource, to: str) -> dict[str, Any]:
        given = source.pc < 0
        edge: dict[str, Any] = {
            "from": _input_id(source) if given else source.block.statement_id(source.pc),
            "to": to,
            "value": spelled(source.name),
        }
        if source.carried:
            edge["carried"] = True
        flag = self.flag(source.block, source.pc, source.name)
        return edge if flag is None else {**edge, "flag": flag}

    def inputs(self, edges: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The inputs of the outermost block that shown statements read."""
        first = self.blocks[0]
        read = {each["from"] for each in edges}
        found = (ValueSource(first, -1, value.name) for value in first.graph.inputs if value.name)
        assert first.origin.frame is not None
        listing = first.origin.frame.listing
        line = self.session.client.outgoing_line(listing.header_line(first.path))
        nodes = []
        for each in islice((each for each in found if _input_id(each) in read), MOST_INPUTS):
            fields: dict[str, Any] = {"id": _input_id(each), "cluster": first.id, "kind": "input"}
            fields |= {"label": spelled(each.name), "values": [], "line": line, "source": 0, "state": "done"}
            flag = self.flag(first, -1, each.name)
            nodes.append(fields if flag is None else {**fields, "flag": flag})
        return nodes


def _input_id(source: ValueSource) -> str:
    return f"{source.block.id}:{source.name}"


@request("nncdbg/map", when=LIVE, values=True, arguments=MapArguments, reads=True)
def map_(session: Session, arguments: MapArguments) -> dict[str, Any]:
    """Return `nodes`, `clusters` and `edges` around the current statement, and their `sources`.

    Each node has `state` (`done`, `current`, `next`), `flag` (`nan`, `inf`) and `line`.
    """
    if len(arguments.open) + len(arguments.closed) > MOST_TOGGLED:
        raise UsageError(
            f"{len(arguments.open) + len(arguments.closed)} nodes are too many for one request",
            hint=f"open or close at most {MOST_TOGGLED} nodes",
        )
    blocks = neighbourhood(session, frozenset(arguments.open), frozenset(arguments.closed))
    drawing = Drawing(session, Glance(session.program.shown, False, session.queue.check_cancelled), blocks)
    edges = list(drawing.edges())
    inputs = drawing.inputs(edges)
    nodes = [drawing.node(block, pc) for block in blocks for pc in block.shown if pc not in block.inside]
    known = {each["id"] for each in (*inputs, *nodes)}
    texts = session.program.sources
    return {
        "clusters": [drawing.cluster(block) for block in blocks],
        "nodes": [*inputs, *nodes],
        "edges": [each for each in edges if each["from"] in known],
        "sources": [texts.of_place(block.frame.place) for block in blocks if block.frame is not None],
    }
