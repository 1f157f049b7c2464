"""Plays a schedule: a legal order of a scheduled program, as a program that runs in the ordinary engine.

An order is legal if the streams, the events, `begin` and the host allow it; nothing else orders statements,
so that races show.  A statement that runs too early, or whose operand's bytes another value has by then,
reads ``nncdbg.Remains``: what the memory holds at that moment.  Each kernel runs at one moment, and all
streams are idle at control flow, between the blocks of which no statement moves.

`Contents` is what the memory of each value holds, byte by byte.  The state follows from the order alone: no
value is computed.  A read finds its value, or `Piece`s of other values, and poison in the bytes that nothing
has written or that were freed.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from nncdbg.comparison.launches import Access, Memory, PlacedPlan
from nncdbg.comparison.schedule_problems import ScheduleProblem
from nncdbg.engine.differentiation.expansion import with_backward_graphs
from nncdbg.engine.schedules.flattening import Flat, FlatBlock, FlatStatement, flattened
from nncdbg.engine.schedules.races import Order, OrderedSegment
from nncdbg.errors import UsageError
from nncdbg.expression import spelled
from nncdbg.ir.names import claimed_name
from nncdbg.ir.records import (
    Array,
    Attribute,
    Graph,
    Location,
    Node,
    Operand,
    Path,
    Program,
    TensorType,
    Value,
)
from nncdbg.ir.rewrite import copied_node, rewrite
from nncdbg.ir.streams import Site, scheduled
from nncdbg.process.collector import collector_paused
from nncdbg.text.listing import Listing

_OUTSIDE, _FREED = -1, -2


class Piece(NamedTuple):
    """`size` bytes from byte `offset` of value `name`, at byte `start` of what is read."""

    name: str
    start: int
    offset: int
    size: int


class Contents:
    """The memory of the values of a block while it runs.

    `memory` is that of each value, `made` are the values that the block computes, and `owners` maps a value
    that shares the bytes of another one to it.  Values from outside the block are intact when it begins.
    """

    def __init__(
        self,
        memory: Mapping[str, Memory],
        made: set[str],
        owners: Mapping[str, str],
    ) -> None:
        self.memory, self.made, self.owners = memory, made, owners
        self._freed: set[str] = set()
        self._computed: set[str] = set()
        placed = [each for each in memory.values() if each.buffer == 0]
        bounds = sorted({bound for each in placed for bound in (each.begin, each.end)})
        self._place = {bound: at for at, bound in enumerate(bounds)}
        self._bounds = bounds
        self._writers = np.full(len(bounds), _OUTSIDE, np.int64)
        """The number of the value that has written each range of bytes."""
        self._written: list[str] = []
        self._seen: dict[str, Array] = {}
        """The writers of the bytes of each value when its statement ended."""

    def run(self, names: Sequence[str], accesses: Sequence[Access]) -> None:
        """Run a statement that computes these values with these accesses."""
        frees = [access.memory for access in accesses if access.frees]
        writes = {access.memory.name for access in accesses if access.writes and not access.frees}
        for name in names:
            memory = self.memory.get(name)
            if memory is None:
                continue
            self._computed.add(name)
            self._freed.discard(name)
            if memory.buffer == 0:
                if name in writes:
                    self._range(memory)[...] = len(self._written)
                    self._written.append(name)
                self._seen[name] = self._range(memory).copy()
        for memory in frees:
            if memory.buffer == 0:
                self._range(memory)[...] = _FREED
            else:
                self._freed.add(memory.name)

    def read(self, name: str) -> tuple[Piece, ...] | None:
        """Return what the memory of a value holds: None for the value itself."""
        memory = self.memory.get(name)
        if memory is None:
            return None
        if memory.buffer != 0:
            return None if self.computed(name) and name not in self._freed else ()
        now = self._range(memory)
        if name in self.made:
            seen = self._seen.get(name)
            if seen is not None and np.array_equal(seen, now):
                return None
        elif (now == _OUTSIDE).all():
            return None
        return self._pieces(name, memory, now)

    def computed(self, name: str) -> bool:
        """Return whether the statement of a value has run; True for values from outside the block."""
        return name in self._computed or name not in self.made

    def _range(self, memory: Memory) -> Array:
        return self._writers[self._place[memory.begin] : self._place[memory.end]]

    def _pieces(self, name: str, memory: Memory, writers: Array) -> tuple[Piece, ...]:
        """Return the parts of what is read, one per run of bytes with the same writer."""
        owner = self.owners.get(name, name)
        outside = owner if owner not in self.made else None
        first = self._place[memory.begin]
        found: list[Piece] = []
        for at, writer in enumerate(writers.tolist()):
            begin, end = self._bounds[first + at], self._bounds[first + at + 1]
            source = outside if writer == _OUTSIDE else None if writer == _FREED else self._written[writer]
            if source is None:
                continue
            start, offset = begin - memory.begin, begin - self.memory[source].begin
            last = found[-1] if found else None
            if last and last.name == source and last.start + last.size == start:
                found[-1] = last._replace(size=last.size + end - begin)
            else:
                found.append(Piece(source, start, offset, end - begin))
        return tuple(found)


Orders = tuple[Order, ...]
"""The order of each segment of a program."""

SyncPoint = tuple[int, int]
"""A place where the host may wait for all streams: a segment, and the number of the launch after it."""


def played(
    program: Program,
    plan: PlacedPlan | None = None,
    *,
    seed: int | None = None,
    race: ScheduleProblem | None = None,
) -> Program:
    """Return a legal order of a scheduled program, as a program; without arguments, the order of the text.

    With `plan`, the values that it places share memory.  `seed` draws the order: equal seeds give equal
    programs.  `race` is a race that `validate` has found: its second statement runs before its first.
    Raises UsageError for a race that no order of the player shows, and if a statement reads a value of
    unknown size before it is written.
    """
    player = SchedulePlayer(program, plan)
    if race is not None:
        return player.program(player.showing(race))
    return player.program(player.issued() if seed is None else player.drawn(seed))


class SchedulePlayer:
    """The legal orders of a scheduled program.

    `types` are the types of values by their flat names, for values whose declared types have no sizes.  At
    each of `syncs`, the host waits for all streams.
    """

    @collector_paused()
    def __init__(
        self,
        program: Program,
        plan: PlacedPlan | None = None,
        *,
        types: Mapping[str, TensorType] | None = None,
        syncs: Collection[SyncPoint] = (),
    ) -> None:
        self.source = with_backward_graphs(program)
        self.types = types or {}
        self.flat = flattened(self.source, plan)
        self.segments: list[OrderedSegment] = []
        self.sites: dict[str, Site] = {}
        """The statement of the source that computes each value, by its flat name."""
        self.calls: dict[str, Site] = {}
        """The statement of the outermost graph that computes each value: its own, or a call."""
        self.statements: list[list[FlatStatement]] = []
        """The statements of each segment."""
        self._syncs, self._natural = frozenset(syncs), 0
        self._parts: dict[int, list[tuple[int, list[FlatStatement]]]] = {}
        """For each block by identity: its segments by number, with their statements."""
        for block in _blocks(self.flat.graphs.values()):
            self._split(block)

    def issued(self) -> Orders:
        """Return the order in which the host issues the statements, that of the text."""
        return tuple(segment.issued() for segment in self.segments)

    def drawn(self, seed: int) -> Orders:
        """Return the orders that a seed draws."""
        draw = random.Random(seed)
        return tuple(segment.drawn(draw) for segment in self.segments)

    def showing(self, race: ScheduleProblem) -> Orders:
        """Return orders in which the second statement of a race runs before its first."""
        first = race.first
        for number, segment in enumerate(self.segments):
            for one, other in segment.pairs if first is not None else ():
                sites = segment.launches[one].site, segment.launches[other].site
                if first is not None and sites == (first.site, race.second.site):
                    orders = [*self.issued()]
                    orders[number] = segment.reversed_pair(one, other)
                    return tuple(orders)
        raise UsageError(
            "no order of the player shows this race",
            hint="it shows races of values between two points of control flow",
        )

    def outcome(self, orders: Orders) -> tuple[bool, ...]:
        """Return what decides all values: for each pair of unordered accesses, which runs first."""
        pairs = zip(self.segments, orders, strict=True)
        return tuple(swapped for segment, order in pairs for swapped in segment.outcome(order))

    def program(self, orders: Orders) -> Program:
        """Return the program that runs in these orders."""
        return _Playing(self, orders).program()

    def reference(self) -> Program:
        """Return the order of the text where each value has memory of its own, which is never freed."""
        return _Playing(self, self.issued(), intact=True).program()

    def parts(self, block: FlatBlock) -> Sequence[tuple[int, list[FlatStatement]]]:
        """Return the segments of a block by number, with their statements."""
        return self._parts[id(block)]

    def _split(self, block: FlatBlock) -> None:
        parts = self._parts[id(block)] = []
        statements: list[FlatStatement] = []
        begin = 0
        for at, each in enumerate(block.statements):
            if each.node is not None:
                for value in each.node.outputs:
                    self.sites.setdefault(value.name, each.launch.site)
                    self.calls.setdefault(value.name, each.at or each.launch.site)
            if statements and (self._natural, at - begin) in self._syncs:
                self._close(parts, statements)
                statements = []
            statements.append(each)
            if each.closes or at == len(block.statements) - 1:
                self._close(parts, statements)
                statements, begin = [], at + 1
                self._natural += 1

    def _close(self, parts: list[tuple[int, list[FlatStatement]]], statements: list[FlatStatement]) -> None:
        parts.append((len(self.segments), statements))
        self.segments.append(OrderedSegment([each.launch for each in statements]))
        self.statements.append(statements)


def _blocks(graphs: Iterable[FlatBlock]) -> Iterator[FlatBlock]:
    waiting = [*graphs]
    while waiting:
        block = waiting.pop()
        yield block
        waiting += [inner for each in block.statements for inner in each.blocks]


@dataclass(slots=True)
class _Emitted:
    """A block of the played program while it is made."""

    block: FlatBlock
    contents: Contents
    numbers: dict[int, int]
    """The number of each statement in the text, by its identity."""
    nodes: list[Node] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    inside: list[tuple[_Emitted, ...]] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)

    def add(self, node: Node, number: int, inside: tuple[_Emitted, ...] = ()) -> None:
        self.nodes.append(node)
        self.places.append(number)
        self.inside.append(inside)

    def graph(self) -> Graph:
        """Return the block as a graph; the innermost blocks are built first."""
        nodes = tuple(
            replace(node, subgraphs=tuple(each.graph() for each in inside))
            for node, inside in zip(self.nodes, self.inside, strict=True)
        )
        outputs = tuple(
            replace(value, name=self.results[name])
            for value, name in zip(self.block.graph.outputs, self.block.results, strict=True)
        )
        return replace(self.block.graph, nodes=nodes, outputs=outputs)


class _Playing:
    """Emits the statements of a program in given orders."""

    def __init__(self, player: SchedulePlayer, orders: Orders, *, intact: bool = False) -> None:
        self.player, self.flat, self.orders, self.intact = player, player.flat, orders, intact
        self.used = set(self.flat.used)
        self.types = _types(self.flat)

    def program(self) -> Program:
        source = self.flat.program
        graphs, places = {}, {}
        for name, block in self.flat.graphs.items():
            made = self.block(block)
            graph = self.named(made.graph(), block.graph, made.places)
            graphs[name] = graph
            places.update(_places((name,), (name,), made, len(graph.nodes)))
        return replace(source, graphs=graphs, listing=None, prefixes=None, places=places)

    def block(self, block: FlatBlock) -> _Emitted:
        numbered = [each for each in block.statements if each.node is not None]
        made = {value.name for each in numbered if each.node for value in each.node.outputs}
        numbers = {id(each): at for at, each in enumerate(numbered)}
        contents = Contents(block.memory, made, block.owners)
        emitted = _Emitted(block, contents, numbers)
        for number, statements in self.player.parts(block):
            self.segment(emitted, statements, self.orders[number])
        for name in block.results:
            if name not in emitted.results:
                emitted.results[name] = self.read(emitted, name, len(numbered), "return")
        return emitted

    def segment(self, emitted: _Emitted, statements: Sequence[FlatStatement], order: Order) -> None:
        closing: tuple[FlatStatement, dict[str, str]] | None = None
        for at in order:
            each = statements[at]
            number = emitted.numbers.get(id(each), len(emitted.numbers))
            reads = [access.memory.name for access in each.launch.accesses if not access.writes]
            word = each.node.op if each.node is not None else "return"
            found = {name: self.read(emitted, name, number, word) for name in reads}
            if each.closes:
                closing = each, found
                if each.node is None:
                    emitted.results.update(found)
            elif each.node is not None:
                emitted.add(_reading(each.node, found), number)
            names = [value.name for value in each.node.outputs] if each.node is not None else []
            if not each.closes or each.node is None:
                emitted.contents.run(names, each.launch.accesses)
        if closing is not None and closing[0].node is not None:
            self.close(emitted, *closing)

    def close(self, emitted: _Emitted, each: FlatStatement, found: dict[str, str]) -> None:
        """Emit a statement of control flow, after all of its segment."""
        node = each.node
        assert node is not None
        number = emitted.numbers[id(each)]
        for name in node.inputs:
            if isinstance(name, str) and name not in found:
                found[name] = self.read(emitted, name, number, node.op)
        inside = tuple(self.block(block) for block in each.blocks)
        emitted.add(_reading(node, found), number, inside)
        emitted.contents.run([value.name for value in node.outputs], each.launch.accesses)

    # -- reads -----------------------------------------------------------------------------------------

    def read(self, emitted: _Emitted, name: str, number: int, reader: str) -> str:
        """Return the name of what a read of a value finds."""
        pieces = None if self.intact else emitted.contents.read(name)
        if pieces is None:
            return name
        stale = claimed_name(f"{name}.stale", self.used)
        comment = f"{reader} reads {spelled(name)} "
        if not emitted.contents.computed(name):
            comment += "before it is written"
        elif holders := [each for each in dict.fromkeys(piece.name for piece in pieces) if each != name]:
            comment += f"after its memory was used for {', '.join(map(spelled, holders))}"
        else:
            comment += "after its memory was freed"
        emitted.add(replace(self.remains(name, stale, pieces, reader), comment=comment), number)
        return stale

    def remains(self, name: str, stale: str, pieces: Sequence[Piece], reader: str) -> Node:
        type_ = self.player.types.get(name) or self.types.get(name)
        if not isinstance(type_, TensorType) or not type_.concrete or type_.dtype == "str":
            raise UsageError(
                f"{reader} reads {spelled(name)} before it is written, and its size is unknown",
                hint="declare the type of the value with sizes, such as f32[4,8]",
            )
        attributes: dict[str, Attribute] = {"dtype": type_.dtype, "shape": type_.shape or ()}
        if pieces:
            attributes["starts"] = tuple(piece.start for piece in pieces)
            attributes["offsets"] = tuple(piece.offset for piece in pieces)
            attributes["sizes"] = tuple(piece.size for piece in pieces)
        return Node(
            "nncdbg.Remains",
            tuple(piece.name for piece in pieces),
            (Value(stale, type_),),
            attributes,
        )

    # -- results ---------------------------------------------------------------------------------------

    def named(self, graph: Graph, source: Graph, places: list[int]) -> Graph:
        """Return a graph whose outputs have the names of the source, whatever its `return` reads."""
        taken = {value.name for value in graph.inputs}
        new: dict[str, str] = {}
        copies: list[Node] = []
        outputs = []
        for value, found in zip(source.outputs, graph.outputs, strict=True):
            outputs.append(value)
            if value.name == found.name:
                continue
            if value.name in taken:
                outputs[-1] = found
                continue
            new[value.name] = claimed_name(f"{value.name}.late", self.used)
            copies.append(Node("Identity", (found.name,), (value,)))
            places.append(len(places))
        if not copies:
            return replace(graph, outputs=tuple(outputs))
        names: dict[str, Operand] = {}
        nodes = [copied_node(node, names, lambda name: new.get(name, name)) for node in graph.nodes]
        return replace(graph, nodes=(*nodes, *copies), outputs=tuple(outputs))


def _types(flat: Flat) -> dict[str, object]:
    types: dict[str, object] = {}
    for block in _blocks(flat.graphs.values()):
        types.update({value.name: value.type for value in block.graph.inputs})
        for each in block.statements:
            if each.node is not None:
                types.update({value.name: value.type for value in each.node.outputs})
    return types


def _reading(node: Node, found: Mapping[str, str]) -> Node:
    if all(name == other for name, other in found.items()):
        return node
    return replace(
        node,
        inputs=tuple(found.get(name, name) if isinstance(name, str) else name for name in node.inputs),
    )


def _places(path: Path, whole: Path, made: _Emitted, count: int) -> dict[Path, tuple[Path, tuple[int, ...]]]:
    """Return for each block of the played program that of the flat text, and the numbers of statements."""
    found: dict[Path, tuple[Path, tuple[int, ...]]] = {}
    waiting = [(path, whole, made)]
    while waiting:
        path, whole, made = waiting.pop()
        found[path] = whole, tuple(made.places)
        for pc, (number, inside) in enumerate(zip(made.places, made.inside, strict=False)):
            for at, block in enumerate(inside):
                waiting.append(((*path, pc, at), (*whole, number, at), block))
    return found


def in_order(program: Program, order: int) -> Program:
    """Return the legal order of a scheduled program that the seed `order` draws, as a program.

    It is the order that `nncdbg races --order` plays: equal seeds give equal programs.
    Statements of graph text are located at their lines, so that breakpoints there also bind in the order.
    Raises UsageError for a program without a schedule, and if a statement reads a value of unknown size
    before it is written.
    """
    if not scheduled(program):
        raise UsageError(
            f"{program.source or 'the program'} has no schedule, so it has no other order than its text",
            hint="leave out the order, or write a schedule: nncdbg print MODEL --streams 4 -o scheduled.nnc",
        )
    listing = program.listing
    if listing is not None and listing.file is not None:
        graphs = {
            name: rewrite(graph, partial(_located, listing), key=name)
            for name, graph in program.graphs.items()
        }
        program = replace(program, graphs=graphs)
    return played(program, seed=order)


def _located(listing: Listing, path: Path, pc: int, node: Node) -> Node:
    """Return a statement that has the location of its line if it has none."""
    return replace(node, location=node.location or Location(listing.file, listing.line(path, pc)))
