"""`nncdbg.reduce`: find, reduce, save the state, write the bundle, verify it in a new process.

A state file, from which a stopped reduction resumes, is in the safetensors format: the weights and inputs of
the smallest case so far, with a JSON document in the header that has the text of the program.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.engine.frontends.stores import ArrayStore
from nncdbg.engine.frontends.tensor_file import (
    TensorEntry,
    from_json,
    open_store,
    pack,
    to_json,
    unpack,
    write_tensors,
)
from nncdbg.engine.ops.library import load_op_library
from nncdbg.errors import LoadError, RunError, UsageError
from nncdbg.ir.records import Program
from nncdbg.nan_watch.configuration import WatchConfiguration
from nncdbg.nan_watch.measuring.gates import USUAL, split
from nncdbg.nan_watch.records import WatchFinding
from nncdbg.nan_watch.reduction.bundles import write_bundle
from nncdbg.nan_watch.reduction.case import ReducedCase, case_of_program
from nncdbg.nan_watch.reduction.finding_identity import FindingSignature, Probe, found_first
from nncdbg.nan_watch.reduction.reduction import Reduction, ReductionProgress
from nncdbg.opening.folder_writing import check_folder

_KEY = "nncdbg"
_WEIGHT, _INPUT = "weight:", "input:"


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    origin: str
    signature: FindingSignature
    text: str
    inputs: dict[str, TensorEntry]
    runs: int = 0
    done: bool = False


class SavedReduction(msgspec.Struct, frozen=True):
    """The content of a state file; `done` if the reduction is complete."""

    case: Any
    signature: FindingSignature
    runs: int
    done: bool


def origin_of(program: Program, inputs: Mapping[str, Any], configuration: WatchConfiguration) -> str:
    """Return a fingerprint of the program's text, the inputs, and the run configuration."""
    digest = hashlib.sha256(program.text().encode("utf-8", "surrogateescape"))
    tensors, entries = pack(inputs)
    for key, array in tensors.items():
        digest.update(key.encode() + np.ascontiguousarray(array).tobytes())
    digest.update(repr((sorted(entries.items()), configuration.kept)).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def save_state(
    path: Path, origin: str, case: ReducedCase, signature: FindingSignature, runs: int, *, done: bool = False
) -> None:
    """Write a state file atomically.  Raises LoadError if that fails."""
    program = case.program()
    packed, entries = pack({f"{_INPUT}{name}": content for name, content in case.inputs.items()})
    store: Any = program.readers[0] if program.readers else ArrayStore({})
    tensors = {**packed, **{f"{_WEIGHT}{key}": array for key, array in store.arrays.items()}}
    document = _Document(
        origin=origin,
        signature=signature,
        text=program.text(),
        inputs={name.removeprefix(_INPUT): entry for name, entry in entries.items()},
        runs=runs,
        done=done,
    )
    draft = path.with_name(path.name + ".part")
    try:
        write_tensors(draft, tensors, {_KEY: to_json(document)})
        os.replace(draft, path)
    except OSError as error:
        raise LoadError(f"cannot write the state file {path}: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)


def load_state(path: Path, origin: str) -> SavedReduction:
    """Return the content of a state file.

    Raises LoadError if it is damaged or not a state file; UsageError if it is of another reduction.
    """
    store = open_store(path)
    written = store.note().get(_KEY)
    if written is None:
        raise LoadError(
            f"{path} is not the state file of a reduction",
            hint="use a new file, or the state file of this reduction",
        )
    document = from_json(written, _Document, str(path))
    if document.origin != origin:
        raise UsageError(
            f"the state file {path} is for a different model, inputs or options",
            hint="use another file, or the original model, inputs and options",
        )
    weights = [key for key in [*store.keys()] if key.startswith(_WEIGHT)]
    arrays = {key.removeprefix(_WEIGHT): store.read(key) for key in weights}
    program = replace(Program.parse(document.text, file=str(path)), readers=(ArrayStore(arrays),))
    case = case_of_program(program, unpack(path, document.inputs))
    return SavedReduction(case, document.signature, document.runs, document.done)


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
            resumes = self.state is not None and self.state.exists()
            done = self._resume() if resumes else self._begin()
            assert self._reduction is not None
            if not done:
                self._reduction.finish()
                self._save(done=True)
        except KeyboardInterrupt:
            if self._reduction is None or self._reduction.best is None:
                raise
            interrupted = True
        assert self._reduction is not None
        best, probe = self._reduction.best, self._reduction.probe
        assert best is not None
        finding = write_bundle(folder, best, probe.signature, self.configuration, model=model)
        return Reduced(best, finding, probe.signature, probe.runs, interrupted)

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
