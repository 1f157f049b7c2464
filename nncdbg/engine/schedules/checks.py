"""Faults of a schedule that are no race: wrong events, wrong starts, freed bytes, operands of two devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nncdbg.engine.schedules.launches import HOST, Launch, Memory
from nncdbg.engine.schedules.ordering import Ordering


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
                yield _without_record(at, event, later.get(event, ()), launches, ordering)
        for event in launch.records:
            before = recorded.get(event)
            used = event in waited or last_wait.get(event, -1) <= at
            if before is not None and not used and not ordering.before(before, at):
                yield EventFault("lost-record", at, event, before)
            recorded[event] = at
            waited.discard(event)


def _without_record(
    at: int, event: int, records: Sequence[int], launches: Sequence[Launch], ordering: Ordering
) -> EventFault:
    if not records:
        return EventFault("no-record", at, event)
    circular = launches[at].stream == HOST or any(ordering.before(at, record) for record in records)
    return EventFault("dead-lock" if circular else "no-record", at, event, records[0])


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
