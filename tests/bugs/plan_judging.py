"""Whether a watch of memory names victim and culprit of a planted bug."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

import nncdbg
from nncdbg.engine.divergence.played import digest
from nncdbg.engine.memory.placed import PlacedAllocation
from nncdbg.nan_watch.memory.comparison import watch_memory
from tests.bugs.plan_truth import Story
from tests.bugs.plans import Mutant, mutants, plan_of


@dataclass(frozen=True, slots=True)
class Verdict:
    """`expected` and `told` are (victim's line, value read, culprit's line, value written), or None."""

    pattern: str
    expected: tuple[Any, ...] | None
    told: tuple[Any, ...] | None

    @property
    def right(self) -> bool:
        return self.expected is not None and self.expected == self.told


class Subject:
    """A program with inputs, on which plans are tried."""

    def __init__(self, program: nncdbg.Program, inputs: dict[str, Any]) -> None:
        self.program, self.inputs = program, inputs
        self.story = Story(program, inputs)

    def false_alarms(self) -> int:
        """Findings under plans that are right."""
        plans = [plan_of(self.story, reuse=reuse) for reuse in (True, False)]
        assert all(self.story.truth(plan) is None for plan in plans)
        return sum(
            len(watch_memory(self.program, self.inputs, plan=plan).findings) for plan in (None, *plans)
        )

    def changes_a_result(self, mutant: Mutant) -> bool:
        """Whether an arena that follows the plan gives other outputs."""
        arena = PlacedAllocation(mutant.plan)
        debugger = nncdbg.Debugger(self.program, self.inputs, allocator=arena, statistics=False)
        # A spoiled condition may go on for ever.
        while (
            not debugger.control.machine.ended
            and debugger.control.machine.tick <= 2 * len(self.story.steps) + 100
        ):
            outcome = debugger.control.machine.step()
            if getattr(outcome, "error", None) is not None:
                return True
        outputs = debugger.outputs
        if outputs is None:
            return True
        return any(digest(outputs[name]) != digest(value) for name, value in self.story.outputs.items())

    def judge(self, mutant: Mutant) -> Verdict:
        story, truth = self.story, self.story.truth(mutant.plan)
        expected = told = None
        if truth is not None:
            taker = truth.taker
            expected = story.line(truth.reader), truth.name, story.line(taker.writer), taker.site[1]
        findings = watch_memory(self.program, self.inputs, plan=mutant.plan).findings
        if findings and findings[0].kind == "reuse" and findings[0].other is not None:
            site, other = findings[0].site, findings[0].other
            told = site.line, site.value, other.line, other.value
        return Verdict(mutant.pattern, expected, told)

    def harmful(self, random: Random, each: int, tries: int = 1000) -> Iterator[Mutant]:
        """Mutants that change a result, at most so many of each pattern, out of the first `tries`."""
        taken: dict[str, int] = {}
        for mutant in islice(mutants(self.story, random), tries):
            if taken.get(mutant.pattern, 0) < each and self.changes_a_result(mutant):
                taken[mutant.pattern] = taken.get(mutant.pattern, 0) + 1
                yield mutant
