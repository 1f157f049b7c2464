"""Compare one program on two sides in lockstep: each value as soon as both sides have written it.

One value per side is held at a time; where control flow differs, the earlier value waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from nncdbg.engine.comparison.measure import measure
from nncdbg.engine.comparison.report import NOWHERE, DifferenceCause, DiffReport, Match
from nncdbg.engine.comparison.tolerance import Tolerance
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.blame import StatementVerdict, is_discrete
from nncdbg.engine.divergence.casting import has_same_places
from nncdbg.engine.divergence.declared import declared_differences, kernel_difference
from nncdbg.engine.divergence.narrow_causes import cause_of_types
from nncdbg.engine.divergence.paired_runs import PairedRuns
from nncdbg.engine.divergence.pending import Pending
from nncdbg.engine.divergence.recomputation import Recomputation, terms_of
from nncdbg.engine.divergence.side import Side
from nncdbg.engine.divergence.tally import Tally
from nncdbg.engine.divergence.written import GONE, Key, Written, site_of
from nncdbg.engine.ops.aten.operators import allocates_only
from nncdbg.ir.records import Program

BUDGET = 1 << 30
"""Maximum bytes of waiting values in memory, per side."""


def compared(
    a: Debugger,
    b: Debugger,
    tolerance: Tolerance | None = None,
    *,
    same_places: bool | None = None,
    budget: int = BUDGET,
) -> Lockstep | PairedRuns:
    """Return the comparison of two debuggers at their entry, ready to run.

    `same_places`: side B is side A with other settings, so pairing is needed only if casts were inserted;
    None determines this from the programs.
    """
    if same_places is None:
        same = _same(a.program, b.program)
    else:
        same = same_places and has_same_places(a.loaded.program, b.loaded.program)
    kind = Lockstep if same else PairedRuns
    return kind(a, b, tolerance or Tolerance(), budget)


def _same(a: Program, b: Program) -> bool:
    """Return whether two programs are equal, apart from data in stores."""
    return a is b or (a == b and not a.stores)


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first result that differs, and what differs in its statement: no text if nothing does."""

    match: Match
    causes: tuple[str, ...]


class Lockstep:
    """Compares two debuggers of one program, statement by statement."""

    def __init__(self, a: Debugger, b: Debugger, tolerance: Tolerance, budget: int = BUDGET) -> None:
        # With two element types, the origins of operands tell constants from results.
        self.a, self.b = Side(a, "side A", origins=a.program is not b.program), Side(b, "side B")
        self.tolerance = tolerance
        self.tally = Tally(self.a, self.b, tolerance)
        self.report = self.tally.report
        self._budget = budget
        self._recomputation = Recomputation(a, tolerance)

    def pause(self) -> None:
        """Interrupt the run before the next statement; `run` raises KeyboardInterrupt."""
        for side in (self.a, self.b):
            side.debugger.pause()

    def counterpart(self, key: Key) -> Key | None:
        """Return B's key for a statement and visit of A, which is the same key."""
        return key

    def run(self) -> DiffReport:
        """Run both sides to their ends and compare.

        Raises the error of a failed side, and KeyboardInterrupt after a pause.
        """
        with Pending(self._budget) as mine, Pending(self._budget) as theirs:
            while True:
                one, other = self.a.advance(), self.b.advance()
                if one is None and other is None:
                    break
                for pair in self._pairs(one, other, mine, theirs):
                    self._compare(*pair)
            for side, waiting in ((self.a, mine), (self.b, theirs)):
                for written in waiting.rest():
                    self.tally.lonely(side, written)
            self.report.spilled = mine.spilled + theirs.spilled
        self.tally.outputs()
        self.tally.finish()
        return self.report

    def run_to_difference(self, more: Callable[[], bool]) -> FirstDifference | None:
        """Run both sides while `more` to the first statement with different results; None without one.

        Raises the error of a failed side, and KeyboardInterrupt after a pause.
        """
        with Pending(self._budget) as mine, Pending(self._budget) as theirs:
            while more():
                one, other = self.a.advance(), self.b.advance()
                if one is None and other is None:
                    break
                for pair in self._pairs(one, other, mine, theirs):
                    differ = self._compare(*pair)
                    if differ:
                        return FirstDifference(differ[0], self._causes(*pair))
        return None

    def _causes(self, one: Written, other: Written) -> tuple[str, ...]:
        """Return the attributes and constants that differ; without one, the verdict on the statement."""
        sites = [partial(site_of, side.debugger, each, 0) for side, each in ((self.a, one), (self.b, other))]
        same_op = one.node.op == other.node.op
        declared = declared_differences(one, other, sites[0], sites[1]) if same_op else []
        return tuple(each.text for each in declared) or tuple(cause.text for cause in self.report.causes)

    def _pairs(
        self, one: Written | None, other: Written | None, mine: Pending, theirs: Pending
    ) -> Iterator[tuple[Written, Written]]:
        """Yield the statements that both sides have executed by now, and keep the others."""
        if one is not None and other is not None and one.key == other.key:
            yield one, other
            return
        if one is not None:
            partner = theirs.take(one.key)
            if partner is not None:
                yield one, partner
            else:
                mine.put(one)
        if other is not None:
            partner = mine.take(other.key)
            if partner is not None:
                yield partner, other
            else:
                theirs.put(other)

    def _compare(self, one: Written, other: Written) -> list[Match]:
        """Return the results that differ."""
        differ: list[Match] = []
        if allocates_only(one.node.op) and allocates_only(other.node.op):
            return differ
        for index, pair in enumerate(zip(one.contents, other.contents, strict=False)):
            if any(content is GONE for content in pair):
                self.report.gone += 1
                continue
            a, b = site_of(self.a.debugger, one, index), site_of(self.b.debugger, other, index)
            match = measure(a, b, "place", pair, self.tolerance)
            if match.diverges:
                terms = terms_of(one.code, one.pc, one.operands, one.contents)
                match = measure(a, b, "place", pair, self.tolerance, terms)
            self.tally.add(one, match)
            if match.diverges:
                differ.append(match)
        if differ and self.tally.worth_judging(one.key[0]):
            self.tally.judged(differ, self._verdict(one, other, differ))
        return differ

    def _verdict(self, one: Written, other: Written, matches: list[Match]) -> StatementVerdict:
        """Judge the statement itself: compare A's kernel on B's operands with B's results."""
        if one.operands is None or other.operands is None:
            return StatementVerdict()
        like = [*map(self.a.debugger.backend.to_host, one.operands)]
        operands = [*map(self.b.debugger.backend.to_host, other.operands)]
        agree = all(
            not measure(NOWHERE, NOWHERE, "place", pair, self.tolerance).diverges
            for pair in zip(like, operands, strict=True)
        )
        found = self._recomputation.results(one.code, one.pc, operands, like)
        apart = None
        if found is not None:
            apart = self._recomputation.apart(one.code, one.pc, operands, found, other.contents)
        significant = apart is not None and apart.significant
        worst = max(matches, key=lambda match: match.excess.factor)
        run = partial(self._recomputation.changes, one, like)
        narrow = cause_of_types(one, other, (like, operands), found if significant else None, run)
        if narrow is not None:
            return StatementVerdict(DifferenceCause(narrow[0], worst.a, worst.b, narrow[1], worst))
        if apart is None or significant:
            if apart is None and not agree:
                return StatementVerdict()
            text = kernel_difference(one, other)
            return StatementVerdict(DifferenceCause("kernel", worst.a, worst.b, text, worst))
        return StatementVerdict(tie=agree and is_discrete(one, other.contents))
