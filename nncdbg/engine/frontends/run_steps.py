"""The number of steps of a training, chosen at its start."""

from __future__ import annotations

from dataclasses import replace

from nncdbg.engine.errors import UsageError
from nncdbg.engine.text.driver import lines_of_runs
from nncdbg.engine.text.listing import Listing
from nncdbg.ir.records import Program
from nncdbg.textual_repr.printer import run_text


def with_steps(program: Program, steps: int) -> Program:
    """Return the program with `steps` steps in each run, or fewer if the data of the run end before.

    The listing keeps its lines, and its ``run`` lines have this number.  Raises UsageError for a program
    without a ``run`` line, and for less than one step.
    """
    if not program.runs:
        raise UsageError(
            "the number of steps is for trainings, but the program has no `run` line",
            hint="leave out the number of steps",
        )
    if steps < 1:
        raise UsageError(f"the number of steps cannot be {steps}", hint="use 1 or more")
    listing = program.as_listing()
    changed = replace(program, runs=tuple(replace(run, steps=steps) for run in program.runs))
    return replace(changed, listing=_with_run_lines(changed, listing))


def _with_run_lines(program: Program, listing: Listing) -> Listing:
    """Return a listing in which the lines of the runs are those of the program."""
    lines = [*listing.lines]
    for number, run in zip(lines_of_runs(program, listing), program.runs, strict=True):
        lines[number - 1] = run_text(run, listing.prefixes)
    return replace(listing, lines=tuple(lines))
