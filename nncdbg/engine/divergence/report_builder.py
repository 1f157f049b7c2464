"""Collect the report of a comparison: what was compared, what differs, and by how much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from nncdbg.comparison.measure import measure
from nncdbg.comparison.report import DiffReport, Growth, Match, Place, ValueSite
from nncdbg.comparison.tolerance import Tolerance
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.blame import StatementVerdict
from nncdbg.engine.divergence.sides import Side, Written
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import type_of
from nncdbg.text.lexemes import name_text

_NAMED = 8
"""Maximum number of listed names of values without a counterpart."""

_VISITS = 64
"""Maximum number of judged visits per statement, of those with different results."""

_KEPT = 32
"""Maximum number of listed causes and ties."""


class ReportBuilder:
    """Collects a `DiffReport` of sides `a` and `b`."""

    def __init__(self, a: Side, b: Side, tolerance: Tolerance) -> None:
        self.report = DiffReport()
        self._a, self._b, self._tolerance = a, b, tolerance
        self._growth = GrowthTable()
        self._differing: list[Match] = []
        self._judged: Counter[Place] = Counter()
        self._causes: set[Place] = set()
        self._blamed: set[tuple[Any, ...]] = set()

    def add(self, one: Written, match: Match) -> None:
        """Add the match of a compared pair of values."""
        self.report.matched[match.way] = self.report.matched.get(match.way, 0) + 1
        self._growth.add(one, match)
        self.report.marginal += match.excess.marginal
        if match.diverges:
            self._differing.append(match)

    def worth_judging(self, place: Place) -> bool:
        """Return whether another visit of a statement should be judged: not if it already is a cause."""
        self._judged[place] += 1
        return place not in self._causes and self._judged[place] <= _VISITS

    def judged(self, matches: Sequence[Match], verdict: StatementVerdict) -> None:
        """Add the verdict on a statement with different results."""
        cause = verdict.cause
        if cause is not None and matches[0].a.key is not None:
            self._causes.add(matches[0].a.key[0])
        # A tolerance given by the user applies to the results of ties too.
        if verdict.tie and not self._tolerance.explicit and len(self.report.ties) < _KEPT:
            self.report.ties += matches
        if cause is None or len(self.report.causes) >= _KEPT:
            return
        site = (cause.a is None, cause.site.graph, cause.site.line, cause.site.value)
        if site not in self._blamed:
            self._blamed.add(site)
            self.report.causes.append(cause)

    def lonely(self, side: Side, written: Written) -> None:
        """Add a statement without a counterpart."""
        report, names = self.report, written.names
        listed = report.only_a if side is self._a else report.only_b
        listed.extend(names[: _NAMED - len(listed)])
        if side is self._a:
            report.unmatched_a += len(names)
        else:
            report.unmatched_b += len(names)

    def outputs(self) -> None:
        """Compare the programs' outputs, by name, then by position."""
        here, there = self._a.outputs(), self._b.outputs()
        names = [(name, name, "name") for name in here if name in there]
        mine = [name for name in here if name not in there]
        theirs = [name for name in there if name not in here]
        names += [(a, b, "position") for a, b in zip(mine, theirs, strict=False)]
        self.report.lacking = [f"%{name_text(name)} of side A" for name in mine[len(theirs) :]]
        self.report.lacking += [f"%{name_text(name)} of side B" for name in theirs[len(mine) :]]
        for a, b, way in names:
            pair = (here[a], there[b])
            sites = (_output(self._a.debugger, a, pair[0]), _output(self._b.debugger, b, pair[1]))
            self.report.outputs.append(measure(*sites, way, pair, self._tolerance))

    def finish(self) -> None:
        """Determine the first and the worst value that differs."""
        report = self.report
        report.causes.sort(key=lambda cause: cause.match.a.tick)
        report.diverging = len(self._differing)
        if report.cause is not None:
            report.first = report.cause.match
        else:
            report.first = min(self._differing, key=lambda match: match.a.tick, default=None)
        report.worst = max(self._differing, key=lambda match: match.excess.factor, default=None)
        report.growth = self._growth.rows
        report.ops = (self._a.debugger.control.machine.tick, self._b.debugger.control.machine.tick)


def _output(debugger: Debugger, name: str, content: Any) -> ValueSite:
    kind = str(type_of(content) or type(content).__name__)
    return ValueSite(name, "", kind, None, debugger.program.entry, (), "", debugger.control.machine.tick)


_MANY = 64
"""Maximum number of statements with their own row."""


class GrowthTable:
    """Rows by layer: a called graph, or the scope in nodes' names (`encoder/0` of `encoder/0/Conv`)."""

    def __init__(self) -> None:
        self._layers: dict[object, Growth] = {}
        self._statements: dict[Place, Growth] = {}

    def add(self, written: Written, match: Match) -> None:
        """Add the match of a value; call in order of execution."""
        key, name = _layer(written)
        if name:
            _update(self._layers.setdefault(key, Growth(name, None)), match)
        place = written.key[0]
        if place in self._statements or len(self._statements) < _MANY:
            _update(self._statements.setdefault(place, Growth(written.node.op, None)), match)

    @property
    def rows(self) -> list[Growth]:
        """Return the rows of the layers; of the statements if there is at most one layer."""
        rows = self._layers if len(self._layers) > 1 else self._statements
        return list(rows.values())


def _update(row: Growth, match: Match) -> None:
    row.line, row.value = match.a.line, match.a.value
    if match.unmeasured and row.times_tolerance is not None:
        row.times_tolerance, row.unmeasured, row.at = None, match.unmeasured, match
    elif row.times_tolerance is not None:
        row.times_tolerance = max(row.times_tolerance, match.excess.factor)
    comparison = match.comparison
    row.max_rel = comparison.max_rel if comparison else None
    row.cosine = comparison.cosine if comparison else None


def _layer(written: Written) -> tuple[object, str]:
    """Return the identity of a statement's layer, and its name (empty without a layer).

    The results of a call belong to the called layer.
    """
    place, node = written.key[0], written.node
    if node.kind is Kind.CALL:
        return place, node.op
    inside = [index for index, (path, _) in enumerate(place) if index and len(path) == 1]
    if inside:
        return place[: inside[-1]], f"@{place[inside[-1]][0][0]}"
    name = node.location.name if node.location is not None and node.location.name else ""
    scope = name.rpartition("/")[0]
    return scope, scope
