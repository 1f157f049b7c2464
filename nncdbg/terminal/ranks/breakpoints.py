"""Breakpoints and catches on all ranks, or on one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nncdbg.engine.errors import UsageError
from nncdbg.engine.expression import spelled
from nncdbg.presentation.breakpoint_syntax import StopSpec, parse_stop
from nncdbg.terminal.ranks.connection import RankConnection

_RANK = re.compile(r"(?:^|\s)rank\s+(?P<rank>[0-9]{1,9}|all)\s*$")


@dataclass(frozen=True, slots=True)
class RanksBreakpoint:
    """A breakpoint; without `rank`, on all ranks."""

    number: int
    text: str
    spec: StopSpec
    rank: int | None

    def __str__(self) -> str:
        return f"{self.text} on {'all ranks' if self.rank is None else f'rank {self.rank}'}"


@dataclass
class RanksStops:
    """What stops the ranks.  `apply` sets it on one of them."""

    breakpoints: list[RanksBreakpoint] = field(default_factory=list)
    catches: dict[tuple[str, int | None], str] = field(default_factory=dict)
    """The condition by kind and rank; empty without a condition."""
    _latest: int = 0
    _files: set[tuple[int, str]] = field(default_factory=set)
    """The ranks and files with breakpoints set there."""

    def add(self, text: str, ranks: int) -> RanksBreakpoint:
        """Add ``PLACE [if EXPR] [hits N] [rank N]``.  Raises UsageError for an invalid one."""
        place, rank = split_rank(text, ranks)
        spec = parse_stop(place, streams=False)
        if spec.kind == "line":
            raise UsageError(f"line {spec.name} of which file?", hint=f"break train.py:{spec.name}")
        self._latest += 1
        found = RanksBreakpoint(self._latest, place.strip(), spec, rank)
        self.breakpoints.append(found)
        return found

    def delete(self, text: str) -> None:
        """Delete breakpoints by number, or all.  Raises UsageError for an unknown number."""
        words = text.replace(",", " ").split()
        known = {str(each.number) for each in self.breakpoints}
        for word in words:
            if word not in known:
                raise UsageError(f"there is no breakpoint {word}", hint="info breakpoints")
        self.breakpoints = [each for each in self.breakpoints if words and str(each.number) not in words]

    def apply(self, connection: RankConnection) -> list[str]:
        """Set the stops of one rank; return what it refuses."""
        own = [each for each in self.breakpoints if each.rank in (None, connection.rank)]
        refused = [*self._apply_functions(connection, [each for each in own if each.spec.kind != "source"])]
        refused += self._apply_lines(connection, [each for each in own if each.spec.kind == "source"])
        options = [
            {"filterId": kind, **({"condition": when} if when else {})}
            for (kind, rank), when in self.catches.items()
            if rank in (None, connection.rank)
        ]
        connection.request("setExceptionBreakpoints", {"filters": [], "filterOptions": options})
        return refused

    def _apply_functions(self, connection: RankConnection, own: list[RanksBreakpoint]) -> Iterator[str]:
        functions = [each for each in own if each.spec.kind != "value"]
        values = [each for each in own if each.spec.kind == "value"]
        named = [
            {"name": f"@{each.spec.name}" if each.spec.kind == "graph" else each.spec.name}
            for each in functions
        ]
        watched = [{"dataId": spelled(each.spec.name), "accessType": "write"} for each in values]
        for command, wanted, places in (
            ("setFunctionBreakpoints", functions, named),
            ("setDataBreakpoints", values, watched),
        ):
            requests = [{**place, **_terms(each.spec)} for each, place in zip(wanted, places, strict=True)]
            yield from _refusals(wanted, connection.request(command, {"breakpoints": requests}))

    def _apply_lines(self, connection: RankConnection, own: list[RanksBreakpoint]) -> Iterator[str]:
        files: dict[str, list[RanksBreakpoint]] = {}
        for each in own:
            files.setdefault(each.spec.name.rpartition(":")[0], []).append(each)
        before = {file for rank, file in self._files if rank == connection.rank}
        for file in sorted({*files, *before}):
            wanted = files.get(file, [])
            requests = [
                {"line": int(each.spec.name.rpartition(":")[2]), **_terms(each.spec)} for each in wanted
            ]
            answer = connection.request("setBreakpoints", {"source": {"path": file}, "breakpoints": requests})
            self._files.add((connection.rank, file))
            yield from _refusals(wanted, answer)


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


def _refusals(wanted: list[RanksBreakpoint], answer: dict[str, Any]) -> Iterator[str]:
    for each, record in zip(wanted, answer["breakpoints"], strict=True):
        if not record["verified"]:
            yield f"breakpoint {each.number}, {each.text}: {record.get('message', 'refused')}"
