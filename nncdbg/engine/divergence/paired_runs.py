"""Run two programs to their ends, pair their statements, and compare every pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from nncdbg.comparison.measure import measure
from nncdbg.comparison.report import NOWHERE, DiffReport, Key, Match, Place
from nncdbg.comparison.tolerance import Tolerance
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.blame import Blame
from nncdbg.engine.divergence.casting import input_pairs
from nncdbg.engine.divergence.pairing import Pairs, RunUnits, false_pairs, paired, units_of
from nncdbg.engine.divergence.recomputation import terms_of
from nncdbg.engine.divergence.report_builder import ReportBuilder
from nncdbg.engine.divergence.sides import (
    FREED,
    RunTrace,
    Side,
    TracedValues,
    Written,
    WrittenResult,
    site_of,
)
from nncdbg.engine.divergence.statement_differences import declared_differences
from nncdbg.engine.ops.aten.operators import allocates_only
from nncdbg.errors import NncdbgError
from nncdbg.expression import spelled

_SAMPLES = 16
"""Number of elements compared before two whole tensors are compared."""


_ALIKE = 0.5
"""Minimum cosine of two results that are paired by position."""


class TwoRuns:
    """Two runs that are compared, and the report on them."""

    def __init__(self, a: Side, b: Side, tolerance: Tolerance, budget: int) -> None:
        self.a, self.b, self.tolerance = a, b, tolerance
        self.builder = ReportBuilder(a, b, tolerance)
        self.report = self.builder.report
        self._budget = budget

    def pause(self) -> None:
        """Interrupt the run before the next statement; `run` raises KeyboardInterrupt."""
        for side in (self.a, self.b):
            side.debugger.pause()

    def matches(
        self, one: Written, other: Written, way: str, operands: Callable[[], Sequence[Any] | None]
    ) -> list[Match]:
        """Compare the results of two statements; `operands` returns those of A's statement."""
        matches: list[Match] = []
        if allocates_only(one.node.op) and allocates_only(other.node.op):
            return matches
        for index, pair in enumerate(zip(one.contents, other.contents, strict=False)):
            if any(content is FREED for content in pair):
                self.report.gone += 1
                continue
            a, b = site_of(self.a.debugger, one, index), site_of(self.b.debugger, other, index)
            match = measure(a, b, way, pair, self.tolerance)
            if match.diverges and one.operands is not None:
                terms = terms_of(one.code, one.pc, operands(), one.contents)
                match = measure(a, b, way, pair, self.tolerance, terms)
            matches.append(match)
        return matches


class PairedRuns(TwoRuns):
    """Compares two programs; after `run`, `pairs` maps A's statements to B's."""

    def __init__(self, a: Debugger, b: Debugger, tolerance: Tolerance, budget: int) -> None:
        sides = Side(a, "side A", origins=True), Side(b, "side B", origins=True)
        super().__init__(*sides, tolerance, budget)
        self.pairs: Pairs = {}
        self._back: dict[Place, Place] = {}

    def counterpart(self, key: Key) -> Key | None:
        """Return B's key for a statement and visit of A; None if there is none."""
        found = self.pairs.get(key[0])
        return None if found is None else (found[0], key[1])

    def run(self) -> DiffReport:
        """Run both sides to their ends and compare.

        Raises the error of a failed side, with the first earlier cause as a hint, and
        KeyboardInterrupt after a pause.
        """
        with TracedValues(self._budget) as mine, TracedValues(self._budget) as theirs:
            one, other = RunTrace(self.a, mine).record(), RunTrace(self.b, theirs)
            try:
                other.record()
            except NncdbgError as error:
                self._paired(one, other).statements()
                self.builder.finish()
                if (cause := self.report.cause) is not None:
                    site = cause.site
                    where = "" if site.line is None else f", line {site.line}"
                    error.hint = f"the sides differ earlier: {cause.text} ({spelled(site.value)}{where})"
                raise
            self.report.spilled = mine.spilled + theirs.spilled
            comparison = self._paired(one, other)
            comparison.statements()
            comparison.outputs()
            self.builder.finish()
        return self.report

    def _paired(self, one: RunTrace, other: RunTrace) -> _Comparison:
        inputs = input_pairs(other.side.graph, one.side.debugger.inputs)
        units = units_of(one, {}), units_of(other, inputs)
        agreement = _Agreement(one, other, self.tolerance)
        self.pairs = paired(*units, agreement, agreement.alike)
        self._back = {there: here for here, (there, _) in self.pairs.items()}
        return _Comparison(self, one, other, units, {here: there for there, here in inputs.items()})

    def discard(self, place: Place) -> None:
        """Discard the pair of a statement of A."""
        there, _ = self.pairs.pop(place)
        del self._back[there]

    def counterpart_in_a(self, key: Key) -> Key | None:
        """Return A's key for a statement and visit of B; None if there is none."""
        here = self._back.get(key[0])
        return None if here is None else (here, key[1])


