"""Which ranks wait for which: a comparison of the collectives that the ranks of a job have started."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nncdbg.process.rank_notes import Collective, RankReport


@dataclass(frozen=True, slots=True)
class Wait:
    """A collective that some ranks have started, and others not."""

    collective: Collective
    """The collective, as the first of the waiting ranks has noted it."""
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    since: float
    """When the last of the waiting ranks started it, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Collectives with the same number that differ between ranks."""

    group: str
    number: int
    calls: tuple[tuple[tuple[int, ...], Collective], ...]
    """The ranks of each call, and the call; the one of most ranks first."""


def find_waits(reports: Sequence[RankReport]) -> list[Wait]:
    """Return for each group the first collective that a rank has not started, in the order of time."""
    waits = [wait for group in _by_group(reports).values() if (wait := _wait(group)) is not None]
    return sorted(waits, key=lambda each: each.since)


def find_mismatches(reports: Sequence[RankReport]) -> list[Mismatch]:
    """Return for each group the first number at which the ranks started different collectives."""
    found = (_mismatch(name, group) for name, group in _by_group(reports).items())
    return [each for each in found if each is not None]


_Group = dict[int, dict[int, Collective]]
"""The collectives of a group, by rank and number."""


def _by_group(reports: Sequence[RankReport]) -> dict[str, _Group]:
    """Return the collectives of each group; a rank that has started none has an empty entry."""
    groups: dict[str, _Group] = defaultdict(dict)
    known = {each.process.rank for each in reports}
    for report in reports:
        for each in report.collectives:
            group = groups[each.group]
            for rank in each.ranks:
                if rank in known:
                    group.setdefault(rank, {})
            group.setdefault(report.process.rank, {})[each.number] = each
    return groups


def _wait(group: _Group) -> Wait | None:
    """Return the first collective that one of the ranks of a group has not started."""
    reached = {rank: max(calls, default=0) for rank, calls in group.items()}
    least = min(reached.values())
    if max(reached.values()) == least:
        return None
    number = least + 1
    calls = [(rank, group[rank][number]) for rank in sorted(group) if number in group[rank]]
    if not calls:
        return None  # A rank is ahead by more than it keeps: the collective is one that does not wait.
    return Wait(
        calls[0][1],
        tuple(rank for rank, _ in calls),
        tuple(rank for rank in sorted(group) if reached[rank] == least),
        max(each.at for _, each in calls),
    )


def _mismatch(name: str, group: _Group) -> Mismatch | None:
    for number in sorted({number for calls in group.values() for number in calls}):
        kinds: dict[str, list[tuple[int, Collective]]] = defaultdict(list)
        for rank, each in sorted(_calls_at(group, number)):
            kinds[each.text].append((rank, each))
        if len(kinds) > 1:
            largest_first = sorted(kinds.values(), key=lambda calls: -len(calls))
            return Mismatch(
                name,
                number,
                tuple((tuple(rank for rank, _ in calls), calls[0][1]) for calls in largest_first),
            )
    return None


def _calls_at(group: _Group, number: int) -> Iterator[tuple[int, Collective]]:
    return ((rank, calls[number]) for rank, calls in group.items() if number in calls)
