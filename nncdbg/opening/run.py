"""`nncdbg.run`: run a program from the first statement to the end in one call; profiling runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from nncdbg.engine.backends import Backend
from nncdbg.engine.backends import backend as backend_of
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.engine.memory.debug import LeanAllocation
from nncdbg.engine.observers.nonfinite import KINDS, bad_in
from nncdbg.engine.ops.declaration import revision
from nncdbg.engine.stopping.stops import Stop
from nncdbg.engine.values.values import Outputs
from nncdbg.errors import MemoryFault, NncdbgError, RunError, UsageError
from nncdbg.ir.records import Program
from nncdbg.opening.journal_address import read_address
from nncdbg.opening.progress import Around, RunningProgram

if TYPE_CHECKING:
    from nncdbg.engine.execution.linking import Binding, Execute
    from nncdbg.engine.launch import CompiledProgram
    from nncdbg.engine.observers.statement_times import StatementTimes
    from nncdbg.opening.programs import OpenedProgram


def run(
    program: ProgramSource,
    inputs: Mapping[str, Any] | None = None,
    *,
    backend: str | Backend | None = None,
    fallback: bool | None = None,
    kernels: Mapping[str, str] | None = None,
    dims: Mapping[str, int] | None = None,
    seed: int | None = None,
    outputs: Sequence[str] | None = None,
    max_ops: int | None = None,
    journal: str | None = None,
    checkpoint_every: str | None = None,
    checkpoint_budget: str | None = None,
    journal_statistics: bool = False,
    journal_values: Sequence[str] = (),
    journal_values_every: str | None = None,
    journal_codec: str | None = None,
    on_journal_error: str | None = None,
    note: str | None = None,
    fork: bool = False,
    changes: Mapping[str, Any] | None = None,
    fork_program: str | None = None,
    resume: bool = False,
) -> Outputs:
    """Run a program to its end and return its outputs.

    `program` is a Program, a path or an `onnx.ModelProto`.  The other arguments are those of Debugger:
    inputs that are not given are those of the program folder, else drawn at random from `seed`.

    With `outputs`, names of values, only the statements that these values need run.  An input with the name
    of a value inside the program replaces the statement of the value, as in `onnx.utils.extract_model`:

        nncdbg.run(program, {"h": h}, outputs=["y"])    # the statements from %h to %y

    With `kernels`, single statements run on other backends, such as ``{"Conv": "torch", "%h": "numpy"}``.

    A Program keeps its compiled code for the next run with inputs of the same types.

    `journal` is a file to which the run of a training is written, with the remark `note`, and with
    checkpoints at the distance `checkpoint_every` (``"50"`` steps, ``"3epochs"``, ``"30s"``) within
    `checkpoint_budget` (``"2GiB"``).  With `journal_statistics`, the statistics of each value of each step
    are written too.  `journal_values` are patterns of names: their values are kept at the distance
    `journal_values_every`, by `journal_codec` (``"exact"``, ``"f16"`` or ``"blocks"``).  If the journal
    cannot be written, the run continues without it, or ends with `on_journal_error` ``"stop"``.

    A step of a run in a journal is a program, too: its steps are compared with those of the run.  `fork`
    starts a new run there, with other values by `changes` or the edited program `fork_program`; `resume`
    continues a run that did not end from its last checkpoint:

        nncdbg.run("train.nnc", journal="run.db")
        nncdbg.run("run.db@38")                                      # from step 38, with the same bits
        nncdbg.run("run.db@38", fork=True, changes={"lr": 1e-4})     # a new run from there; the old one stays
        nncdbg.run("run.db", resume=True)                            # continue a run that did not end

    Raises as `nncdbg.load` and Debugger do, UnsupportedOp if an op has no kernel, RunError or MemoryFault if
    a statement fails, and RunError if a repeated step differs or the journal cannot be written.
    """
    address = isinstance(program, (str, os.PathLike)) and read_address(os.fspath(program)) is not None
    if journal is not None or address or fork or changes or resume:
        from nncdbg.opening.journal.reproduction import run_in_journal

        fields: dict[str, Any] = {"journal": journal, "checkpoint_every": checkpoint_every, "note": note}
        fields |= {"checkpoint_budget": checkpoint_budget, "changes": changes, "resume": resume}
        fields |= {"fork": fork, "journal_statistics": journal_statistics, "journal_codec": journal_codec}
        fields |= {"journal_values": [*journal_values], "journal_values_every": journal_values_every}
        fields |= {"on_journal_error": on_journal_error, "fork_program": fork_program}
        fields |= {"inputs": inputs, "dims": dims, "seed": seed, "outputs": outputs, "max_ops": max_ops}
        fields |= {"backend": backend, "fallback": fallback, "kernels": kernels}
        return run_in_journal(program, fields)
    options = {"dims": dims, "max_ops": max_ops, "kernels": kernels}
    return _run(load(program), inputs, backend, fallback, seed, outputs, **options)


def _run(
    program: Program,
    inputs: Mapping[str, Any] | None,
    backend: str | Backend | None,
    fallback: bool | None,
    seed: int | None,
    outputs: Sequence[str] | None,
    **options: Any,
) -> Outputs:
    """Run a program with the code that it keeps, if the other arguments are those of the last run."""
    machine = program.saved.completed(backend=backend, allocator=None)
    kernels = tuple((options["kernels"] or {}).items())
    settings = machine["backend"], kernels, fallback, seed, tuple(outputs or ()), revision()
    named = isinstance(settings[0], str) and backend_of(settings[0]).on_host
    kept = named and machine["allocator"] is None
    known, compiled = program.kept.pop("run", (None, None)) if kept else (None, None)
    debugger = Debugger(
        program,
        inputs,
        backend=backend,
        fallback=fallback,
        seed=seed,
        outputs=outputs,
        allocator=LeanAllocation() if kept else None,
        history=0,
        statistics=False,
        **options,
        compiled=compiled if known == settings else None,
    )
    error = failure_of(debugger.run(), debugger.program.source or "MODEL")
    if error is not None:
        raise error
    found = debugger.outputs
    assert found is not None
    if kept:
        program.kept["run"] = settings, debugger.loaded.release()
    return found


def failure_of(stop: Stop, model: str) -> NncdbgError | None:
    """Return the error that ended a run early, with hints that name `model`; None for a complete run."""
    if stop.reason == "end":
        return None
    if isinstance(stop.error, NncdbgError):
        return stop.error
    if stop.reason == "pause":
        return RunError(
            f"stopped: {stop.detail}", hint="check the program for an endless loop, or raise --max-ops"
        )
    if stop.finding is not None and stop.finding.kind == "micro":
        return RunError(
            f"{stop.detail} (line {stop.line})",
            hint=f"stop at the statement with `nncdbg {model} --check micro`",
        )
    if stop.finding is not None:
        kind = stop.finding.kind
        return MemoryFault(
            f"{stop.detail} (line {stop.line})",
            kind=kind,
            hint=f"stop at the statement with `nncdbg {model}`, then `continue`",
        )
    return RunError(stop.detail or f"the run stopped: {stop.reason}")


def failure_unless_paused(stop: Stop, model: str) -> NncdbgError | None:
    """Return the error as `failure_of` does.  Raises KeyboardInterrupt for a run that the user paused."""
    if stop.reason == "pause" and not stop.detail:
        raise KeyboardInterrupt
    return failure_of(stop, model)


# -- profiling -------------------------------------------------------------------------------------

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
    around: Around,
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
