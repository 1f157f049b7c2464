"""`nncdbg.watch`: a watch as one call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from nncdbg.engine.backends import Backend
from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.engine.linking import Allocation
from nncdbg.engine.session import Debugger
from nncdbg.nan_watch.gates import USUAL, Gates
from nncdbg.nan_watch.records import Report
from nncdbg.nan_watch.reports import Watched
from nncdbg.nan_watch.runs import watch_runs
from nncdbg.nan_watch.watching import MAX_FINDINGS, usual_allocation


def watch(
    program: ProgramSource,
    inputs: Mapping[str, Any] | None = None,
    *,
    fail_on: str | Iterable[str] = USUAL,
    strict: bool = False,
    max_findings: int = MAX_FINDINGS,
    backend: str | Backend = "numpy",
    allocator: str | Allocation | None = None,
    seed: int = 0,
    runs: int = 1,
    record: str | os.PathLike[str] | None = None,
    against: str | os.PathLike[str] | None = None,
    **fields: Any,
) -> Report:
    """Run a program and report the op where the first NaN originates, and why.

    `inputs` and `fields` (dims, fallback, max_ops, history) are as for Debugger; so is `allocator`, and
    by default it is the cheapest that detects everything.  `fail_on` names the gates; with `strict` findings
    without effect on an output trip them too.  The program runs `runs` times, with the seeds from `seed` on;
    `record` is the file of a recording to write, `against` that of a good run to compare with.  The error of
    a run that fails is in `Report.error`, or in `Report.cases` if there are several.  Raises UsageError for
    an unknown gate, and the errors of Debugger.
    """
    program = load(program)
    gates = Gates.of(fail_on, strict=strict)
    good = None
    if against is not None:
        from nncdbg.nan_watch.recording import read

        good = read(against)

    def make(seed: int, statistics: bool) -> Debugger:
        memory = usual_allocation(allocator, backend, gates, statistics)
        return Debugger(
            program, inputs, backend=backend, allocator=memory, seed=seed, statistics=statistics, **fields
        )

    report = watch_runs(
        make,
        gates,
        model=program.source or "",
        seed=seed,
        runs=runs,
        max_findings=max_findings,
        good=good,
        record_to=record,
    )
    report.watched = Watched.of(program, gates)
    return report
