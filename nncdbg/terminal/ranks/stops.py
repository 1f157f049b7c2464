"""Breakpoints and catches on all ranks, or on one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nncdbg.errors import UsageError
from nncdbg.expression import spelled
from nncdbg.target.breakpoint_syntax import StopSpec, is_computed, parse_stop, plain_name
from nncdbg.target.stops import (
    Catch,
    StopPoint,
    Stops,
    no_assertion,
    no_stop_at,
    no_watched_expression,
    unknown_number,
)
from nncdbg.terminal.ranks.connection import RankConnection

_RANK = re.compile(r"(?:^|\s)rank\s+(?P<rank>[0-9]{1,9}|all)\s*$")

_ITS_NUMBER = re.compile(r"(?:(?<=^breakpoint )|(?<=; breakpoint ))\d+")

_KINDS = ("nan", "inf")


@dataclass(frozen=True, slots=True)
class _RankBreakpoint:
    """A breakpoint; without `rank`, on all ranks."""

    number: int
    place: str
    spec: StopSpec
    rank: int | None
    enabled: bool = True

    @property
    def point(self) -> StopPoint:
        when, hits = self.spec.when, self.spec.hits
        terms = (f" if {when}" if when else "") + (f" hits {hits}" if hits else "")
        return StopPoint(
            number=self.number,
            text=f"{self.place}{terms} on {'all ranks' if self.rank is None else f'rank {self.rank}'}",
            kind=self.spec.kind,
            place=self.place,
            commands=(f"break {self.place}{terms}" + ("" if self.rank is None else f" rank {self.rank}"),),
            when=when,
            hits=hits,
            enabled=self.enabled,
        )


@dataclass
class RankStops(Stops):
    """What stops the ranks of a job: requests of a client of each rank's debug adapter.

    `connections` returns the ranks that have not ended.
    """

    connections: Callable[[], Iterable[RankConnection]]
    rank: int | None = None
    """The rank of the next breakpoint or catch; None for all."""
    _breakpoints: dict[int, _RankBreakpoint] = field(default_factory=dict)
    _catches: dict[tuple[str, int | None], Catch] = field(default_factory=dict)
    _latest: int = 0
    _files: set[tuple[int, str]] = field(default_factory=set)
    """The ranks and files with breakpoints set there."""
    _numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    """The number of the breakpoint by rank and by its id there."""

    def numbers(self) -> set[int]:
        return {*self._breakpoints}

    def points(self) -> Sequence[StopPoint]:
        return [each.point for each in self._breakpoints.values()]

    def here(self) -> str:
        raise UsageError("the ranks have no common line", hint="break train.py:27")

    def add(self, text: str, *, temporary: bool = False, log: str | None = None) -> StopPoint:
        if temporary or log is not None:
            what = "temporary breakpoints" if temporary else "logpoints"
            raise UsageError(f"ranks have no {what}", hint="use `break`, or debug one rank: --rank N")
        return self._add(parse_stop(text, streams=False))

    def watch(self, expression: str, when: str | None, hits: str | None) -> StopPoint:
        name = plain_name(expression)
        if name is None or is_computed(expression):
            raise no_watched_expression()
        return self._add(StopSpec("value", name, when, hits))

    def check(self, expression: str, when: str | None, hits: str | None) -> StopPoint:
        raise no_assertion()

    def at(self, place: str) -> Sequence[StopPoint]:
        spec = parse_stop(place, streams=False)
        there = [
            each.point
            for each in self._breakpoints.values()
            if (each.spec.kind, each.spec.name) == (spec.kind, spec.name)
        ]
        if not there:
            raise no_stop_at(place)
        return there

    def delete(self, number: int) -> None:
        del self._breakpoints[self._find(number).number]
        self.apply()

    def enable(self, number: int, enabled: bool) -> None:
        self._breakpoints[number] = replace(self._find(number), enabled=enabled)
        self.apply()

    def set_condition(self, number: int, when: str | None) -> StopPoint:
        before = self._find(number)
        return self._set(replace(before, spec=replace(before.spec, when=when)), before)

    def ignore(self, number: int, count: int) -> StopPoint:
        self._find(number)
        raise UsageError("hits are counted per rank", hint=f"set a hit rule: `break PLACE hits >{count}`")

    def catches(self) -> Sequence[Catch]:
        return [*self._catches.values()]

    def catch(self, kinds: Sequence[str], when: str | None) -> None:
        for kind in kinds:
            if kind not in _KINDS:
                raise UsageError(
                    f"a running script cannot catch {kind!r}: it can catch {' and '.join(_KINDS)}"
                )
        self._catches |= {(kind, self.rank): Catch(kind, when, self.rank) for kind in kinds}
        self.apply()

    def uncatch(self, kinds: Sequence[str]) -> None:
        self._catches = {key: each for key, each in self._catches.items() if kinds and each.kind not in kinds}
        self.apply()

    def _add(self, spec: StopSpec) -> StopPoint:
        if spec.kind == "line":
            raise UsageError(f"line {spec.name} of which file?", hint=f"break train.py:{spec.name}")
        sigil = {"graph": "@", "value": "%"}.get(spec.kind, "")
        added = _RankBreakpoint(self._latest + 1, f"{sigil}{spec.name}", spec, self.rank)
        return self._set(added, None)

    def _set(self, changed: _RankBreakpoint, before: _RankBreakpoint | None) -> StopPoint:
        """Set a breakpoint on its ranks.  Raises UsageError if one of them refuses it."""
        self._breakpoints[changed.number] = changed
        refused = self.apply()
        if refused:
            if before is None:
                del self._breakpoints[changed.number]
            else:
                self._breakpoints[changed.number] = before
            self.apply()
            raise UsageError(refused[0])
        self._latest = max(self._latest, changed.number)
        return changed.point

    def _find(self, number: int) -> _RankBreakpoint:
        if number not in self._breakpoints:
            raise unknown_number(number)
        return self._breakpoints[number]

    # -- requests ----------------------------------------------------------------------------

    def apply(self) -> list[str]:
        """Set breakpoints and catches on all ranks; return what they refuse, each once."""
        return [*dict.fromkeys(line for each in self.connections() for line in self._apply(each))]

    def _apply(self, connection: RankConnection) -> list[str]:
        own = [
            each
            for each in self._breakpoints.values()
            if each.enabled and each.rank in (None, connection.rank)
        ]
        refused = [*self._apply_functions(connection, [each for each in own if each.spec.kind != "source"])]
        refused += self._apply_lines(connection, [each for each in own if each.spec.kind == "source"])
        options = [
            {"filterId": each.kind, **({"condition": each.when} if each.when else {})}
            for each in self._catches.values()
            if each.rank in (None, connection.rank)
        ]
        connection.request("setExceptionBreakpoints", {"filters": [], "filterOptions": options})
        return refused

    def _apply_functions(self, connection: RankConnection, own: list[_RankBreakpoint]) -> Iterator[str]:
        functions = [each for each in own if each.spec.kind != "value"]
        values = [each for each in own if each.spec.kind == "value"]
        named = [{"name": each.place} for each in functions]
        watched = [{"dataId": spelled(each.spec.name), "accessType": "write"} for each in values]
        for command, wanted, places in (
            ("setFunctionBreakpoints", functions, named),
            ("setDataBreakpoints", values, watched),
        ):
            requests = [{**place, **_terms(each.spec)} for each, place in zip(wanted, places, strict=True)]
            yield from self._refusals(connection, wanted, command, {"breakpoints": requests})

    def _apply_lines(self, connection: RankConnection, own: list[_RankBreakpoint]) -> Iterator[str]:
        files: dict[str, list[_RankBreakpoint]] = {}
        for each in own:
            files.setdefault(each.spec.name.rpartition(":")[0], []).append(each)
        before = {file for rank, file in self._files if rank == connection.rank}
        for file in sorted({*files, *before}):
            wanted = files.get(file, [])
            requests = [
                {"line": int(each.spec.name.rpartition(":")[2]), **_terms(each.spec)} for each in wanted
            ]
            self._files.add((connection.rank, file))
            arguments = {"source": {"path": file}, "breakpoints": requests}
            yield from self._refusals(connection, wanted, "setBreakpoints", arguments)

    def _refusals(
        self,
        connection: RankConnection,
        wanted: list[_RankBreakpoint],
        command: str,
        arguments: dict[str, Any],
    ) -> Iterator[str]:
        """Set breakpoints of a rank, and yield why it refuses one."""
        answer = connection.request(command, arguments)
        for each, record in zip(wanted, answer["breakpoints"], strict=True):
            self._numbers[connection.rank, record["id"]] = each.number
            if not record["verified"]:
                yield f"breakpoint {each.number}, {each.place}: {record.get('message', 'refused')}"

    def reason(self, rank: int, text: str, ids: Iterable[int]) -> str:
        """Return why a rank has stopped, with the numbers of breakpoints of all ranks.

        `text` has its own numbers; `ids` are those of the breakpoints that stop it, in the order of `text`.
        """
        numbers = iter([self._numbers.get((rank, each)) for each in ids])
        return _ITS_NUMBER.sub(lambda own: str(next(numbers, None) or own[0]), text)


def split_rank(text: str, ranks: int) -> tuple[str, int | None]:
    """Return a text without a ``rank N`` at its end, and N; None for all.  Raises UsageError for no rank."""
    found = _RANK.search(text)
    if found is None:
        return text, None
    rest = text[: found.start()]
    if found["rank"] == "all":
        return rest, None
    if int(found["rank"]) >= ranks:
        raise UsageError(f"there is no rank {found['rank']} of {ranks}", hint="info ranks")
    return rest, int(found["rank"])


def _terms(spec: StopSpec) -> dict[str, Any]:
    terms = {"condition": spec.when, "hitCondition": spec.hits}
    return {name: each for name, each in terms.items() if each is not None}
