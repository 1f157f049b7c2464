"""Watch a program with many cases, in parallel processes or on an executor."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from nncdbg.nan_watch.baselines.recording import fingerprint, record, write
from nncdbg.nan_watch.corpus.report import CorpusReport
from nncdbg.nan_watch.corpus.task import WatchTask
from nncdbg.nan_watch.measuring.measuring import check_good
from nncdbg.nan_watch.records import Report
from nncdbg.opening.corpus.cases import CaseResult
from nncdbg.opening.corpus.running import run_cases


def run_corpus(
    task: WatchTask,
    folder: str | os.PathLike[str] | None,
    *,
    record_to: str | os.PathLike[str] | None = None,
    **fields: Any,
) -> Report:
    """Watch a program with each case of a folder, or several times without one; `fields` as for `run_cases`.

    `record_to` is the file of a recording of all runs together.  After an interruption, or if the executor
    fails, the report covers the finished cases, with `Report.interrupted` or `Report.error`.

    A case is `ok`, `tripped`, `failed` (the run), `crashed` (the process), `unreadable`, `unfit`
    (its inputs do not fit) or `not run`.
    """
    check_good(task.gates, task.good)
    task = replace(task, keep=task.keep or record_to is not None or task.good is not None)
    model = task.source.configuration.program
    whole = CorpusReport(model, task.gates, task.max_findings)

    def add(result: CaseResult) -> None:
        report, tracks = result.found or (Report(), ())
        whole.add(result.case, report, tracks)

    end = run_cases(task, folder, add, **fields)
    whole.end(end)
    if record_to is not None:
        program = task.source.program or task.source.opened().program
        write(record(fingerprint(program), model, whole.tracks.ordered()), record_to)
    return whole.finished(task.good)
