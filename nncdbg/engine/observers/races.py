"""Statements that use memory which a statement of another stream uses without an order: the kind `race`.

Which statements do is decided by the schedule, not by the order in which this run executes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nncdbg.comparison.schedule_problems import ScheduleProblem
from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.execution.findings import RACE, Finding, Report
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.schedules.validation import validated
from nncdbg.ir.records import Program
from nncdbg.ir.streams import THE_HOST, Site, scheduled, stream_name
from nncdbg.text.lexemes import name_text


class Races:
    """Reports findings of the kind `race`, after the second statement of each race of the text."""

    def __init__(self, program: Program, report: Report) -> None:
        self.report = report
        self._program = program
        self._details: Mapping[Site, str] | None = None

    @property
    def details(self) -> Mapping[Site, str]:
        """What each statement with a race does."""
        if self._details is None:
            found = validated(self._program).problems if scheduled(self._program) else ()
            self._details = {each.second.site: _detail(each) for each in found if each.kind == "race"}
        return self._details

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return the instruction of a statement with a race with its report, any other one unchanged."""
        if (binding.code.path, binding.pc) not in self.details:
            return execute

        def reported(*inputs: Any) -> Any:
            results = execute(*inputs)
            for finding in self.at(binding):
                self.report(finding)
            return results

        return reported

    def at(self, statement: Statement) -> Iterator[Finding]:
        """Yield the finding of a statement, if it has a race."""
        detail = self.details.get((statement.code.path, statement.pc))
        if detail is not None:
            yield Finding(RACE, statement, detail)


def _detail(problem: ScheduleProblem) -> str:
    first, second = problem.first, problem.second
    assert first is not None
    one, other = ("writes" if each == "write" else "reads" for each in problem.access.split("-"))
    streams = [stream_name(each.stream, THE_HOST) for each in (first, second)]
    what = f"{streams[0]} {one} %{name_text(first.name)}, and {streams[1]} {other} %{name_text(second.name)}"
    return f"{what}; no event orders them"
