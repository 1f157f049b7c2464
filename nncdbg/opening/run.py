"""`nncdbg.run`: run a program from the first statement to the end in one call; profiling runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nncdbg.engine.backends import Backend
from nncdbg.engine.backends import backend as backend_of
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.engine.memory.debug import LeanAllocation
from nncdbg.engine.ops.declaration import revision
from nncdbg.engine.stopping.stops import Stop
from nncdbg.engine.values.values import Outputs
from nncdbg.errors import MemoryFault, NncdbgError, RunError
from nncdbg.ir.records import Program
from nncdbg.opening.journal_address import read_address

if TYPE_CHECKING:
    pass


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
    given = {**locals(), "journal_values": [*journal_values]}
    del given["program"]
    address = isinstance(program, (str, os.PathLike)) and read_address(os.fspath(program)) is not None
    if journal is not None or address or fork or changes or resume:
        from nncdbg.opening.journal.reproduction import run_in_journal

        return run_in_journal(program, given)
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
