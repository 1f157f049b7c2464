"""Random schedule logs, and which of their launches race, from the definition of the order."""

from __future__ import annotations

from hypothesis import strategies as st

from nncdbg.opening.schedule_logs.programs import (
    ByteRange,
    EventRecord,
    EventWait,
    HostWait,
    LoggedLaunch,
    LogRecord,
)

_STREAMS = st.integers(0, 2)
_EVENTS = st.integers(0, 1)
_RANGES = st.lists(
    st.builds(lambda begin, size: ByteRange(begin, begin + size), st.integers(1, 6), st.integers(1, 6)),
    max_size=2,
).map(tuple)

_RECORDS = st.one_of(
    st.builds(
        LoggedLaunch,
        name=st.just(""),
        stream=_STREAMS,
        reads=_RANGES,
        writes=_RANGES.map(lambda found: found[:1]),
    ),
    st.builds(EventRecord, event=_EVENTS, stream=_STREAMS),
    st.builds(EventRecord, event=st.just(0), stream=_STREAMS),
    st.builds(EventWait, event=st.just(0), stream=_STREAMS),
    st.builds(EventWait, event=_EVENTS, stream=_STREAMS),
    st.builds(HostWait, event=_EVENTS),
    st.builds(HostWait, stream=_STREAMS),
    st.just(HostWait()),
)


def _named(records: list[LogRecord]) -> list[LogRecord]:
    """Name each launch by its position, and give it times."""
    return [
        LoggedLaunch(
            f"k{at}", each.stream, reads=each.reads, writes=each.writes, start=10.0 * at, duration=5.0
        )
        if isinstance(each, LoggedLaunch)
        else each
        for at, each in enumerate(records)
    ]


logs = st.lists(_RECORDS, min_size=1, max_size=25).map(_named)


def unordered_conflicts(records: list[LogRecord]) -> set[tuple[str, str]]:
    """Return the names of the pairs of launches that use the same bytes in no order, one of them writing."""
    before: list[set[int]] = []
    latest: dict[int, int] = {}
    recorded: dict[int, int] = {}
    host: int | None = None
    for at, record in enumerate(records):
        direct: set[int] = set() if host is None else {host}
        stream: int | None = getattr(record, "stream", None)
        if isinstance(record, HostWait):
            if record.event is not None:
                direct |= {recorded[record.event]} if record.event in recorded else set()
            elif stream is not None:
                direct |= {latest[stream]} if stream in latest else set()
            else:
                direct |= set(latest.values())
            host = at
        else:
            assert stream is not None
            direct |= {latest[stream]} if stream in latest else set()
            latest[stream] = at
        if isinstance(record, EventWait) and record.event in recorded:
            direct.add(recorded[record.event])
        if isinstance(record, EventRecord):
            recorded[record.event] = at
        before.append(direct.union(*(before[each] for each in direct)))
    found = set()
    launches = [(at, each) for at, each in enumerate(records) if isinstance(each, LoggedLaunch)]
    for number, (at, second) in enumerate(launches):
        for earlier, first in launches[:number]:
            if earlier not in before[at] and _conflict(first, second):
                found.add((first.name, second.name))
    return found


def _conflict(first: LoggedLaunch, second: LoggedLaunch) -> bool:
    pairs = [
        (a, b)
        for ours, theirs in (
            (first.writes, second.reads),
            (first.reads, second.writes),
            (first.writes, second.writes),
        )
        for a in ours or ()
        for b in theirs or ()
    ]
    return any(a.begin < b.end and b.begin < a.end for a, b in pairs)
