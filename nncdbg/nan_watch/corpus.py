"""Watch a program with many cases, in parallel processes or on an executor; the reports become one."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nncdbg.comparison.check_results import NOT_CHECKED, PASSED, CheckResult
from nncdbg.engine.execution.linking import Allocation
from nncdbg.nan_watch.measuring.gates import Gates
from nncdbg.nan_watch.measuring.measuring import Measuring, check_good, verdict
from nncdbg.nan_watch.measuring.tracks import Track, Tracks
from nncdbg.nan_watch.recording import Recording, fingerprint, record, write
from nncdbg.nan_watch.records import OK, TRIPPED, Report, WatchFinding
from nncdbg.nan_watch.watching import WatchCriteria, case_of, usual_allocation, watch_run
from nncdbg.opening.corpus.cases import Case, CaseResult, CaseRun, sentences
from nncdbg.opening.corpus.engines import CaseExecution
from nncdbg.opening.corpus.running import CorpusEnd, Progress, run_cases
from nncdbg.opening.corpus.source import CorpusProgram, check_machine, inputs_of_case
from nncdbg.opening.corpus.worker import reading_inputs
from nncdbg.opening.programs import OpenedProgram

_SEED = re.compile(r"seed \d+")

_MOST = 1000
"""Most distinct findings kept while runs are added, whatever the number to list."""


class CorpusReport:
    """Combines the results of runs, in the order of their names, into one report.

    Unless `named`, there is only one run, and its case is not reported.
    """

    def __init__(self, model: str, gates: Gates, max_findings: int, *, named: bool = True) -> None:
        self._named = named
        self._gates = gates
        self._max_findings = max_findings
        self._report = Report(model=model)
        self._found: dict[tuple[Any, ...], WatchFinding] = {}
        self._dropped = 0
        self._notes: Counter[str] = Counter()
        self._results: Counter[CheckResult] = Counter()
        self.tracks = Tracks()

    def add(self, case: Case, report: Report, tracks: Sequence[Track] = ()) -> None:
        """Add another run, with its measurements."""
        whole = self._report
        if any(track.trips for track in tracks) and case.status == OK:
            case = replace(case, status=TRIPPED)
        if self._named:
            whole.cases.append(case)
        else:
            whole.error = report.error
            whole.training, whole.tracks = report.training, report.tracks
        whole.ops += report.ops
        whole.seconds += report.seconds
        for role, count in report.counts.items():
            whole.counts[role] += count
        for finding in report.findings:
            self._take(replace(finding, case=case.name if self._named else None, first=False))
        self._notes.update(
            _SEED.sub("the seed of each run", note) if self._named else note for note in report.notes
        )
        self._results.update(report.results)
        self.tracks.add(tracks, case.name if self._named else None)

    def _take(self, finding: WatchFinding) -> None:
        site, within = finding.site, finding.within
        place = site.graph, site.line, site.op, site.value
        inner = None if within is None else (within.line, within.op)
        key = finding.kind, finding.role, place, inner, finding.cause, finding.trips
        same = self._found.get(key)
        if same is not None:
            self._found[key] = replace(same, count=same.count + finding.count)
        elif len(self._found) < _MOST:
            self._found[key] = finding
        else:
            self._dropped += 1

    def end(self, end: CorpusEnd) -> None:
        """Enter how the run of the corpus ended; if no case ran, the report fails."""
        report, cases = self._report, len(self._report.cases)
        if end.note:
            report.notes.append(end.note)
        if end.left:
            report.results.append(CheckResult("cases", NOT_CHECKED, end.left_out(cases)))
        report.interrupted = end.interrupted
        report.error = end.failure(cases)

    def finished(self, good: Recording | None = None) -> Report:
        """Return the report of all runs, whose measurements are judged together."""
        report = self._report
        measured, left = verdict(self.tracks.ordered(), self._gates, good)
        for finding in measured:
            report.counts[finding.role] += 1
        findings = [*self._found.values(), *measured]
        first = next((index for index, each in enumerate(findings) if each.trips), None)
        if first is not None:
            findings[first] = replace(findings[first], first=True)
        report.findings = findings
        report.limit(self._max_findings)
        report.unlisted += self._dropped
        runs = max(1, len(report.cases))
        report.notes += sentences(self._notes, runs)
        report.results += _merged([*self._results, *left], self._results, runs)
        return report


def _merged(results: Iterable[CheckResult], runs_with: Counter[CheckResult], runs: int) -> list[CheckResult]:
    """Return the results of several runs: what was not checked, else whether a run checked it."""
    by_check: dict[str, list[CheckResult]] = {}
    for each in results:
        by_check.setdefault(each.check, []).append(each)
    found = []
    for same in by_check.values():
        left = [result for result in same if result.result == NOT_CHECKED]
        passed = [result for result in same if result.result == PASSED]
        for result in left:
            some = runs_with.get(result, runs)
            part = "" if some == runs else f" (in {some} of {runs} runs)"
            found.append(replace(result, reason=result.reason + part))
        found += [] if left else (passed or same)[:1]
    return found


@dataclass(frozen=True, slots=True)
class WatchTask:
    """The program that all cases share, and what they are judged by."""

    source: CorpusProgram
    criteria: WatchCriteria

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
    def allocator(self) -> str | Allocation | None:
        configuration = self.opened.configuration
        in_place = configuration.in_place_states
        statistics = self.task.criteria.measures
        return usual_allocation(configuration.allocator, configuration.backend, statistics, in_place)

    def run(self, job: CaseRun, boxes: Path | None) -> CaseResult:
        """Watch a case; raises the error of a gate that matches nothing, in this and every other case."""
        criteria = self.task.criteria
        with reading_inputs():
            debugger = self.opened.debugger(
                inputs={**self.opened.configuration.inputs, **inputs_of_case(self.opened, job)},
                allocator=self.allocator,
                seed=job.seed,
                statistics=criteria.measures,
                boxes=boxes,
            )
        measuring = Measuring(debugger, criteria.gates, keep=criteria.keeps_statistics, good=criteria.good)
        report = watch_run(debugger, criteria.gates, max_findings=criteria.max_findings, measuring=measuring)
        return CaseResult(job.index, case_of(job.name, report), (report, measuring.tracks))


def run_corpus(
    task: WatchTask,
    folder: str | os.PathLike[str] | None,
    execution: CaseExecution,
    *,
    runs: int = 1,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> Report:
    """Watch a program with each case of a folder, or several times without one.  Raises as `run_cases` does.

    A recording is of all runs together.  After an interruption, or if the executor fails, the report covers
    the finished cases, with `Report.interrupted` or `Report.error`.

    A case is `ok`, `tripped`, `failed` (the run), `crashed` (the process), `unreadable`, `unfit`
    (its inputs do not fit) or `not run`.
    """
    criteria = task.criteria
    check_good(criteria.gates, criteria.good)
    model = task.source.configuration.program
    whole = CorpusReport(model, criteria.gates, criteria.max_findings)

    def add(result: CaseResult) -> None:
        report, tracks = result.found or (Report(), ())
        whole.add(result.case, report, tracks)

    end = run_cases(task, folder, add, execution, runs=runs, seed=seed, progress=progress)
    whole.end(end)
    if criteria.record_to is not None:
        program = task.source.program or task.source.opened().program
        write(record(fingerprint(program), model, whole.tracks.ordered()), criteria.record_to)
    return whole.finished(criteria.good)
