"""`nncdbg attach --ranks`: the ranks of a distributed job that runs under `nncdbg debug --ranks`."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from nncdbg.engine.errors import UsageError
from nncdbg.engine.escaping import printable
from nncdbg.engine.process.rank_digests import read_digests
from nncdbg.engine.process.rank_notes import RankReport, find_job, reports_of_job
from nncdbg.engine.process.rank_waits import find_mismatches, find_waits
from nncdbg.opening.command_line import ArgumentParser
from nncdbg.presentation.ranks import (
    divergence_document,
    divergence_lines,
    ranks_lines,
    report_document,
    wait_lines,
)

_PACE = 0.2
"""Seconds between two reads of the notes."""


def main(arguments: Sequence[str]) -> int:
    """Open the prompt of a job, or print a report.

    Return 1 if ranks wait for one that is missing at a collective.  Raises UsageError if there is no job.
    """
    options = _options(arguments)
    if not options.ranks:
        raise UsageError("nncdbg attach needs --ranks", hint="nncdbg attach --ranks")
    folder = find_job(options.job)
    if options.report or options.json:
        return _report(folder, options)
    from nncdbg.terminal.ranks.reading import attach

    return attach(folder)


def _report(folder: Path, options: Namespace) -> int:
    """Print where the ranks are, and which are missing at a collective."""
    reports = _settled(folder, options.patience)
    now = time.time()
    waits = [each for each in find_waits(reports) if now - each.since >= options.patience]
    digests = read_digests(folder, [each.process.rank for each in reports])
    if options.json:
        document = {"job": folder.name, **report_document(reports, now)}
        document["divergences"] = divergence_document(digests)
        print(json.dumps(document))
    else:
        process = reports[0].process
        lines = [
            f"job {folder.name}: {process.script} on {process.ranks} ranks",
            *ranks_lines(reports, now),
            *([*wait_lines(reports, now)] or ["no rank waits for another"]),
            *divergence_lines(digests),
        ]
        print(*map(printable, lines), sep="\n")
    return 1 if waits or find_mismatches(reports) else 0


def _settled(folder: Path, patience: float) -> list[RankReport]:
    """Return the notes when no rank is missing at a collective, or one is for `patience` seconds."""
    ending = time.monotonic() + patience
    while True:
        reports = reports_of_job(folder)
        waits = find_waits(reports)
        if not waits or time.monotonic() >= ending:
            return reports
        time.sleep(_PACE)


def _options(arguments: Sequence[str]) -> Namespace:
    parser = ArgumentParser(
        "nncdbg attach",
        "Attach to the ranks of a job that runs under `torchrun ... -m nncdbg debug --ranks train.py`.",
        usage="nncdbg attach --ranks [JOB] [options]",
        epilog="JOB is the port at which the ranks meet (MASTER_PORT); the default is the only job.",
    )
    add = parser.add_argument
    add("job", metavar="JOB", nargs="?", help="the job")
    add("--ranks", action="store_true", help="attach to all ranks of the job")
    add("--report", action="store_true", help="print where the ranks are and which is missing; exit")
    add("--json", action="store_true", help="print the report as JSON")
    add(
        "--patience",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="report ranks that wait at least this long (default: 2)",
    )
    return parser.parse_args(arguments)
