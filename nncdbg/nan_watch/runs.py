"""Watch one run in this process, or several with different seeds; record or compare their statistics."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.errors import UnsupportedOp, UsageError
from nncdbg.nan_watch.measuring.gates import Gates
from nncdbg.nan_watch.records import OK, TRIPPED, Report
from nncdbg.nan_watch.watching import MAX_FINDINGS, watch_run
from nncdbg.opening.corpus.cases import FAILED, UNSUPPORTED, Case

if TYPE_CHECKING:
    from nncdbg.engine.stopping.stops import Stop
    from nncdbg.nan_watch.baselines.recording import Recording

MakeDebugger = Callable[[int, bool], Debugger]
"""Return a debugger at its start, for a seed and whether to log statistics."""

Move = Callable[[Debugger], "Stop"]


def watch_runs(
    make: MakeDebugger,
    gates: Gates,
    *,
    model: str = "",
    seed: int = 0,
    runs: int = 1,
    max_findings: int = MAX_FINDINGS,
    good: Recording | None = None,
    record_to: str | os.PathLike[str] | None = None,
    move: Move = Debugger.run,
) -> Report:
    """Run a program `runs` times, with the seeds from `seed` on, and return one report.

    With several runs, `Report.cases` holds each verdict, and a finding names the run of its first occurrence.
    `good` is a recording to compare with, `record_to` the file of a recording to write.  Raises UsageError
    for a gate that matches nothing, LoadError for a recording that cannot be written.
    """
    if runs < 1:
        raise UsageError(f"invalid number of runs: {runs}", hint="use 1 or more, such as --runs 1")
    measures = gates.measured or good is not None or record_to is not None
    if runs == 1 and not measures and not gates.ranges:
        debugger = make(seed, False)
        report = watch_run(debugger, gates, max_findings=max_findings, run=lambda: move(debugger))
        report.model = model
        return report
    from nncdbg.nan_watch.baselines.recording import fingerprint, record, write
    from nncdbg.nan_watch.corpus.report import CorpusReport
    from nncdbg.nan_watch.measuring.measuring import Measuring, check_good

    check_good(gates, good)
    whole = CorpusReport(model, gates, max_findings, named=runs > 1)
    for each in range(seed, seed + runs):
        debugger = make(each, measures)
        measuring = Measuring(debugger, gates, keep=measures, good=good)
        report = watch_run(
            debugger,
            gates,
            max_findings=max_findings,
            run=lambda debugger=debugger: move(debugger),  # type: ignore[misc]
            measuring=measuring,
        )
        whole.add(case_of(f"seed {each}", report), report, measuring.tracks)
    if record_to is not None:
        write(record(fingerprint(debugger.program), model, whole.tracks.ordered()), record_to)
    return whole.finished(good)


def case_of(name: str, report: Report) -> Case:
    """Return the result of a run as a case of a corpus."""
    words = str(report.error) if report.error is not None else ""
    status = FAILED if words else OK if report.ok else TRIPPED
    if isinstance(report.error, UnsupportedOp):
        status = UNSUPPORTED
    return Case(name, status, report.ops, report.seconds, words)
