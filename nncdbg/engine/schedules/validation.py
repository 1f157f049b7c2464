"""All problems of a schedule, found without a run: each pair of statements once, in the order of the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nncdbg.comparison.launches import Launch, Memory, PlacedPlan, branches, launches
from nncdbg.comparison.schedule_problems import Party, Repair, ScheduleProblem, Validation
from nncdbg.engine.schedules.races import Ordering, Race, missing_edge, races
from nncdbg.errors import UsageError
from nncdbg.ir.records import Graph, Node, Path, Placement, Program
from nncdbg.ir.rewrite import rewrite
from nncdbg.ir.streams import HOST, Site, placements
from nncdbg.process.collector import collector_paused


def with_margins(program: Program, margins: dict[Site, Placement]) -> Program:
    """Return a program with these margins; statements without one have none."""

    def statement(path: Path, pc: int, node: Node) -> Node:
        return replace(node, placement=margins.get((path, pc)))

    def block(path: Path, new: Graph) -> Graph:
        return replace(new, begin=margins.get((path, -1)), end=margins.get((path, len(new.nodes))))

    graphs = {name: rewrite(graph, statement, block, key=name) for name, graph in program.graphs.items()}
    return replace(program, graphs=graphs, listing=None)


def margins_of(program: Program) -> dict[Site, Placement]:
    """Return the margins of all statements, and of the first and last lines of graphs and blocks."""
    return dict(placements(program))


def bound(program: Program, streams: Mapping[int, int]) -> Program:
    """Return a program whose streams run on others: with ``{3: 4}``, ``s3`` becomes ``s3->4``.

    The devices follow their streams.  Raises UsageError for a stream that the program does not use, and if
    one stream would be on two devices.
    """
    margins = margins_of(program)
    numbers = {each.stream for margin in margins.values() for each in margin.bindings()}
    numbers |= program.streams.keys()
    for number in streams:
        if number not in numbers:
            used = ", ".join(f"s{each}" for each in sorted(numbers)) or "none"
            raise UsageError(
                f"cannot bind stream s{number}: the program does not use it", hint=f"its streams: {used}"
            )
    devices: dict[int, str] = {}
    for number in sorted(numbers):
        device = program.streams.get(number, "")
        other = devices.setdefault(streams.get(number, number), device)
        if other != device:
            raise UsageError(
                f"cannot bind stream s{number} of device {device or 'default'!r} to "
                f"s{streams.get(number, number)}, which is on device {other or 'default'!r}",
                hint="bind the streams of a device to streams of the same device",
            )
    made = {site: _bound_margin(margin, streams) for site, margin in margins.items()}
    named = {number: device for number, device in sorted(devices.items()) if device}
    return replace(with_margins(program, made), streams=named)


def _bound_margin(margin: Placement, streams: Mapping[int, int]) -> Placement:
    written = margin.logical or (None,) * (1 + len(margin.begins))
    logical = tuple(
        number if number is not None or stream not in streams else stream
        for number, stream in zip(written, (margin.stream, *margin.begins), strict=True)
    )
    return replace(
        margin,
        stream=None if margin.stream is None else streams.get(margin.stream, margin.stream),
        begins=tuple(streams.get(each, each) for each in margin.begins),
        logical=logical if any(each is not None for each in logical) else (),
    )


@dataclass(frozen=True, slots=True)
class EventFault:
    """A fault of launch `at`, by its position, and the launch `other` that explains it, if there is one.

    `kind` is

    * ``no-record``: it waits for event `number`, which nothing has recorded before; `other` records it later,
    * ``dead-lock``: the same, and `other` runs only after `at`, so that a wait that blocks never ends,
    * ``lost-record``: it records event `number` again, before any wait for the unordered record by `other`,
    * ``unsynchronized-start``: it is the first launch of a graph on stream `number`, which does not wait for
      `other`, the beginning of the graph,
    * ``unsynchronized-end``: the last launch on stream `number` of a graph, which `other`, its end, does not
      wait for,
    * ``freed``: it uses memory that `other` has freed,
    * ``double-free``: it frees memory that `other` has freed,
    * ``devices``: it reads a value that `other` computed on another device than its other operands,
    * ``overwritten``: it reads a value whose bytes `other` has written since for another value,
    * ``depth``: more than the allowed launches of stream `number` are in flight.

    `name` is the value of `freed`, `double-free`, `overwritten` and `devices`.
    """

    kind: str
    at: int
    number: int = 0
    other: int | None = None
    name: str = ""


def event_faults(launches: Sequence[Launch], ordering: Ordering) -> Iterator[EventFault]:
    """Yield waits without an earlier record, and records that are lost before a wait."""
    later: dict[int, list[int]] = {}
    for at, launch in enumerate(launches):
        for event in launch.records:
            later.setdefault(event, []).append(at)
    last_wait = {event: at for at, launch in enumerate(launches) for event in launch.waits}
    recorded: dict[int, int] = {}
    waited: set[int] = set()
    for at, launch in enumerate(launches):
        for event in launch.waits:
            waited.add(event)
            if event not in recorded:
                records = later.get(event, ())
                circular = launch.stream == HOST or any(ordering.before(at, each) for each in records)
                kind = "dead-lock" if records and circular else "no-record"
                yield EventFault(kind, at, event, records[0] if records else None)
        for event in launch.records:
            before = recorded.get(event)
            used = event in waited or last_wait.get(event, -1) <= at
            if before is not None and not used and not ordering.before(before, at):
                yield EventFault("lost-record", at, event, before)
            recorded[event] = at
            waited.discard(event)


def edge_faults(launches: Sequence[Launch], ordering: Ordering) -> Iterator[EventFault]:
    """Yield the streams of a graph that do not wait for its beginning, or that its end does not wait for."""
    begins: dict[int, int] = {}
    inside: dict[int, dict[int, tuple[int, int]]] = {}
    for at, launch in enumerate(launches):
        if launch.edge == "begin":
            begins[launch.call] = at
        elif launch.edge == "end":
            own = inside.get(launch.call, {})
            for stream, (_, last) in own.items():
                if launch.stream != stream and not ordering.before(last, at):
                    yield EventFault("unsynchronized-end", last, stream, at)
        elif launch.stream != HOST:
            own = inside.setdefault(launch.call, {})
            if launch.stream not in own:
                begin = begins.get(launch.call)
                if begin is not None and not ordering.before(begin, at):
                    yield EventFault("unsynchronized-start", at, launch.stream, begin)
            own[launch.stream] = own.get(launch.stream, (at, at))[0], at


def memory_faults(launches: Sequence[Launch], ordering: Ordering) -> Iterator[EventFault]:
    """Yield uses of freed memory, and reads of values whose bytes have been written for another value."""
    frees: dict[tuple[int, str], int] = {}
    written: dict[str, int] = {}
    writers = _Writers(launches)
    for at, launch in enumerate(launches):
        values = [each for each in launch.accesses if each.memory.kind == "value"]
        for memory in (each.memory for each in values if not each.writes):
            freed = frees.get((memory.buffer, memory.name))
            if freed is not None and ordering.before(freed, at):
                yield EventFault("freed", at, 0, freed, memory.name)
            other = writers.latest(memory) if memory.buffer == 0 else -1
            if other > written.get(memory.name, -1) and ordering.before(other, at):
                yield EventFault("overwritten", at, 0, other, memory.name)
        for access in (each for each in values if each.writes):
            key = access.memory.buffer, access.memory.name
            if access.frees:
                if key in frees:
                    yield EventFault("double-free", at, 0, frees[key], access.memory.name)
                frees[key] = at
                continue
            frees.pop(key, None)
            if access.memory.buffer == 0:
                written[access.memory.name] = at
                writers.write(access.memory, at)


def device_faults(launches: Sequence[Launch], devices: Mapping[int, str]) -> Iterator[EventFault]:
    """Yield the launches with operands on two devices; a launch with one operand may copy it.

    A value is on the device of the stream that wrote it.  A stream that `devices` does not name has none.
    """
    writers: dict[tuple[int, str], int] = {}
    for at, launch in enumerate(launches):
        values = [each for each in launch.accesses if each.memory.kind == "value" and not each.frees]
        keys = [(each.memory.buffer, each.memory.name) for each in values if not each.writes]
        read = [writers[key] for key in dict.fromkeys(keys) if key in writers]
        own = devices.get(launch.stream)
        other = next((each for each in read if devices[launches[each].stream] != own), None)
        if own is not None and other is not None and len(set(keys)) > 1:
            name = next(name for buffer, name in keys if writers.get((buffer, name)) == other)
            yield EventFault("devices", at, 0, other, name)
        for access in values:
            if access.writes:
                key = access.memory.buffer, access.memory.name
                if own is None:
                    writers.pop(key, None)
                else:
                    writers[key] = at


class _Writers:
    """The launch that has issued the latest write of each byte of the arena."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        memories = [
            access.memory for each in launches for access in each.accesses if not access.memory.buffer
        ]
        bounds = sorted({bound for each in memories for bound in (each.begin, each.end)})
        self._place = {bound: at for at, bound in enumerate(bounds)}
        self._writers = np.full(len(bounds), -1, np.int64)

    def latest(self, memory: Memory) -> int:
        found = self._writers[self._place[memory.begin] : self._place[memory.end]]
        return int(found.max()) if found.size else -1

    def write(self, memory: Memory, at: int) -> None:
        self._writers[self._place[memory.begin] : self._place[memory.end]] = at


