"""The options of commands that run a corpus."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from nncdbg.opening.command_line import ArgumentParser


def add_corpus(parser: ArgumentParser, *, runs: bool = False) -> None:
    """Add the folder of cases and where they run; with `runs`, the number of runs of each."""
    add = parser.add_argument
    add("--inputs-dir", metavar="DIR", help="run each file or folder in DIR as a case")
    if runs:
        add(
            "--runs",
            type=int,
            default=1,
            metavar="N",
            help="run with N seeds, starting at --seed (default: 1)",
        )
    add("--jobs", type=int, metavar="N", help="number of parallel processes (default: one per core)")
    add(
        "--executor",
        metavar="EXECUTOR",
        help="run the cases on dask, ray or mpi, or dask=ADDRESS (default: processes)",
    )
    add(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="stop after SECONDS and report the results so far",
    )


def check_corpus(parser: ArgumentParser, options: Namespace) -> None:
    """Raise UsageError for options of `add_corpus` that are invalid, or that need several runs."""
    if options.budget is not None and not options.budget > 0:
        parser.error(f"--budget {options.budget}: use seconds, such as --budget 60")
    if options.executor is not None:
        from nncdbg.opening.corpus.engines import checked_name

        checked_name(options.executor)
        runs = getattr(options, "runs", None)
        if not options.inputs_dir and runs in (None, 1):
            ways = "--inputs-dir DIR" if runs is None else "--inputs-dir DIR or --runs N"
            parser.error(f"--executor needs several runs: add {ways}")


def corpus_fields(options: Namespace) -> dict[str, Any]:
    """Return the arguments of `run_cases` that the options of `add_corpus` give."""
    return {
        "jobs": options.jobs,
        "executor": options.executor or "processes",
        "budget": options.budget,
        **({"runs": options.runs} if "runs" in options else {}),
    }
