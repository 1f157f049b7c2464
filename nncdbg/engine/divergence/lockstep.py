"""Compare one program on two sides in lockstep: each value as soon as both sides have written it.

One value per side is held at a time; where control flow differs, the earlier value waits: in memory up to a
budget, beyond it in files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from nncdbg.comparison.measure import agree
from nncdbg.comparison.report import DifferenceCause, DiffReport, FirstDifference, Key, Match
from nncdbg.comparison.tolerance import Tolerance
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.blame import StatementVerdict, is_discrete
from nncdbg.engine.divergence.casting import has_same_places
from nncdbg.engine.divergence.paired_runs import PairedRuns, TwoRuns
from nncdbg.engine.divergence.recomputation import Recomputation
from nncdbg.engine.divergence.sides import Side, TracedValues, Written, key_of, site_of
from nncdbg.engine.divergence.statement_differences import (
    cause_of_types,
    declared_differences,
    kernel_difference,
)
from nncdbg.engine.execution.frame import Frame
from nncdbg.errors import NotComputed
from nncdbg.expression import spelled


class Pending(TracedValues):
    """Written values not yet compared, by key."""

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self._waiting: dict[Key, Written] = {}

    def rest(self) -> Iterator[Written]:
        """Yield all waiting statements, without their contents."""
        for each in self._waiting.values():
            yield replace(each, contents=())

    def keep(self, written: Written) -> None:
        contents = tuple(map(self.put, written.contents))
        # Operands can be large, and are needed only while both sides are at the statement.
        self._waiting[written.key] = replace(written, contents=contents, operands=None)

    def take(self, key: Key) -> Written | None:
        """Remove and return the statement that waits under a key; None if there is none."""
        found = self._waiting.pop(key, None)
        return None if found is None else replace(found, contents=tuple(map(self.pop, found.contents)))


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
        # Equal, apart from data in stores.
        same = a.program is b.program or (a.program == b.program and not a.program.stores)
    else:
        same = same_places and has_same_places(a.loaded.program, b.loaded.program)
    kind = Lockstep if same else PairedRuns
    return kind(a, b, tolerance or Tolerance(), budget)


class Lockstep(TwoRuns):
    """Compares two debuggers of one program, statement by statement."""

    def __init__(self, a: Debugger, b: Debugger, tolerance: Tolerance, budget: int = BUDGET) -> None:
        # With two element types, the origins of operands tell constants from results.
        origins = a.program is not b.program
        super().__init__(Side(a, "side A", origins=origins), Side(b, "side B"), tolerance, budget)
        self._recomputation = Recomputation(a, tolerance)

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
                    self.builder.lonely(side, written)
            self.report.spilled = mine.spilled + theirs.spilled
        self.builder.outputs()
        self.builder.finish()
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
                mine.keep(one)
        if other is not None:
            partner = mine.take(other.key)
            if partner is not None:
                yield partner, other
            else:
                theirs.keep(other)

    def _compare(self, one: Written, other: Written) -> list[Match]:
        """Return the results that differ."""
        matches = self.matches(one, other, "place", lambda: one.operands)
        for match in matches:
            self.builder.add(one, match)
        differ = [match for match in matches if match.diverges]
        if differ and self.builder.worth_judging(one.key[0]):
            self.builder.judged(differ, self._verdict(one, other, differ))
        return differ

    def _verdict(self, one: Written, other: Written, matches: list[Match]) -> StatementVerdict:
        """Judge the statement itself: compare A's kernel on B's operands with B's results."""
        if one.operands is None or other.operands is None:
            return StatementVerdict()
        like = [*map(self.a.debugger.backend.to_host, one.operands)]
        operands = [*map(self.b.debugger.backend.to_host, other.operands)]
        same = all(agree(*pair, self.tolerance) for pair in zip(like, operands, strict=True))
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
            if apart is None and not same:
                return StatementVerdict()
            text = kernel_difference(one, other)
            return StatementVerdict(DifferenceCause("kernel", worst.a, worst.b, text, worst))
        return StatementVerdict(tie=same and is_discrete(one, other.contents))


class SideBValues:
    """Recomputes values of side B after a comparison, by running side B to the statements that write them.

    Changes made on side A do not affect side B.
    """

    def __init__(self, comparison: Lockstep | PairedRuns) -> None:
        self._comparison = comparison
        self._side = comparison.b
        self._latest: tuple[Key, Written] | None = None

    def value(self, debugger: Debugger, name: str) -> tuple[str, Any]:
        """Return side B's name and content for `name` of side A, in the selected frame of `debugger`.

        Raises NotComputed if the value has no counterpart, and the errors of `Values.place`.
        """
        place = debugger.values.place(name)
        if place.depth is None:
            raise NotComputed(
                f"{spelled(name)} belongs to a block that has ended", hint="stop inside the block"
            )
        frames, slot = _home(debugger.control.machine.frames[: place.depth + 1], place.slot)
        code = frames[-1].code
        pc = code.definition[slot]
        if pc < 0:
            return self._given(code.names[slot], frames, slot)
        key = self._comparison.counterpart(key_of(frames, pc))
        if key is None:
            raise NotComputed(f"{spelled(name)} has no counterpart on side B")
        written = self._seek(key)
        if written is None:
            raise NotComputed(f"side B does not reach the counterpart of {spelled(name)}")
        index = [value.name for value in code.nodes[pc].outputs if value.name].index(code.names[slot])
        return written.names[index], written.contents[index]

    def _given(self, name: str, frames: list[Frame], slot: int) -> tuple[str, Any]:
        inputs = self._side.debugger.inputs
        if len(frames) == 1 and slot <= len(frames[0].code.graph.inputs) and name in inputs:
            return name, inputs[name]
        raise NotComputed(
            f"{spelled(name)} is an input of its block; only results of statements have counterparts",
            hint="compare the value passed to the block",
        )

    def _seek(self, key: Key) -> Written | None:
        """Run side B forward, then again from its start, until it writes `key`; None if it never does."""
        if self._latest is not None and self._latest[0] == key:
            return self._latest[1]
        for _ in range(2):
            for written in self._side.all():
                if written.key == key:
                    self._latest = key, written
                    return written
            self._side.debugger.restart()
        return None


def _home(frames: list[Frame], slot: int) -> tuple[list[Frame], int]:
    """Return the frames down to the one that wrote a captured value or call argument, and its slot there."""
    while len(frames) > 1:
        inner, outer = frames[-1], frames[-2]
        captures = {inside: outside for outside, inside in inner.code.captures}
        given = len(inner.code.path) == 1 and slot <= len(inner.code.graph.inputs)
        if slot not in captures and not given:
            break
        slot = captures[slot] if slot in captures else outer.code.operands[outer.pc][slot - 1]
        frames = frames[:-1]
    return frames, slot
