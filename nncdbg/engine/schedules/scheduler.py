"""Makes a schedule for a program: streams by dependency and device, control flow from the host.

A statement continues the stream whose latest statement it reads, so that chains stay on one stream; another
one goes to the stream that has been idle longest.  Statements of other streams are awaited by events, unless
an earlier wait of the stream includes them.  Blocks meet at their edges: a called graph begins after all
before it and ends before all after it, an iteration begins after all of the one before, and the host waits
for what a condition needs.  With a memory plan, the edges that the reuse of its bytes needs are added at the
end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from nncdbg.comparison.launches import DEEPEST, PlacedPlan
from nncdbg.engine.schedules.validation import margins_of, validate, with_margins
from nncdbg.errors import UsageError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Graph, Node, Placement, Program
from nncdbg.ir.streams import HOST, Site

ROUNDS = 20
"""How often the schedule is checked again; an edge may order more than one race."""


def mended(program: Program, plan: PlacedPlan | None = None) -> Program:
    """Return a program whose schedule has no race, with the bytes of a memory plan.

    The order in which the host issues the statements stays.  Races that no event of this order can end
    remain, such as those with a statement that waits before the record of an earlier iteration.
    """
    for _ in range(ROUNDS):
        edges = {}
        for problem in validate(program, plan).problems:
            if problem.repair is not None:
                edges[problem.repair.recorder.site, problem.repair.waiter.site] = problem.repair.event
        if not edges:
            break
        changed = with_edges(program, edges)
        if changed == program:
            break
        program = changed
    return program


def with_edges(program: Program, edges: dict[tuple[Site, Site], int | None]) -> Program:
    """Return a program in which one statement waits for another, by an event: for None, a new one."""
    margins = margins_of(program)
    latest = max((event for margin in margins.values() for event in margin.records), default=0)
    made: dict[Site, int] = {}
    for (recorder, waiter), event in edges.items():
        if event is None:
            if recorder not in made:
                latest += 1
                made[recorder] = latest
                before = margins.get(recorder, Placement())
                margins[recorder] = replace(before, records=(*before.records, latest))
            event = made[recorder]
        before = margins.get(waiter, Placement())
        if event not in before.waits:
            margins[waiter] = replace(before, waits=(*before.waits, event))
    return with_margins(program, margins)


MOST_STREAMS = 64


def with_schedule(
    program: Program,
    *,
    streams: int = 4,
    devices: Mapping[str, str] | None = None,
    plan: PlacedPlan | None = None,
) -> Program:
    """Return a program with a margin for each statement, for at most `streams` streams on each device.

    `devices` maps patterns of names of values, as `fnmatch` has them, to devices; the first match counts, and
    other statements run on device "".  The order in the text stays the order in which the host issues.
    Raises UsageError for a number of streams outside 1 to 64.
    """
    if not 1 <= streams <= MOST_STREAMS:
        raise UsageError(f"a schedule cannot have {streams} streams", hint=f"use 1 to {MOST_STREAMS}")
    made = _Streams(program, streams, devices or {}).program()
    return made if plan is None else mended(made, plan)


@dataclass(slots=True, eq=False)
class _Margin:
    """A margin while it is made, and the number of its statement on its stream.

    `known` are the positions on other streams that are known to have ended when it runs.
    """

    stream: int | None
    position: int = 0
    waits: list[int] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    known: Mapping[int, int] = field(default_factory=dict)

    def placement(self) -> Placement:
        return Placement(
            stream=self.stream,
            waits=tuple(self.waits),
            begins=tuple(self.begins),
            records=tuple(self.records),
        )


class _Streams:
    """The streams and events of a program."""

    def __init__(self, program: Program, most: int, devices: Mapping[str, str]) -> None:
        self.source = program
        self.most = most
        self.patterns = devices
        self.devices: dict[int, str] = {}
        self.events = 0
        self.states = {state.value.name for state in program.states}
        self.main = self.of("")[0]
        """The stream on which calls begin and end."""

    def program(self) -> Program:
        outermost = {run.graph for run in self.source.runs} | {self.source.entry}
        graphs = {
            name: _GraphSchedule(self, graph, outermost=name in outermost).graph()
            for name, graph in self.source.graphs.items()
        }
        named = {number: device for number, device in self.devices.items() if device}
        return replace(self.source, graphs=graphs, streams=named, listing=None)

    def event(self) -> int:
        self.events += 1
        return self.events

    def of(self, device: str) -> Sequence[int]:
        """Return the numbers of the streams of a device."""
        have = [number for number, other in self.devices.items() if other == device]
        while len(have) < self.most:
            have.append(len(self.devices))
            self.devices[have[-1]] = device
        return have

    def device(self, node: Node) -> str:
        for pattern, device in self.patterns.items():
            if any(fnmatchcase(value.name, pattern.removeprefix("%")) for value in node.outputs):
                return device
        return ""


@dataclass(slots=True)
class _Done:
    """A block whose margins are complete when its graph is."""

    source: Graph
    nodes: list[tuple[Node, _Margin, tuple[_Done, ...]]] = field(default_factory=list)
    end: _Margin | None = None

    def graph(self) -> Graph:
        nodes = tuple(
            replace(node, placement=margin.placement(), subgraphs=tuple(each.graph() for each in inside))
            for node, margin, inside in self.nodes
        )
        return replace(self.source, nodes=nodes, end=None if self.end is None else self.end.placement())


class _GraphSchedule:
    """The schedule of one graph with its blocks."""

    def __init__(self, streams: _Streams, graph: Graph, *, outermost: bool) -> None:
        self.streams = streams
        self.source = graph
        self.outermost = outermost
        self.positions: dict[int, int] = {}
        self.latest: dict[int, int] = {}
        """When each stream was used last, as a number of statements."""
        self.known: dict[int, dict[int, int]] = {}
        """The positions on other streams up to which each stream has waited."""
        self.origins: dict[str, _Margin] = {}
        """The margin after which each value exists."""
        self.readers: dict[str, list[_Margin]] = {}
        """The statements that have read each state since its last update."""
        self.open: list[dict[int, _Margin]] = []
        """The latest margin of each stream, for each open block."""
        self.entries: list[tuple[_Margin, set[int]]] = []
        """The beginning of an iteration of each open loop, and the streams that have waited for it."""

    def graph(self) -> Graph:
        done = _Done(self.source)
        self.open.append({})
        self.statements(done)
        ends = [*self.open[-1].values(), *self.of(value.name for value in self.source.outputs)]
        if self.outermost:
            done.end = _Margin(None)
            self.wait(done.end, ends)
            return done.graph()
        done.end = self.on(self.streams.main, ends)
        others = tuple(sorted(self.positions.keys() - {self.streams.main}))
        return replace(done.graph(), begin=Placement(stream=self.streams.main, begins=others))

    # -- margins ---------------------------------------------------------------------------------------

    def of(self, names: Iterable[object]) -> list[_Margin]:
        """Return the margins after which these values exist; operands without one exist already."""
        return [self.origins[name] for name in names if isinstance(name, str) and name in self.origins]

    def on(self, stream: int, after: Iterable[_Margin], *, records: list[int] | None = None) -> _Margin:
        """Return the margin of the next statement on a stream, which waits for others."""
        self.positions[stream] = position = self.positions.get(stream, 0) + 1
        self.latest[stream] = sum(self.positions.values())
        margin = _Margin(stream, position, records=[] if records is None else records)
        known = self.known.setdefault(stream, {})
        for other, ended in self.known.get(HOST, {}).items():
            known[other] = max(known.get(other, 0), ended)
        for entry, entered in self.entries:
            if stream not in entered:
                entered.add(stream)
                self.wait(margin, [entry])
        self.wait(margin, after)
        self.open[-1][stream] = margin
        return margin

    def wait(self, margin: _Margin, others: Iterable[_Margin]) -> None:
        """Let a margin wait for the ends of others that no earlier wait of its stream includes."""
        known = self.known.setdefault(HOST if margin.stream is None else margin.stream, {})
        for other in others:
            stream = other.stream
            if stream == margin.stream:
                continue
            if stream is not None and known.get(stream, 0) >= other.position > 0:
                continue
            if not other.records:
                other.records.append(self.streams.event())
            if other.records[0] not in margin.waits:
                margin.waits.append(other.records[0])
            for further, position in other.known.items():
                known[further] = max(known.get(further, 0), position)
            if stream is not None:
                known[stream] = max(known.get(stream, 0), other.position)
        margin.known = dict(known)

    def close(self, done: _Done, event: int) -> None:
        """End a branch or an iteration: record an event after all of it, on the stream of calls."""
        results = self.of(value.name for value in done.source.outputs)
        done.end = self.on(self.streams.main, [*self.open[-1].values(), *results], records=[event])

    def leave(self, node: Node, event: int) -> None:
        """Take an event as the end of a statement with blocks, or of a call."""
        end = _Margin(self.streams.main, records=[event])
        self.open[-1][self.streams.main] = end
        for value in node.outputs:
            self.origins[value.name] = end
        for state in self.streams.states:
            self.origins[state] = end
        self.readers.clear()

    # -- statements ------------------------------------------------------------------------------------

    def statements(self, done: _Done) -> None:
        if len(self.open) > DEEPEST:
            raise UsageError(f"blocks are nested more than {DEEPEST} levels deep", hint="use fewer levels")
        for node in done.source.nodes:
            if node.kind is Kind.IF:
                self.branch(done, node)
            elif node.kind is Kind.WHILE:
                self.loop(done, node)
            elif node.kind is Kind.BREAK:
                margin = _Margin(None)
                self.wait(margin, [*self.open[-1].values(), *self.of(node.inputs)])
                done.nodes.append((node, margin, ()))
            elif node.kind is Kind.CALL:
                event = self.streams.event()
                everything = [margin for block in self.open for margin in block.values()]
                margin = self.on(self.streams.main, [*everything, *self.of(node.inputs)], records=[event])
                done.nodes.append((node, margin, ()))
                self.leave(node, event)
                if (saved := node.attributes.get("saved")) is not None:
                    self.origins[str(saved)] = margin
            else:
                self.statement(done, node)

    def statement(self, done: _Done, node: Node) -> None:
        after = self.of(node.inputs)
        if node.kind is Kind.UPDATE:
            for value in node.outputs:
                after += [*self.readers.pop(value.name, ()), *self.of([value.name])]
        margin = self.on(self.choose(node), after)
        done.nodes.append((node, margin, ()))
        for name in node.inputs:
            if isinstance(name, str) and name in self.streams.states:
                self.readers.setdefault(name, []).append(margin)
        for value in node.outputs:
            self.origins[value.name] = margin

    def choose(self, node: Node) -> int:
        """Return the stream of a statement: one that it continues, else the one that was idle longest."""
        streams = self.streams.of(self.streams.device(node))
        for origin in self.of(node.inputs):
            stream = origin.stream
            if stream in streams and stream is not None and self.open[-1].get(stream) is origin:
                return stream
        return min(streams, key=lambda stream: self.latest.get(stream, -1))

    def branch(self, done: _Done, node: Node) -> None:
        margin = _Margin(None)
        self.wait(margin, self.of(node.inputs))
        event = self.streams.event()
        inside = []
        for source in node.subgraphs:
            with self.nested():
                inside.append(_Done(source))
                self.statements(inside[-1])
                self.close(inside[-1], event)
        done.nodes.append((node, margin, tuple(inside)))
        self.leave(node, event)

    def loop(self, done: _Done, node: Node) -> None:
        event = self.streams.event()
        margin = _Margin(None, records=[event])
        everything = [each for block in self.open for each in block.values()]
        self.wait(margin, [*everything, *self.of(node.inputs)])
        begin = _Margin(self.streams.main, records=[event])
        body = _Done(node.subgraphs[0])
        with self.nested():
            self.entries.append((begin, {self.streams.main}))
            for value in body.source.inputs:
                self.origins[value.name] = begin
            self.statements(body)
            self.close(body, event)
            self.entries.pop()
        done.nodes.append((node, margin, (body,)))
        self.leave(node, event)

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Open a block; what the streams learn in it is not known after it."""
        known = {stream: dict(others) for stream, others in self.known.items()}
        entered = [set(streams) for _, streams in self.entries]
        self.open.append({})
        yield
        self.open.pop()
        self.known = known
        self.entries = [(entry, have) for (entry, _), have in zip(self.entries, entered, strict=False)]