def depth_faults(launches: Sequence[Launch], ordering: Ordering, limit: int) -> Iterator[EventFault]:
    """Yield the first launch of each stream that leaves more than `limit` launches of it in flight."""
    known = [0] * len(ordering.column)
    reported = set()
    for at, launch in enumerate(launches):
        column = ordering.columns[at]
        if column == 0:
            known = ordering.clocks[at]
        elif column not in reported and ordering.positions[at] - known[column] > limit:
            reported.add(column)
            yield EventFault("depth", at, launch.stream)


def validate(program: Program, plan: PlacedPlan | None = None, *, depth: int | None = None) -> Validation:
    """Return the problems of the schedule in the margins of a program, with the bytes of a memory plan.

    `depth` is the largest number of launches of a stream that may be in flight; None: any.
    """
    found: dict[object, ScheduleProblem] = {_identity(each): each for each in _unbound_streams(program)}
    count, deepest = 0, 0
    streams: set[int] = set()
    events: set[int] = set()
    with collector_paused():
        for choice in branches(program):
            issued = launches(program, plan, choice=choice)
            ordering = Ordering(issued)
            for problem in _problems(issued, ordering, program.streams, depth):
                found.setdefault(_identity(problem), problem)
            count = max(count, len(issued))
            deepest = max(deepest, *ordering.depth)
            streams |= ordering.column.keys() - {HOST}
            events.update(event for launch in issued for event in launch.records)
    return Validation(tuple(found.values()), count, len(streams), len(events), deepest)


