"""Check that a memory watch reports the victim and the culprit of a planted bug."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

import nncdbg
from nncdbg.engine.divergence.digest_run import digest
from nncdbg.engine.memory.placed import PlacedAllocation
from nncdbg.nan_watch.memory.comparison import watch_memory
from tests.bugs.plan_truth import History
from tests.bugs.plans import Mutant, mutants, plan_of


@dataclass(frozen=True, slots=True)
class Verdict:
    """`expected` and `reported` are (victim's line, value read, culprit's line, value written), or None."""

    pattern: str
    expected: tuple[Any, ...] | None
    reported: tuple[Any, ...] | None

    @property
    def right(self) -> bool:
        return self.expected is not None and self.expected == self.reported


class Subject:
    """A program with inputs for the trial of plans."""

    def __init__(self, program: nncdbg.Program, inputs: dict[str, Any]) -> None:
        self.program, self.inputs = program, inputs
        self.history = History(program, inputs)

    def false_alarms(self) -> int:
        """Return the number of findings with correct plans."""
        plans = [plan_of(self.history, reuse=reuse) for reuse in (True, False)]
        assert all(self.history.truth(plan) is None for plan in plans)
        return sum(
            len(watch_memory(self.program, self.inputs, plan=plan).findings) for plan in (None, *plans)
        )

    def changes_a_result(self, mutant: Mutant) -> bool:
        """Return whether an arena that follows the plan computes other outputs."""
        arena = PlacedAllocation(mutant.plan)
        debugger = nncdbg.Debugger(self.program, self.inputs, allocator=arena, statistics=False)
        # A loop with an overwritten condition may never end.
        while (
            not debugger.control.machine.ended
            and debugger.control.machine.tick <= 2 * len(self.history.steps) + 100
        ):
            outcome = debugger.control.machine.step()
            if getattr(outcome, "error", None) is not None:
                return True
        outputs = debugger.outputs
        if outputs is None:
            return True
        return any(digest(outputs[name]) != digest(value) for name, value in self.history.outputs.items())

    def judge(self, mutant: Mutant) -> Verdict:
        history, truth = self.history, self.history.truth(mutant.plan)
        expected = reported = None
        if truth is not None:
            overwriter = truth.overwriter
            expected = (
                history.line(truth.reader),
                truth.name,
                history.line(overwriter.writer),
                overwriter.site[1],
            )
        findings = watch_memory(self.program, self.inputs, plan=mutant.plan).findings
        if findings and findings[0].kind == "reuse" and findings[0].other is not None:
            site, other = findings[0].site, findings[0].other
            reported = site.line, site.value, other.line, other.value
        return Verdict(mutant.pattern, expected, reported)

    def harmful(self, random: Random, each: int, tries: int = 1000) -> Iterator[Mutant]:
        """Yield mutants that change a result: at most `each` per pattern, from the first `tries`."""
        taken: dict[str, int] = {}
        for mutant in islice(mutants(self.history, random), tries):
            if taken.get(mutant.pattern, 0) < each and self.changes_a_result(mutant):
                taken[mutant.pattern] = taken.get(mutant.pattern, 0) + 1
                yield mutant
