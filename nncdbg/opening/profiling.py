"""Runs of a program whose statements are measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from nncdbg.engine.errors import UsageError
from nncdbg.engine.observers.nonfinite import KINDS, bad_in
from nncdbg.opening.run import failure_of

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.execution.linking import Binding, Execute
    from nncdbg.engine.launch import CompiledProgram
    from nncdbg.engine.observers.statement_times import StatementTimes
    from nncdbg.opening.programs import OpenedProgram

RUNS, WARMUP = 20, 3
"""Default numbers of measured runs and of runs before them, for a program that is not a training."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured runs of a program: `times` has the statements of all of them, `spans` the runs.

    A span is the begin and end of a run, in nanoseconds of the clock.
    """

    loaded: CompiledProgram
    warmup: int
    spans: list[tuple[int, int]]
    measuring: int
    """The nanoseconds that measuring adds to a statement, at least."""
    clock: int
    """The nanoseconds that an empty kernel seems to take."""

    @property
    def times(self) -> StatementTimes:
        return self.loaded.times

    @property
    def wall(self) -> list[int]:
        """The nanoseconds of each run."""
        return [end - begin for begin, end in self.spans]

    def summary(self) -> dict[str, float | int]:
        """Return the seconds of a run on average: `kernels`, `around` and `between` add up to `wall`.

        `measuring` is per statement.
        """
        runs, wall = len(self.spans), sum(self.wall)
        kernels, around = self.times.kernels, self.times.around
        return {
            "runs": runs,
            "warmup": self.warmup,
            "statements": self.times.executed // runs,
            "wall": wall / runs / 1e9,
            "wall_min": min(self.wall) / 1e9,
            "wall_median": median(self.wall) / 1e9,
            "kernels": kernels / runs / 1e9,
            "around": around / runs / 1e9,
            "between": (wall - kernels - around) / runs / 1e9,
            "measuring": self.measuring / 1e9,
            "clock": self.clock / 1e9,
        }

    def steps(self) -> dict[str, float | int] | None:
        """Return the number of steps of a training and the seconds of their kernels; None without a step."""
        found = [each for each in self.times.blocks.values() if each.code.epoch is not None]
        if not found or not found[0].iterations.calls:
            return None
        steps = found[0].iterations
        return {"steps": steps.calls, "min": steps.least / 1e9, "median": steps.median / 1e9}


def profile(
    opened: OpenedProgram,
    runs: int | None,
    warmup: int | None,
    around: Callable[[Debugger], AbstractContextManager[None]],
    *,
    timeline: bool = False,
) -> Profile:
    """Return the times of `runs` runs after `warmup` runs; `around` is entered around each run.

    None means 20 runs after 3; for a training, which repeats its statements itself, it means one run.
    With `timeline`, keep each execution of the last run.  Raises RunError if a statement fails, and
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
        with around(debugger):
            begin = perf_counter_ns()
            stop = debugger.run()
            end = perf_counter_ns()
        if stop.reason == "pause" and not stop.detail:
            raise KeyboardInterrupt
        error = failure_of(stop, opened.configuration.program)
        if error is not None:
            raise error
        if number >= warmup:
            spans.append((begin, end))
        compiled = debugger.loaded
    assert compiled is not None
    return Profile(compiled, warmup, spans, *compiled.times.cost())


def count_nonfinite(opened: OpenedProgram, found: Profile) -> None:
    """Run a profiled program once more, and count the results of each statement that have NaN or Inf."""
    debugger = opened.debugger(statistics=False, compiled=found.loaded.release())
    debugger.times.measure(False)
    to_host = debugger.backend.to_host

    def counting(binding: Binding, execute: Execute) -> Execute:
        time = found.times.statements.get((binding.code.path, binding.pc))

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
