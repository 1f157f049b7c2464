"""Comparison of two runs in journals: configurations, programs, tracks and the states in checkpoints."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.comparison.measure import compare_by_name, measure
from nncdbg.comparison.report import NOWHERE, FirstDifference, Match
from nncdbg.comparison.tolerance import Tolerance, excess
from nncdbg.engine.divergence.casting import has_same_places
from nncdbg.engine.divergence.lockstep import Lockstep
from nncdbg.engine.time.step_starts import line_at, lines_of
from nncdbg.errors import UsageError
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.journal.ranks import CONFIGURATION, RankMembership
from nncdbg.opening.journal_address import Address
from nncdbg.opening.programs import open_program
from nncdbg.opening.progress import Around, RunningProgram

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.journal import CheckpointRecord, Journal, Run

# -- first statement that differs ------------------------------------------------------------------

EXACT = Tolerance(rtol=0, atol=0)
"""No tolerance: two results differ if a bit does, except for the sign of 0 and the bits of NaN."""


@dataclass(frozen=True, slots=True, eq=False)
class FirstStatement:
    """The first result that differs, in step `step`; None for a statement between two trainings."""

    step: int | None
    difference: FirstDifference


class Rerun:
    """Both runs again, from the start of step `start`, where they are equal, to the end of step `last`."""

    def __init__(self, lockstep: Lockstep, start: int, last: int) -> None:
        self._lockstep = lockstep
        self.start, self.last = start, last

    def first(self, around: Around) -> FirstStatement | None:
        """Run both sides to the first statement with different results; None if no result differs.

        `around` shows the run.  Raises the error of a failed side, and KeyboardInterrupt after a pause.
        """
        a, b = self._lockstep.a.debugger, self._lockstep.b.debugger
        with around(RunningProgram(a, b)):
            difference = self._lockstep.run_to_difference(_until_end_of(a, self.last))
        if difference is None:
            return None
        frames = a.control.machine.frames
        lines = {line.body: line for line in lines_of(frames[0].code)}
        steps = (lines[frame.code].step(frame.iteration) for frame in frames if frame.code in lines)
        return FirstStatement(next(steps, None), difference)


def rerun(comparison: RunComparison) -> Rerun:
    """Open both runs at the last checkpoint that is equal, or where one of them began as a fork.

    Raises UsageError if that is impossible: without such a checkpoint, for the run of a script, and for
    programs with different statements.
    """
    start, last = comparison.equal_checkpoint, comparison.first_step
    if {comparison.a.run.kind, comparison.b.run.kind} != {"graph"}:
        raise UsageError("only runs of programs can be run again, not those of scripts")
    if start is None or last is None:
        raise UsageError("the runs have no equal checkpoint before the difference")
    if start < comparison.shared_steps <= last:
        # The program of the fork may differ from there on.
        start = int(comparison.shared_steps)
    sides = (comparison.a, comparison.b)
    addresses = (Address(str(side.journal.path), side.run.number, start) for side in sides)
    one, other = (open_program(RunConfiguration(program=str(address))) for address in addresses)
    if not has_same_places(one.program, other.program):
        raise UsageError("the programs have different statements")
    a, b = (opened.debugger(statistics=False) for opened in (one, other))
    return Rerun(Lockstep(a, b, EXACT), start, last)


def _until_end_of(debugger: Debugger, step: int) -> Callable[[], bool]:
    """Return a function that returns whether a step has not ended yet."""
    machine = debugger.control.machine
    line = line_at(lines_of(machine.frames[0].code), step)
    iteration = step - line.first_step

    def more() -> bool:
        frame = next((frame for frame in machine.frames if frame.code is line.body), None)
        if frame is not None:
            return frame.iteration <= iteration
        return not machine.ended and machine.frames[0].pc <= line.pc

    return more


# -- comparison ------------------------------------------------------------------------------------

_MEASURED = 64
"""Most tensors of a checkpoint whose distance is measured; all are compared by their hashes."""

_SHARED = ("state/", "moment/")
"""Prefixes of the tensors that are equal on all ranks of a data-parallel training."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run with its journal, and the text that named it."""

    title: str
    journal: Journal
    run: Run


@dataclass(frozen=True, slots=True)
class TrackDifference:
    """A track whose values differ at `count` of the `compared` steps that both runs have.

    `step` is the first of them, with the values `a` and `b`; `beyond` is the first one outside the
    tolerance, or None.
    """

    name: str
    part: str
    step: int
    a: float
    b: float
    count: int
    compared: int
    beyond: int | None


