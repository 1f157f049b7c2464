"""The number of steps of a training and additional tracks, chosen at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nncdbg.engine.compilation.tracked_values import computes_all
from nncdbg.errors import UsageError
from nncdbg.ir.records import Program, RunLine, TrackLine
from nncdbg.text.listing import lines_of_runs
from nncdbg.textual_repr.printer import run_text

# -- tracks ----------------------------------------------------------------------------------------


def with_tracks(program: Program, tracks: Mapping[str, str]) -> Program:
    """Return the program with further tracks, by name.

    A track is added to the first ``run`` line and to the first ``evaluate`` line whose steps compute all its
    values.  If there is none, it is added to the first ``run`` line: its other values are data given as
    inputs.  The listing stays the same.  Raises UsageError for a program without a ``run`` line, and for a
    name that a track of the line has already.
    """
    if tracks and not program.runs:
        raise UsageError(
            "tracks are for trainings, but the program has no `run` line", hint="leave out the tracks"
        )
    for name, expression in tracks.items():
        program = _with_track(program, TrackLine(name, expression))
    return program


def _with_track(program: Program, track: TrackLine) -> Program:
    listing = program.as_listing()
    lines = [line for run in program.runs for line in (run, *run.evaluations)]
    fitting = [line for line in lines if computes_all(program, line, track)]
    run = next((line for line in fitting if _is_run(program, line)), None)
    evaluation = next((line for line in fitting if not _is_run(program, line)), None)
    if run is None and evaluation is None:
        run = program.runs[0]
    chosen = [line for line in (run, evaluation) if line is not None]
    return replace(
        program, runs=tuple(_extended(each, chosen, track) for each in program.runs), listing=listing
    )


def _is_run(program: Program, line: RunLine) -> bool:
    return any(line is run for run in program.runs)


def _extended(line: RunLine, chosen: list[RunLine], track: TrackLine) -> RunLine:
    """Return a line with a track if it is one of `chosen`, and the same for its evaluations."""
    evaluations = tuple(_extended(each, chosen, track) for each in line.evaluations)
    if not any(line is each for each in chosen):
        return replace(line, evaluations=evaluations)
    if any(other.name == track.name for other in line.tracks):
        raise UsageError(
            f"the program has a track {track.name} already", hint="choose another name for the new track"
        )
    return replace(line, evaluations=evaluations, tracks=(*line.tracks, track))


# -- steps -----------------------------------------------------------------------------------------


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
    lines = [*listing.lines]
    for number, run in zip(lines_of_runs(changed, listing), changed.runs, strict=True):
        lines[number - 1] = run_text(run, listing.prefixes)
    return replace(changed, listing=replace(listing, lines=tuple(lines)))
