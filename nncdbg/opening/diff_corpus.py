"""`nncdbg.diff_corpus`: compare two programs with each case of a folder."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nncdbg.comparison.tolerance import Tolerance
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.call import counterpart, inputs_of_side
from nncdbg.engine.divergence.casting import cast_program
from nncdbg.engine.divergence.lockstep import compared
from nncdbg.engine.frontends import ProgramSource
from nncdbg.errors import NncdbgError, UnsupportedOp
from nncdbg.opening.corpus.cases import FAILED, UNSUPPORTED, Case, CaseResult, CaseRun, sentences
from nncdbg.opening.corpus.engines import PROCESSES, CaseExecution
from nncdbg.opening.corpus.running import Progress, run_cases
from nncdbg.opening.corpus.source import CorpusProgram, called_program, check_machine, inputs_of_case
from nncdbg.opening.corpus.worker import reading_inputs
from nncdbg.opening.diff import SideB
from nncdbg.opening.diff_corpus_report import DiffCase, DiffCorpusReport
from nncdbg.opening.programs import OpenedProgram

# -- task ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DiffTask:
    """Two programs, or one, and how side B runs, for all cases.

    Without `b`, side B is the program `a`.
    """

    a: CorpusProgram
    b: CorpusProgram | None = None
    side_b: SideB = SideB()
    tolerance: Tolerance = Tolerance()

    def open(self) -> OpenedDiff:
        """Load both programs; raises the errors that affect every case."""
        a = self.a.opened()
        b = a if self.b is None else self.b.opened()
        configuration = b.configuration if b.program.saved.origin else a.configuration
        side_b = self.side_b
        program = b.program if side_b.dtype is None else cast_program(b.program, side_b.dtype)
        other = replace(
            configuration,
            backend=side_b.backend or b.configuration.backend,
            allocator=side_b.allocator or configuration.allocator,
            kernels={**configuration.kernels, **side_b.kernels},
            dims={},
        )
        sides = OpenedDiff(self, a, OpenedProgram(program, other))
        for side in (sides.a, sides.b):
            check_machine(side)
        return sides


@dataclass(frozen=True, slots=True)
class OpenedDiff:
    """A comparison in a worker."""

    task: DiffTask
    a: OpenedProgram
    b: OpenedProgram

    def run(self, job: CaseRun, boxes: Path | None) -> CaseResult:
        """Compare the runs of a case."""
        with reading_inputs():
            a, b, notes = self._sides(job, boxes)
        comparison = compared(a, b, self.task.tolerance, same_places=True if self.task.b is None else None)
        started = time.perf_counter()
        try:
            report = comparison.run()
        except NncdbgError as error:
            status = UNSUPPORTED if isinstance(error, UnsupportedOp) else FAILED
            seconds = time.perf_counter() - started
            return CaseResult(job.index, Case(job.name, status, seconds=seconds, error=str(error)))
        case = DiffCase(
            job.name,
            report.status,
            sum(report.ops),
            time.perf_counter() - started,
            cause=report.cause,
            first=report.first,
            worst=report.worst,
            diverging=report.diverging,
        )
        return CaseResult(job.index, case, notes)

    def _sides(self, job: CaseRun, boxes: Path | None) -> tuple[Debugger, Debugger, tuple[str, ...]]:
        given = inputs_of_case(self.a, job)
        inputs = {**self.a.configuration.inputs, **given}
        with inputs_of_side("A"):
            a = self.a.debugger(inputs=inputs, statistics=False, boxes=boxes)
        # Another program folder keeps its own inputs, except those of the case and the call.
        shared = self.task.a.configuration.inputs.keys() | given.keys()
        _, others, notes = counterpart(self.b.program, a, None, shared)
        with inputs_of_side("B"):
            b = self.b.debugger(inputs=others, statistics=False, boxes=boxes)
        return a, b, (*map(str, a.notes), *notes, *(f"side B: {note}" for note in b.notes))


# -- calls -----------------------------------------------------------------------------------------


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
    side_b = SideB(backend=backend_b, allocator=allocator_b, dtype=dtype_b)
    task = DiffTask(sides[0], sides[1], side_b, tolerance)
    return run_diff_corpus(task, inputs_dir, CaseExecution(jobs, executor, budget))


def run_diff_corpus(
    task: DiffTask,
    folder: str | os.PathLike[str],
    execution: CaseExecution,
    progress: Progress = lambda done, total: None,
) -> DiffCorpusReport:
    """Compare two programs with each case of a folder.  Raises as `run_cases` does."""
    report = DiffCorpusReport()
    notes: Counter[str] = Counter()

    def add(result: CaseResult) -> None:
        report.cases.append(result.case)
        notes.update(result.found or ())

    end = run_cases(task, folder, add, execution, seed=task.a.configuration.seed, progress=progress)
    if end.note:
        report.notes.append(end.note)
    report.notes += sentences(notes, len(report.cases))
    if end.left:
        report.unchecked.append(f"cases: {end.left_out(len(report.cases))}")
    report.interrupted = end.interrupted
    report.error = end.failure(len(report.cases))
    return report
