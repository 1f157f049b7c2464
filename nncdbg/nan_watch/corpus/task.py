"""What a worker does with a case of a watched corpus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nncdbg.engine.execution.linking import Allocation
from nncdbg.nan_watch.baselines.recording import Recording
from nncdbg.nan_watch.measuring.gates import Gates
from nncdbg.nan_watch.measuring.measuring import Measuring
from nncdbg.nan_watch.runs import case_of
from nncdbg.nan_watch.watching import usual_allocation, watch_run
from nncdbg.opening.corpus.cases import CaseResult, CaseRun
from nncdbg.opening.corpus.source import CorpusProgram, check_machine, inputs_of_case
from nncdbg.opening.corpus.worker import reading_inputs
from nncdbg.opening.programs import OpenedProgram


@dataclass(frozen=True, slots=True)
class WatchTask:
    """The program and the gates that all cases share.

    With `keep` the statistics of every statement are sent back; `good` is the recording to compare with.
    """

    source: CorpusProgram
    gates: Gates
    max_findings: int = 20
    keep: bool = False
    good: Recording | None = None

    def open(self) -> OpenedWatch:
        """Load the program; raises the errors that affect every case."""
        watch = OpenedWatch(self, self.source.opened())
        check_machine(watch.opened, watch.allocator)
        return watch


@dataclass(frozen=True, slots=True)
class OpenedWatch:
    """A watch in a worker."""

    task: WatchTask
    opened: OpenedProgram

    @property
    def statistics(self) -> bool:
        """Return whether the runs must log statistics."""
        return self.task.gates.measured or self.task.keep

    @property
    def allocator(self) -> str | Allocation | None:
        configuration = self.opened.configuration
        return usual_allocation(
            configuration.allocator,
            configuration.backend,
            self.statistics,
            configuration.in_place_states,
        )

    def run(self, job: CaseRun, boxes: Path | None) -> CaseResult:
        """Watch a case; raises the error of a gate that matches nothing, in this and every other case."""
        task = self.task
        with reading_inputs():
            debugger = self.opened.debugger(
                inputs={**self.opened.configuration.inputs, **inputs_of_case(self.opened, job)},
                allocator=self.allocator,
                seed=job.seed,
                statistics=self.statistics,
                boxes=boxes,
            )
        measuring = Measuring(debugger, task.gates, keep=task.keep, good=task.good)
        report = watch_run(debugger, task.gates, max_findings=task.max_findings, measuring=measuring)
        return CaseResult(job.index, case_of(job.name, report), (report, measuring.tracks))
