"""Measured runs of a program, as `nncdbg profile` shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from nncdbg.engine.observers.nonfinite import KINDS, bad_in
from nncdbg.errors import UsageError
from nncdbg.opening.programs import OpenedProgram
from nncdbg.opening.progress import Around, RunningProgram
from nncdbg.opening.run import failure_unless_paused
from nncdbg.target.measures import timed_events, times_of
from nncdbg.target.records import TimedEvent, Times

if TYPE_CHECKING:
    from nncdbg.engine.execution.linking import Binding, Execute
    from nncdbg.engine.launch import CompiledProgram
    from nncdbg.engine.observers.statement_times import StatementTimes

RUNS, WARMUP = 20, 3
"""Default numbers of measured runs and of runs before them, for a program that is not a training."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured runs of a program: `times` has the statements of all of them, `spans` the runs.

    A span is the begin and end of a run, in nanoseconds of the clock.
    """

    times: Times
    events: Sequence[TimedEvent]
    """The executions of the last run, if they were kept; the first one is the run."""
    lanes: Mapping[int, tuple[int, str]]
    """The lane and the title of each stream in a timeline."""
    allocator: str
    warmup: int
    spans: Sequence[tuple[int, int]]
    measuring: int
    """The nanoseconds that measuring adds to a statement, at least."""
    clock: int
    """The nanoseconds that an empty kernel seems to take."""
    steps: Mapping[str, float | int] | None
    """The number of steps of a training and the seconds of their kernels; None without a step."""

    def summary(self) -> dict[str, float | int]:
        """Return the seconds of a run on average: `kernels`, `around` and `between` add up to `wall`.

        `measuring` is per statement.
        """
        walls = [end - begin for begin, end in self.spans]
        runs, wall = len(walls), sum(walls)
        kernels, around = self.times.kernels, self.times.around
        return {
            "runs": runs,
            "warmup": self.warmup,
            "statements": self.times.executed // runs,
            "wall": wall / runs / 1e9,
            "wall_min": min(walls) / 1e9,
            "wall_median": median(walls) / 1e9,
            "kernels": kernels / runs / 1e9,
            "around": around / runs / 1e9,
            "between": (wall - kernels - around) / runs / 1e9,
            "measuring": self.measuring / 1e9,
            "clock": self.clock / 1e9,
        }


def profile(
    opened: OpenedProgram,
    runs: int | None,
    warmup: int | None,
    around: Around,
    *,
    timeline: bool = False,
    nonfinite: bool = False,
) -> Profile:
    """Return the times of `runs` runs after `warmup` runs; `around` is entered around each run.

    None means 20 runs after 3; for a training, which repeats its statements itself, it means one run.
    With `timeline`, keep each execution of the last run.  With `nonfinite`, one more run counts the results
    of each statement that have NaN or Inf.  Raises RunError if a statement fails, and
    UsageError for several runs of a journal.
    """
    training = bool(opened.program.runs)
    runs = (1 if training else RUNS) if runs is None else runs
    warmup = (0 if training else WARMUP) if warmup is None else warmup
    if opened.restart is not None and (runs, warmup) != (1, 0):
        raise UsageError("a run of a journal is profiled once", hint="use --runs 1 --warmup 0")
    spans: list[tuple[int, int]] = []
    compiled: CompiledProgram | None = None
    for number in range(warmup + runs):
        if compiled is not None:
            compiled.release()
        debugger = opened.debugger(statistics=False, compiled=compiled)
        times = debugger.times
        times.measure(True)
        if number == warmup:
            times.clear()
        if timeline and number == warmup + runs - 1:
            times.timeline = []
        with around(RunningProgram(debugger)):
            begin = perf_counter_ns()
            stop = debugger.run()
            end = perf_counter_ns()
        error = failure_unless_paused(stop, opened.configuration.program)
        if error is not None:
            raise error
        if number >= warmup:
            spans.append((begin, end))
        compiled = debugger.loaded
    assert compiled is not None
    measuring, clock = compiled.times.cost()
    events, lanes = timed_events(compiled, spans[-1]) if timeline else ([], {})
    if nonfinite:
        _count_nonfinite(opened, compiled)
    steps = _steps(compiled.times)
    allocator = compiled.allocation.name
    return Profile(times_of(compiled), events, lanes, allocator, warmup, spans, measuring, clock, steps)


def _steps(times: StatementTimes) -> dict[str, float | int] | None:
    found = [each for each in times.blocks.values() if each.code.epoch is not None]
    if not found or not found[0].iterations.calls:
        return None
    steps = found[0].iterations
    return {"steps": steps.calls, "min": steps.least / 1e9, "median": steps.median / 1e9}


def _count_nonfinite(opened: OpenedProgram, compiled: CompiledProgram) -> None:
    """Run a profiled program once more, and count the results of each statement that have NaN or Inf."""
    debugger = opened.debugger(statistics=False, compiled=compiled.release())
    debugger.times.measure(False)
    times, to_host = compiled.times, debugger.backend.to_host

    def counting(binding: Binding, execute: Execute) -> Execute:
        time = times.statements.get((binding.code.path, binding.pc))

        def counted(*inputs: Any) -> Any:
            results = execute(*inputs)
            if time is not None:
                hosts = [to_host(each) for each in (results if binding.several else (results,))]
                bad = any(bad_in(host, kind) is not None for host in hosts for kind in KINDS)
                time.nonfinite = (time.nonfinite or 0) + bad
            return results

        return counted

    debugger.observers.measure(counting)
    debugger.run()