class _Agreement:
    """Tests whether the results of two statements agree at their first visits; compares samples first."""

    def __init__(self, a: RunTrace, b: RunTrace, tolerance: Tolerance) -> None:
        self._a, self._b, self._tolerance = a, b, tolerance
        self._samples: dict[tuple[bool, Place], Any] = {}

    def __call__(self, here: Place, there: Place) -> bool:
        x, y = self._sample(self._a, here), self._sample(self._b, there)
        if x is None or y is None or not self._same(x, y):
            return False
        one, other = (
            trace.at(trace.first[place].key) for trace, place in ((self._a, here), (self._b, there))
        )
        return all(self._same(*pair) for pair in zip(one.contents, other.contents, strict=False))

    def alike(self, here: Place, there: Place) -> bool:
        """Return whether the first results have a similar direction, or none."""
        x, y = (
            trace.at(trace.first[place].key).contents for trace, place in ((self._a, here), (self._b, there))
        )
        match = measure(NOWHERE, NOWHERE, "value", (x[0], y[0]), self._tolerance) if x and y else None
        cosine = None if match is None or match.comparison is None else match.comparison.cosine
        return cosine is None or cosine >= _ALIKE

    def _same(self, x: Any, y: Any) -> bool:
        match = measure(NOWHERE, NOWHERE, "value", (x, y), self._tolerance)
        return not match.diverges and not match.excess.marginal

    def _sample(self, trace: RunTrace, place: Place) -> Any:
        key = (trace is self._a, place)
        if key not in self._samples:
            contents = trace.at(trace.first[place].key).contents
            self._samples[key] = _sampled(contents[0]) if contents else None
        return self._samples[key]


def _sampled(content: Any) -> Any:
    """Return a few elements of a tensor, the largest included, so that its tolerance applies to them."""
    if not isinstance(content, np.ndarray) or content.dtype.hasobject or not content.size:
        return content if content is not FREED else None
    flat = content.reshape(-1)
    with np.errstate(all="ignore"):
        largest = int(np.argmax(np.abs(flat.astype(np.complex128))))
    step = max(1, flat.size // _SAMPLES)
    return flat[np.sort([*range(0, flat.size, step), largest])] if flat.size > 4 * _SAMPLES else content


class _Comparison:
    """Compares every pair of two traces, then finds the statements that differ by themselves."""

    def __init__(
        self,
        runs: PairedRuns,
        a: RunTrace,
        b: RunTrace,
        units: tuple[RunUnits, RunUnits],
        inputs: dict[str, str],
    ) -> None:
        self._runs, self._a, self._b, self._units = runs, a, b, units
        self._builder = runs.builder
        self._blame = Blame(a, b, runs.counterpart, runs.counterpart_in_a, inputs, runs.tolerance)

    def statements(self) -> None:
        """Compare the statements, and judge those with different results."""
        compared = {
            key: self._compare(key, self._a.at(key), self._b.at(other))
            for key in self._a.keys
            if (other := self._runs.counterpart(key)) is not None and other in self._b
        }
        differ = {key[0] for key in _differing(compared)}
        reshaped = {place for place in differ if self._b.outputs and self._is_reshaped(place)}
        for place in false_pairs(*self._units, self._runs.pairs, differ, reshaped):
            self._runs.discard(place)
        for key in self._a.keys:
            if self._runs.counterpart(key) is None or key not in compared:
                compared.pop(key, None)
                self._builder.lonely(self._a.side, self._a.at(key))
            for match in compared.get(key, ()):
                self._builder.add(self._a.at(key), match)
        for key in self._b.keys:
            if (here := self._runs.counterpart_in_a(key)) is None or here not in self._a:
                self._builder.lonely(self._b.side, self._b.at(key))
        self._declared()
        for key, matches in _differing(compared).items():
            if not self._builder.worth_judging(key[0]):
                continue
            verdict = self._blame.judge(key, max(matches, key=lambda match: match.excess.factor))
            self._builder.judged(matches, verdict)

    def _is_reshaped(self, place: Place) -> bool:
        there = self._runs.pairs[place][0]
        x, y = (
            trace.at(trace.first[each].key).contents[0]
            for trace, each in ((self._a, place), (self._b, there))
        )
        if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray) or x.size != y.size:
            return False
        return x.shape != y.shape and self._blame.same(x.reshape(-1), y.reshape(-1))

    def _compare(self, key: Key, one: Written, other: Written) -> list[Match]:
        way = self._runs.pairs[key[0]][1]
        return self._runs.matches(one, other, way, lambda: self._a.operands(one))

    def _declared(self) -> None:
        """Record the attributes and parameters that differ between the statements of a pair."""
        for place, (there, _) in self._runs.pairs.items():
            one, other = self._a.first[place], self._b.first[there]
            if one.node.op == other.node.op:
                self._builder.report.differences += declared_differences(
                    one,
                    other,
                    partial(site_of, self._a.side.debugger, one, 0),
                    partial(site_of, self._b.side.debugger, other, 0),
                    partial(self._blame.same_form, one, other),
                )

    def outputs(self) -> None:
        """Compare the outputs, and judge those given by unpaired statements."""
        self._builder.outputs()
        names = [value.name for value in self._a.side.graph.outputs]
        others = [value.name for value in self._b.side.graph.outputs]
        for match in self._builder.report.outputs:
            if not match.diverges:
                continue
            mine = self._a.outputs[names.index(match.a.value)]
            theirs = self._b.outputs[others.index(match.b.value)]
            if not self._are_pair(mine, theirs):
                self._builder.judged([match], self._blame.judge_output(mine, theirs, match))

    def _are_pair(self, mine: Any, theirs: Any) -> bool:
        return (
            isinstance(mine, WrittenResult)
            and isinstance(theirs, WrittenResult)
            and self._runs.counterpart(mine.key) == theirs.key
        )


def _differing(compared: Mapping[Key, Sequence[Match]]) -> dict[Key, list[Match]]:
    """Return the matches that differ, of the statements that have one."""
    found = {key: [match for match in matches if match.diverges] for key, matches in compared.items()}
    return {key: matches for key, matches in found.items() if matches}
