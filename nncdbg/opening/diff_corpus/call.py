"""`nncdbg.diff_corpus`: compare two programs with each case of a folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

from nncdbg.engine.comparison.tolerance import Tolerance
from nncdbg.engine.frontends import ProgramSource
from nncdbg.opening.corpus.cases import CaseResult, sentences
from nncdbg.opening.corpus.engines import PROCESSES
from nncdbg.opening.corpus.running import run_cases
from nncdbg.opening.corpus.source import called_program
from nncdbg.opening.diff_corpus.report import DiffCorpusReport
from nncdbg.opening.diff_corpus.task import DiffTask


def diff_corpus(
    a: ProgramSource,
    b: ProgramSource | None = None,
    inputs: Mapping[str, Any] | None = None,
    *,
    inputs_dir: str | os.PathLike[str],
    jobs: int | None = None,
    executor: str | Executor = PROCESSES,
    budget: float | None = None,
    backend: str | None = None,
    backend_b: str | None = None,
    allocator: str | None = None,
    allocator_b: str | None = None,
    dtype_b: str | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    ulp: int | None = None,
    **fields: Any,
) -> DiffCorpusReport:
    """Compare `a` and `b` (default: `a` again, with the `_b` arguments) with each case of a folder.

    The programs, `inputs` for every case, and the arguments of the machine and of the tolerance are as for
    `nncdbg.diff`; `inputs_dir`, `jobs`, `executor` and `budget` are as for `nncdbg.watch`.

    Raises what `nncdbg.load` raises, LoadError for an unreadable folder, and UsageError for options that fit
    no case.  The error of a side that fails is in its case.
    """
    arguments = {"backend": backend, "allocator": allocator, **fields}
    sides = [None if each is None else called_program(each, inputs, arguments)[0] for each in (a, b)]
    assert sides[0] is not None
    tolerance = Tolerance(rtol, atol, ulp)
    task = DiffTask(sides[0], sides[1], backend_b, allocator_b, dtype_b, tolerance)
    return run_diff_corpus(task, inputs_dir, jobs=jobs, executor=executor, budget=budget)


def run_diff_corpus(task: DiffTask, folder: str | os.PathLike[str], **fields: Any) -> DiffCorpusReport:
    """Compare two programs with each case of a folder; `fields` are as for `run_cases`."""
    report = DiffCorpusReport()
    notes: Counter[str] = Counter()

    def add(result: CaseResult) -> None:
        report.cases.append(result.case)
        notes.update(result.found or ())

    end = run_cases(task, folder, add, seed=task.a.configuration.seed, **fields)
    if end.note:
        report.notes.append(end.note)
    report.notes += sentences(notes, len(report.cases))
    if end.left:
        report.unchecked.append(f"cases: {end.left_out(len(report.cases))}")
    report.interrupted = end.interrupted
    report.error = end.failure(len(report.cases))
    return report