def validated(program: Program) -> Validation:
    """Return the validation of a program without a memory plan, which is made once per program."""
    if "validation" not in program.kept:
        program.kept["validation"] = validate(program)
    known: Validation = program.kept["validation"]
    return known


def _unbound_streams(program: Program) -> Iterator[ScheduleProblem]:
    """Yield the streams that are not those to which their graph binds their logical numbers.

    In a graph, a logical stream has one binding.  That of a statement counts before that of a `begin`.
    """
    margins = margins_of(program)
    if not any(margin.logical for margin in margins.values()):
        return
    graphs: dict[str, list[Site]] = {}
    for site in margins:
        graphs.setdefault(str(site[0][0]), []).append(site)
    for sites in graphs.values():
        if not any(margins[site].logical for site in sites):
            continue
        sites.sort(key=lambda site: (*site[0][1:], site[1]))
        bindings = [(site, each) for site in sites for each in margins[site].bindings()]
        written = [(site, each) for site, each in bindings if each.written]
        first: dict[int, Party] = {}
        for site, each in sorted(written, key=lambda pair: pair[1].begun):
            first.setdefault(each.logical, Party(site, each.stream))
        for site, each in bindings:
            binding = first.get(each.logical)
            if binding is not None and binding.stream != each.stream:
                party = Party(site, each.stream)
                yield ScheduleProblem("unbound-stream", party, binding, number=each.logical)


def _identity(problem: ScheduleProblem) -> object:
    first = problem.first and (problem.first.site, problem.first.name)
    second = problem.second.site, problem.second.name
    return problem.kind, problem.access, first, second, problem.number


def _problems(
    issued: Sequence[Launch], ordering: Ordering, devices: Mapping[int, str], depth: int | None
) -> Iterator[ScheduleProblem]:
    faults = [
        *event_faults(issued, ordering),
        *edge_faults(issued, ordering),
        *memory_faults(issued, ordering),
        *device_faults(issued, devices),
        *([] if depth is None else depth_faults(issued, ordering, depth)),
    ]
    problems = [(fault.at, _of_fault(fault, issued, depth or 0)) for fault in faults]
    problems += [(race.second, _of_race(race, issued)) for race in races(issued, ordering)]
    yield from (problem for _, problem in sorted(problems, key=lambda each: each[0]))


def _party(at: int, issued: Sequence[Launch], name: str = "") -> Party:
    return Party(issued[at].site, issued[at].stream, name)


def _of_fault(fault: EventFault, issued: Sequence[Launch], limit: int) -> ScheduleProblem:
    return ScheduleProblem(
        fault.kind,
        _party(fault.at, issued, fault.name),
        None if fault.other is None else _party(fault.other, issued),
        number=fault.number,
        limit=limit,
    )


def _of_race(race: Race, issued: Sequence[Launch]) -> ScheduleProblem:
    edge = missing_edge(race, issued)
    return ScheduleProblem(
        "race",
        _party(race.second, issued, race.b.memory.name),
        _party(race.first, issued, race.a.memory.name),
        race.kind,
        race.cause,
        bytes=(race.begin, race.end) if race.a.memory.buffer == 0 else None,
        repair=Repair(_party(edge.recorder, issued), _party(edge.waiter, issued), edge.event),
    )
