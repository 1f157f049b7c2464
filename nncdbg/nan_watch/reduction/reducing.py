"""`nncdbg.reduce`: find, reduce, save the state, write the bundle, verify it in a new process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nncdbg.engine.errors import RunError
from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.engine.ops.library import load_op_library
from nncdbg.ir.records import Program
from nncdbg.nan_watch.bundles.writing import write_bundle
from nncdbg.nan_watch.configuration import WatchConfiguration
from nncdbg.nan_watch.measuring.gates import USUAL, split
from nncdbg.nan_watch.records import WatchFinding
from nncdbg.nan_watch.reduction.case import ReducedCase
from nncdbg.nan_watch.reduction.reduction import Reduction, ReductionProgress
from nncdbg.nan_watch.reduction.sameness import FindingSignature, Probe, found_first
from nncdbg.nan_watch.reduction.state import load_state, origin_of, save_state
from nncdbg.opening.folder_writing import check_folder


@dataclass(slots=True)
class Reduced:
    """The result of a reduction.

    `finding` is as the bundle shows it, `runs` the number of watched programs; `interrupted` if the reduction
    was stopped early.
    """

    case: ReducedCase
    finding: WatchFinding
    signature: FindingSignature
    runs: int
    interrupted: bool = False

    @property
    def program(self) -> Program:
        """Return the reduced program."""
        return self.case.program()

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Return the reduced inputs by name."""
        return self.case.inputs


def reduce(
    program: ProgramSource,
    inputs: Mapping[str, Any] | None = None,
    *,
    folder: str | os.PathLike[str],
    fail_on: str | Iterable[str] = USUAL,
    strict: bool = False,
    backend: str | None = None,
    fallback: bool | None = None,
    allocator: str | None = None,
    dims: Mapping[str, int] | None = None,
    seed: int | None = None,
    max_ops: int | None = None,
    state: str | os.PathLike[str] | None = None,
    op_libraries: Iterable[str | os.PathLike[str]] = (),
) -> Reduced:
    """Write the smallest program and inputs with the same finding into `folder`, a repro bundle.

    `program` and the arguments of the run are as for `nncdbg.watch`.  `state` is a file that saves the
    progress of a long reduction.  `op_libraries` are the Python files with kernels that the program needs;
    they are loaded.  Ctrl-C writes the best result so far.

    Raises UsageError if a watch finds nothing or `folder` has other files, RunError if the bundle does not
    show the finding in a new process, and the errors of Debugger.
    """
    libraries = [os.path.abspath(each) for each in op_libraries]
    for library in libraries:
        load_op_library(library)
    program = load(program)
    arguments = program.saved.completed(
        backend=backend, fallback=fallback, allocator=allocator, seed=seed, max_ops=max_ops
    )
    configuration = WatchConfiguration(
        **arguments,
        fail_on=[*split(fail_on)] if isinstance(fail_on, str) else [*fail_on],
        strict=strict,
        op_libraries=libraries,
    )
    drawn = configuration.debugger(program, inputs, dims=dims).inputs
    job = ReductionJob(program, drawn, configuration, Path(state) if state is not None else None)
    reduced = job.run(Path(folder), model=program.source or "")
    if not reduced.interrupted:
        verify(Path(folder), reduced.signature, configuration)
    return reduced


@dataclass(slots=True)
class ReductionJob:
    """One reduction of `program` with `inputs`.

    With `state` it resumes from that file and keeps it up to date.
    """

    program: Program
    inputs: Mapping[str, Any]
    configuration: WatchConfiguration
    state: Path | None = None
    on_progress: Callable[[ReductionProgress], None] = lambda progress: None
    _origin: str = ""
    _reduction: Reduction | None = field(default=None)

    def run(self, folder: Path, *, model: str = "") -> Reduced:
        """Reduce and write the bundle into `folder`; after an interruption, the best result so far.

        Raises UsageError if a watch finds nothing, KeyboardInterrupt if interrupted before the first result.
        """
        check_folder(folder)
        interrupted = False
        try:
            self._reduce()
        except KeyboardInterrupt:
            if self._reduction is None or self._reduction.best is None:
                raise
            interrupted = True
        assert self._reduction is not None
        best, probe = self._reduction.best, self._reduction.probe
        assert best is not None
        finding = write_bundle(folder, best, probe.signature, self.configuration, model=model)
        return Reduced(best, finding, probe.signature, probe.runs, interrupted)

    def _reduce(self) -> None:
        done = self._resume() if self.state is not None and self.state.exists() else self._begin()
        assert self._reduction is not None
        if not done:
            self._reduction.finish()
            self._save(done=True)

    def _begin(self) -> bool:
        self.on_progress(ReductionProgress("looking for the finding", 0, 0, 0))
        if self.state is not None:
            self._origin = origin_of(self.program, self.inputs, self.configuration)
        finding = found_first(self.program, self.inputs, self.configuration)
        self._reduction = self._made(Probe(FindingSignature.of(finding), self.configuration))
        self._reduction.start(self.program, self.inputs, finding)
        return False

    def _resume(self) -> bool:
        """Resume from the state file; return whether the reduction is complete."""
        assert self.state is not None
        self._origin = origin_of(self.program, self.inputs, self.configuration)
        saved = load_state(self.state, self._origin)
        probe = Probe(saved.signature, self.configuration, runs=saved.runs)
        self._reduction = self._made(probe)
        self._reduction.best = saved.case
        if not probe(saved.case):
            raise RunError(
                f"the program in {self.state} no longer reproduces the finding",
                hint="use the same versions of nncdbg, NumPy and backend, or delete the state file",
            )
        return saved.done

    def _made(self, probe: Probe) -> Reduction:
        return Reduction(probe, kept=lambda case: self._save(), on_progress=self.on_progress)

    def _save(self, *, done: bool = False) -> None:
        if self.state is None or self._reduction is None or self._reduction.best is None:
            return
        probe = self._reduction.probe
        save_state(self.state, self._origin, self._reduction.best, probe.signature, probe.runs, done=done)


def verify(folder: Path, signature: FindingSignature, configuration: WatchConfiguration) -> None:
    """Watch a bundle in a new process.  Raises RunError if the finding is missing."""
    command = [sys.executable, "-m", "nncdbg", "watch", str(folder), "--json"]
    for library in configuration.op_libraries:
        command += ["--op-library", library]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    try:
        findings = json.loads(done.stdout)["findings"]
    except (ValueError, KeyError, TypeError):
        said = done.stderr.strip().splitlines()[:1]
        raise RunError(f"cannot watch the bundle {folder} in a new process: {' '.join(said)}") from None
    tripping = [each for each in findings if each["trips"]]
    if not tripping or _signature(tripping[0]) != signature:
        raise RunError(
            f"the bundle {folder} does not reproduce the finding in a new process",
            hint="check whether a kernel uses random numbers, the time or state from earlier runs",
        )


def _signature(found: Mapping[str, Any]) -> FindingSignature:
    within = found["within"]["op"] if found["within"] else ""
    name = "" if found["op"] else found["value"]
    return FindingSignature(found["kind"], found["op"], found["cause"], within, name)
