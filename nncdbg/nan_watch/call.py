"""`nncdbg.watch`: watch a program with one call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nncdbg.engine.backends import Backend
from nncdbg.engine.backends import backend as backend_of
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.execution.findings import STATE_RESET
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.engine.ops.declaration import revision
from nncdbg.ir.records import Program
from nncdbg.nan_watch.measuring.gates import USUAL, Gates, ReportContext
from nncdbg.nan_watch.records import Report
from nncdbg.nan_watch.watching import MAX_FINDINGS, WatchCriteria, usual_allocation, watch_runs

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from nncdbg.nan_watch.recording import Recording
    from nncdbg.opening.corpus.engines import CaseExecution


def watch(
    program: ProgramSource,
    inputs: Mapping[str, Any] | None = None,
    *,
    fail_on: str | Iterable[str] = USUAL,
    strict: bool = False,
    max_findings: int = MAX_FINDINGS,
    backend: str | Backend | None = None,
    allocator: str | Allocation | None = None,
    seed: int | None = None,
    in_place_states: bool = False,
    runs: int = 1,
    record: str | os.PathLike[str] | None = None,
    against: str | os.PathLike[str] | None = None,
    inputs_dir: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    executor: str | Executor | None = None,
    budget: float | None = None,
    **fields: Any,
) -> Report:
    """Run a program and report the op where the first NaN originates, and why.

    `inputs` and `fields` (dims, fallback, max_ops, history) are as for Debugger; so are `in_place_states` and
    `allocator`, whose default is the cheapest one that detects everything.  `fail_on` names the gates; with
    `strict`, findings without effect on an output trip them too.  The program runs `runs` times, with the
    seeds from `seed` on.  `record` is the file of a recording to write, `against` that of a good run to
    compare with.  The error of a failing run is in `Report.error`, or in `Report.cases` if there are several
    runs.

    With `inputs_dir`, the program runs with each file or folder of that folder as a case, in `jobs` processes
    (default: the number of cores).  `executor` is where the cases or runs are executed: `processes`, `dask`,
    `ray` or `mpi`, an address such as `dask=tcp://host:8786`, or a `concurrent.futures.Executor` with `jobs`
    workers.  Workers open a path themselves; another source is sent to them.  `budget` is the number of
    seconds after which no case is started or waited for.

    A program folder supplies inputs and arguments that are not given.  After a run without findings, a
    Program keeps its compiled code for its next watch with inputs of the same types.  Raises UsageError for
    an unknown gate, and the errors of Debugger; with cases, LoadError for an unreadable folder.
    """
    judged = _Judged(fail_on, strict, max_findings, in_place_states, runs, record, against)
    machine = {"backend": backend, "allocator": allocator, "seed": seed}
    if (inputs_dir, jobs, executor, budget) == (None,) * 4:
        return _watch_program(load(program), inputs, judged, machine, fields)
    from nncdbg.opening.corpus.engines import PROCESSES, CaseExecution

    execution = CaseExecution(jobs, executor or PROCESSES, budget)
    return _watch_cases(program, inputs, judged, {**machine, **fields}, inputs_dir, execution)


@dataclass(frozen=True, slots=True)
class _Judged:
    """What is judged in how many runs: the arguments of `watch` that are not about a single run."""

    fail_on: str | Iterable[str]
    strict: bool
    max_findings: int
    in_place_states: bool
    runs: int
    record: str | os.PathLike[str] | None
    against: str | os.PathLike[str] | None

    @property
    def criteria(self) -> WatchCriteria:
        gates = Gates.of(self.fail_on, strict=self.strict, in_place_states=self.in_place_states)
        return WatchCriteria(gates, self.max_findings, good_run(self.against), self.record)


def _watch_cases(
    program: ProgramSource,
    inputs: Mapping[str, Any] | None,
    judged: _Judged,
    arguments: Mapping[str, Any],
    folder: str | os.PathLike[str] | None,
    execution: CaseExecution,
) -> Report:
    from nncdbg.nan_watch.corpus import WatchTask, run_corpus
    from nncdbg.opening.corpus.source import called_program

    criteria = judged.criteria
    source, loaded = called_program(program, inputs, {**arguments, "in_place_states": judged.in_place_states})
    report = run_corpus(
        WatchTask(source, criteria), folder, execution, runs=judged.runs, seed=source.configuration.seed
    )
    report.watched = ReportContext.of(loaded, criteria.gates)
    return report


def _watch_program(
    program: Program,
    inputs: Mapping[str, Any] | None,
    judged: _Judged,
    machine: Mapping[str, Any],
    fields: Mapping[str, Any],
) -> Report:
    arguments = program.saved.completed(**machine)
    backend, allocator, seed = arguments["backend"], arguments["allocator"], arguments["seed"]
    criteria, in_place_states = judged.criteria, judged.in_place_states
    gates = criteria.gates
    measured = criteria.measures or gates.ranges
    on_host = isinstance(backend, str) and backend_of(backend).on_host
    reused = on_host and judged.runs == 1 and not measured and allocator is None and fields.keys() <= {"dims"}
    reused = reused and not in_place_states
    settings = backend, seed, gates.kinds & {STATE_RESET}, revision()
    known, compiled = program.kept.pop("watched", (None, None)) if reused else (None, None)

    def make(seed: int, statistics: bool) -> Debugger:
        nonlocal compiled
        debugger = Debugger(
            program,
            inputs,
            backend=backend,
            allocator=usual_allocation(allocator, backend, statistics, in_place_states),
            in_place_states=in_place_states,
            seed=seed,
            statistics=statistics,
            compiled=compiled if known == settings else None,
            **fields,
        )
        compiled = debugger.loaded
        return debugger

    report = watch_runs(make, criteria, model=program.source or "", seed=seed, runs=judged.runs)
    if reused and compiled is not None and not (report.error or report.findings):
        program.kept["watched"] = settings, compiled.release()
    report.watched = ReportContext.of(program, gates)
    return report


def good_run(against: str | os.PathLike[str] | None) -> Recording | None:
    """Return the recording of a good run to compare with."""
    if against is None:
        return None
    from nncdbg.nan_watch.recording import read

    return read(against)
