"""Two runs side by side: each value that both have is compared as soon as both have written it.

Where the order is the same, as for one model on two backends, one value of each side is held at
a time; where it is not, the earlier waits for its counterpart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nncdbg.engine.divergence.alignment import Pairs, align, survey
from nncdbg.engine.divergence.growth import GrowthTable
from nncdbg.engine.divergence.measure import measure
from nncdbg.engine.divergence.pending import Pending
from nncdbg.engine.divergence.report import Match, Report, Site
from nncdbg.engine.divergence.side import Side
from nncdbg.engine.divergence.tolerance import Tolerance
from nncdbg.engine.divergence.written import GONE, Key, Place, Written
from nncdbg.engine.session import Debugger
from nncdbg.engine.values import type_of

BUDGET = 1 << 30
"""Bytes of values that may wait in memory, per side."""

_NAMED = 8
"""Names listed of values without a counterpart."""


class Lockstep:
    """Compares two debuggers at their entry.

    `same_places`: statement by statement the programs are the same, so that nothing has to be
    matched; else both are run once more before, to see what there is to match.
    """

    def __init__(
        self,
        a: Debugger,
        b: Debugger,
        tolerance: Tolerance | None = None,
        *,
        same_places: bool | None = None,
        budget: int = BUDGET,
    ) -> None:
        self.a, self.b = Side(a, "side A"), Side(b, "side B")
        self.tolerance = tolerance or Tolerance()
        self.report = Report()
        self._budget = budget
        self._growth = GrowthTable()
        same = a.program == b.program if same_places is None else same_places
        self._same = same
        self.pairs: Pairs | None = None
        self._back: dict[Place, Place] = {}

    def _align(self) -> None:
        seen = []
        for side in (self.a, self.b):
            seen.append(survey(side))
            side.debugger.restart()
        self.pairs = align(*seen)
        self._back = {there: here for here, (there, _) in self.pairs.items()}

    def pause(self) -> None:
        """Leave the run, by a KeyboardInterrupt, before the next statement."""
        for side in (self.a, self.b):
            side.debugger.pause()

    def counterpart(self, key: Key) -> Key | None:
        """B's key for a statement and visit of A; None if there is none."""
        if self.pairs is None:
            return key
        found = self.pairs.get(key[0])
        return None if found is None else (found[0], key[1])

    def run(self) -> Report:
        """Run both sides to their ends and compare.

        Raises the error of a side that fails, KeyboardInterrupt after a pause.
        """
        if not self._same:
            self._align()
        with Pending(self._budget) as mine, Pending(self._budget) as theirs:
            while True:
                one, other = self._next(self.a), self._next(self.b)
                if one is None and other is None:
                    break
                self._meet(one, other, mine, theirs)
            self._leftover(mine, theirs)
        self._outputs()
        self.report.growth = self._growth.rows
        self.report.ops = (self.a.debugger.machine.tick, self.b.debugger.machine.tick)
        return self.report

    def _meet(self, one: Written | None, other: Written | None, mine: Pending, theirs: Pending) -> None:
        if one is not None and other is not None and one.key == other.key:
            self._judge(one, other)
            return
        if one is not None:
            partner = theirs.take(one.key)
            if partner is not None:
                self._judge(one, partner)
            else:
                mine.put(one)
        if other is not None:
            partner = mine.take(other.key)
            if partner is not None:
                self._judge(partner, other)
            else:
                theirs.put(other)

    def _next(self, side: Side) -> Written | None:
        """The next values that may have a counterpart; those of B under A's key."""
        for written in side.all():
            if self.pairs is None:
                return written
            if side is self.a:
                if written.key[0] in self.pairs:
                    return written
            elif (here := self._back.get(written.key[0])) is not None:
                key = (here, written.key[1])
                return Written(key, written.code, written.pc, written.tick, written.contents)
            self._lonely(side, written.names)
        return None

    def _lonely(self, side: Side, names: Sequence[str]) -> None:
        report = self.report
        listed = report.only_a if side is self.a else report.only_b
        listed.extend(names[: _NAMED - len(listed)])
        if side is self.a:
            report.unmatched_a += len(names)
        else:
            report.unmatched_b += len(names)

    def _leftover(self, mine: Pending, theirs: Pending) -> None:
        for side, waiting in ((self.a, mine), (self.b, theirs)):
            for written in waiting.rest():
                self._lonely(side, written.names)
        self.report.spilled = mine.spilled + theirs.spilled

    # -- one statement on both sides -----------------------------------------------------------

    def _judge(self, one: Written, other: Written) -> None:
        way = "place" if self.pairs is None else self.pairs[one.key[0]][1]
        for index, pair in enumerate(zip(one.contents, other.contents, strict=False)):
            if any(content is GONE for content in pair):
                self.report.gone += 1
                continue
            sites = [
                _site(side.debugger, written, index, content, key)
                for side, written, content, key in (
                    (self.a, one, pair[0], one.key),
                    (self.b, other, pair[1], self.counterpart(one.key)),
                )
            ]
            match = measure(sites[0], sites[1], way, pair, self.tolerance)
            self.report.matched[way] = self.report.matched.get(way, 0) + 1
            self._growth.add(one, match)
            if match.diverges:
                self._note(match)

    def _note(self, match: Match) -> None:
        report = self.report
        report.diverging += 1
        if report.first is None or match.a.tick < report.first.a.tick:
            report.first = match
        if report.worst is None or match.excess.factor > report.worst.excess.factor:
            report.worst = match

    # -- outputs -------------------------------------------------------------------------------

    def _outputs(self) -> None:
        """Compare the programs' outputs, by name, then by position."""
        here, there = self.a.outputs(), self.b.outputs()
        names = [(name, name, "name") for name in here if name in there]
        mine = [name for name in here if name not in there]
        theirs = [name for name in there if name not in here]
        names += [(a, b, "position") for a, b in zip(mine, theirs, strict=False)]
        self.report.lacking = [f"%{name} of side A" for name in mine[len(theirs) :]]
        self.report.lacking += [f"%{name} of side B" for name in theirs[len(mine) :]]
        for a, b, way in names:
            pair = (here[a], there[b])
            sites = (_output(self.a.debugger, a, pair[0]), _output(self.b.debugger, b, pair[1]))
            self.report.outputs.append(measure(*sites, way, pair, self.tolerance))


def _site(debugger: Debugger, written: Written, index: int, content: Any, key: Key | None) -> Site:
    node = written.node
    location = node.location
    return Site(
        written.names[index],
        node.op,
        str(type_of(content) or type(content).__name__),
        debugger.line_in(written.code, written.pc),
        str(written.code.path[0]),
        written.key[1],
        location.name if location is not None and location.name else "",
        written.tick,
        key,
    )


def _output(debugger: Debugger, name: str, content: Any) -> Site:
    kind = str(type_of(content) or type(content).__name__)
    return Site(name, "", kind, None, debugger.program.entry, (), "", debugger.machine.tick)
