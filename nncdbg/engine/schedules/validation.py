"""All problems of a schedule, found without a run: each pair of statements once, in the order of the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nncdbg.engine.memory.plan_file import PlacedPlan
from nncdbg.engine.process.collector import collector_paused
from nncdbg.engine.schedules.checks import (
    EventFault,
    depth_faults,
    device_faults,
    edge_faults,
    event_faults,
    memory_faults,
)
from nncdbg.engine.schedules.launches import HOST, Launch, Site, branches, launches
from nncdbg.engine.schedules.margins import binds_streams, margins_of
from nncdbg.engine.schedules.ordering import Ordering
from nncdbg.engine.schedules.races import Race, missing_edge, races
from nncdbg.ir.records import Program


@dataclass(frozen=True, slots=True)
class Party:
    """A statement that takes part in a problem: its place, its stream (HOST: the host), and its value."""

    site: Site
    stream: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Repair:
    """An edge that mends a race: `waiter` waits for an event recorded after `recorder`.

    `event` is an event that `recorder` records already; None: a new one.
    """

    recorder: Party
    waiter: Party
    event: int | None


@dataclass(frozen=True, slots=True)
class ScheduleProblem:
    """A race, or a fault of a schedule.

    `kind` is ``race``, ``unbound-stream``, or that of an `EventFault`.  For a race, `access` is
    ``write-read``, ``read-write`` or ``write-write``, in the order of `first` and `second`, and `cause` is
    ``value``, ``reuse``, ``free`` or ``workspace``.  `first` is the earlier statement, if there are two.
    `number` is that of the event or stream of a fault, `limit` that of the depth.  `bytes` are those that
    both use, in the arena of a memory plan.

    ``unbound-stream``: `second` uses its stream for the logical stream `number`, which `first` binds to
    another one.
    """

    kind: str
    second: Party
    first: Party | None = None
    access: str = ""
    cause: str = ""
    number: int = 0
    limit: int = 0
    bytes: tuple[int, int] | None = None
    repair: Repair | None = None

    @property
    def host(self) -> bool:
        """Whether the host takes part in a race."""
        return self.kind == "race" and HOST in (self.second.stream, self.first and self.first.stream)


@dataclass(frozen=True, slots=True)
class Validation:
    """The problems of a schedule, and how much was checked."""

    problems: tuple[ScheduleProblem, ...]
    launches: int
    streams: int
    events: int
    depth: int
    """The largest number of launches of a stream in flight."""


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
    if not binds_streams(program):
        return
    margins = margins_of(program)
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