@dataclass(frozen=True, slots=True)
class StateDifference:
    """The first checkpoint of a step of both runs whose tensors differ, bit for bit.

    `changed` are the names of the tensors that differ, and `distances` the distances of the first of them.
    """

    step: int
    changed: tuple[str, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    distances: dict[str, Match]

    @property
    def diverges(self) -> bool:
        """Return whether a tensor differs by more than the tolerance, or is missing on a side."""
        apart = any(match.diverges for match in self.distances.values())
        return apart or bool(self.only_a or self.only_b)


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Two runs: what differs, and the last checkpoint before it that is equal.

    `status` is "equal" (bit for bit), "rounding" (only within the tolerance) or "diverged".
    `configuration` and `program` are unified diffs, without lines if they are equal.
    """

    a: ComparedRun
    b: ComparedRun
    configuration: tuple[str, ...]
    program: tuple[str, ...]
    tracks: tuple[TrackDifference, ...]
    compared_tracks: int
    only_a: tuple[tuple[str, str], ...]
    only_b: tuple[tuple[str, str], ...]
    states: StateDifference | None
    compared_checkpoints: int
    equal_checkpoint: int | None
    ranks: tuple[int, int] | None = None
    """The ranks of two runs of one distributed training.

    They have different batches and random states, so only parameters and moments are compared as states,
    and `status` does not depend on tracks.
    """

    @property
    def status(self) -> str:
        if self.ranks is not None:
            return "equal" if self.states is None else "diverged" if self.states.diverges else "rounding"
        if not self.tracks and self.states is None:
            return "equal"
        beyond = any(track.beyond is not None for track in self.tracks)
        return "diverged" if beyond or (self.states is not None and self.states.diverges) else "rounding"

    @property
    def shared_steps(self) -> float:
        """The number of steps that both runs have from the same run, before a fork; infinite for one run."""
        if not self.a.journal.path.samefile(self.b.journal.path):
            return 0
        one, other = _begins(self.a), _begins(self.b)
        return max((min(end, other[run]) for run, end in one.items() if run in other), default=0)

    @property
    def first_step(self) -> int | None:
        """The first step known to differ: by a value, or as the last before a checkpoint that differs."""
        steps = [] if self.ranks is not None else [track.step for track in self.tracks]
        if self.states is not None:
            steps.append(max(0, self.states.step - 1))
        return min(steps, default=None)

    @property
    def is_exact(self) -> bool:
        """Return whether no earlier step than `first_step` can differ, as far as values and states show."""
        if self.ranks is not None:
            return False
        return self.first_step is not None and any(track.step == self.first_step for track in self.tracks)


def _begins(side: ComparedRun) -> dict[int, float]:
    """Return by number a run and the runs that it is a fork of, with the step at which their steps end."""
    runs = {each.number: each for each in side.journal.runs()}
    run, end = runs[side.run.number], math.inf
    found = {run.number: end}
    while run.parent is not None and run.parent in runs:
        end = min(end, run.parent_step or 0)
        run = runs[run.parent]
        found[run.number] = end
    return found


def compare_runs(a: ComparedRun, b: ComparedRun, tolerance: Tolerance) -> RunComparison:
    """Compare two runs at the steps of both.

    Raises UsageError if they have no track and no checkpoint in common.
    """
    names_a, names_b = a.journal.tracks(a.run), b.journal.tracks(b.run)
    shared = [name for name in names_a if name in names_b]
    tracks = [_compare_track(a, b, name, part, tolerance) for name, part in shared]
    differing = [track for track in tracks if isinstance(track, TrackDifference)]
    ranks = _ranks_of_one_training(a, b)
    states, checkpoints, equal = _compare_checkpoints(a, b, tolerance, _SHARED if ranks else ())
    compared = sum(track is not None for track in tracks)
    if not compared and not checkpoints:
        raise UsageError(
            f"{a.title} and {b.title} cannot be compared: no track and no checkpoint is at the same step",
            hint="record both with `--journal`, with the same `--track` and `--checkpoint-every`",
        )
    if ranks is not None and not checkpoints:
        raise UsageError(
            f"the states of {a.title} and {b.title} cannot be compared: no checkpoint is at the same step",
            hint="pass checkpoint_every=50 to nncdbg.torch.flight_recorder on all ranks",
        )
    first = None if ranks is not None else min((track.step for track in differing), default=None)
    return RunComparison(
        a,
        b,
        tuple(_text_difference(a, b, *(_facts(each.run, ranks) for each in (a, b)))),
        tuple(_text_difference(a, b, *(each.journal.program(each.run) or "" for each in (a, b)))),
        tuple(sorted(differing, key=lambda track: track.step)),
        compared,
        tuple(name for name in names_a if name not in names_b),
        tuple(name for name in names_b if name not in names_a),
        states,
        checkpoints,
        max((step for step in equal if first is None or step <= first), default=None),
        ranks,
    )


def _ranks_of_one_training(a: ComparedRun, b: ComparedRun) -> tuple[int, int] | None:
    """Return the ranks of two runs of one distributed training; None for other runs."""
    one, other = (RankMembership.of(each.run.configuration) for each in (a, b))
    return None if one is None or other is None or one.group != other.group else (one.rank, other.rank)


# -- texts -------------------------------------------------------------------------------------


def _facts(run: Run, ranks: tuple[int, int] | None) -> str:
    # The program of a fork is an address in the journal; its `source` is where the text is from.
    given = {key: value for key, value in run.configuration.items() if key != "program"}
    member = RankMembership.of(given)
    if member is not None:
        # The group is another one in each training.
        given[CONFIGURATION] = {"ranks": member.ranks}
    content = {"configuration": given, "versions": run.versions, "seed": None if ranks else run.seed}
    return json.dumps(content, indent=1, sort_keys=True)


def _text_difference(a: ComparedRun, b: ComparedRun, one: str, other: str) -> Iterator[str]:
    lines = (one.rstrip().splitlines(), other.rstrip().splitlines())
    return difflib.unified_diff(*lines, a.title, b.title, n=2, lineterm="")


# -- tracks ------------------------------------------------------------------------------------


def _compare_track(
    a: ComparedRun, b: ComparedRun, name: str, part: str, tolerance: Tolerance
) -> TrackDifference | bool | None:
    """Return the difference of a track; True if all values are equal, None if no step is in common."""
    steps_a, values_a = a.journal.values(a.run, name, part)
    steps_b, values_b = b.journal.values(b.run, name, part)
    steps, places_a, places_b = np.intersect1d(steps_a, steps_b, return_indices=True)
    if not len(steps):
        return None
    x, y = values_a[places_a], values_b[places_b]
    places = np.flatnonzero((x != y) & ~(np.isnan(x) & np.isnan(y)))
    if not len(places):
        return True
    first = int(places[0])
    beyond = _first_beyond(x, y, places, tolerance)
    return TrackDifference(
        name,
        part,
        int(steps[first]),
        float(x[first]),
        float(y[first]),
        len(places),
        len(steps),
        None if beyond is None else int(steps[beyond]),
    )


def _first_beyond(x: Any, y: Any, places: Any, tolerance: Tolerance) -> int | None:
    """Return the first of these places at which the values differ by more than the tolerance.

    Values that are all exact in f32 have the tolerance of f32.
    """
    with np.errstate(over="ignore"):
        narrow = [values.astype(np.float32) for values in (x, y)]
    exact = all(np.array_equal(one, other, equal_nan=True) for one, other in zip(narrow, (x, y), strict=True))
    one, other = narrow if exact else (x, y)
    for place in places.tolist():
        if excess(one[place : place + 1], other[place : place + 1], tolerance).significant:
            return int(place)
    return None


# -- checkpoints -------------------------------------------------------------------------------


def _compare_checkpoints(
    a: ComparedRun, b: ComparedRun, tolerance: Tolerance, prefixes: tuple[str, ...]
) -> tuple[StateDifference | None, int, list[int]]:
    """Return the first difference of states, the number of compared checkpoints, and the equal steps.

    With `prefixes`, only tensors are compared whose names begin with one of them.
    """
    records_a, records_b = (
        {each.step: each for each in side.journal.checkpoints(side.run)} for side in (a, b)
    )
    steps = sorted(records_a.keys() & records_b.keys())
    equal: list[int] = []
    for number, step in enumerate(steps, 1):
        found = _compare_states(a, b, records_a[step], records_b[step], tolerance, prefixes)
        if found is not None:
            return found, number, equal
        equal.append(step)
    return None, len(steps), equal


def _compare_states(
    a: ComparedRun,
    b: ComparedRun,
    one: CheckpointRecord,
    other: CheckpointRecord,
    tolerance: Tolerance,
    prefixes: tuple[str, ...],
) -> StateDifference | None:
    """Return the difference of two checkpoints; None if all tensors have the same hashes."""
    tensors_a, tensors_b = a.journal.read(one).tensors, b.journal.read(other).tensors
    hashes_a, hashes_b = (
        {name: digest for name, digest in each.hashes.items() if not prefixes or name.startswith(prefixes)}
        for each in (tensors_a, tensors_b)
    )
    found = compare_by_name(hashes_a, hashes_b)
    if not found:
        return None
    distances = {
        name: measure(NOWHERE, NOWHERE, "name", (tensors_a[name], tensors_b[name]), tolerance)
        for name in found.changed[:_MEASURED]
    }
    return StateDifference(one.step, found.changed, found.only_a, found.only_b, distances)


def same_runs(a: ComparedRun, b: ComparedRun) -> bool:
    """Return whether both are the same run of the same file."""
    return a.run.number == b.run.number and a.journal.path.samefile(b.journal.path)
