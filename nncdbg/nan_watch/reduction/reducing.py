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
from nncdbg.ir.records import Graph, Program, TensorType, Value, type_of
from nncdbg.nan_watch.configuration import WatchConfiguration
from nncdbg.nan_watch.measuring.gates import USUAL, split
from nncdbg.nan_watch.records import WatchFinding
from nncdbg.nan_watch.reduction.case import ReducedCase, case_of_program
from nncdbg.nan_watch.reduction.finding_identity import FindingSignature, Probe, found_first
from nncdbg.nan_watch.reduction.reduction import Reduction, ReductionProgress
from nncdbg.nan_watch.reduction.straight_line import StatementTrace, lines_of
from nncdbg.opening.folder_writing import FolderFinding, check_folder, write_folder
from nncdbg.process.files import draft_of

_KEY = "nncdbg"
_WEIGHT, _INPUT = "weight:", "input:"


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a state file besides the tensors; `done` if the reduction is complete."""

    origin: str
    signature: FindingSignature
    text: str
    inputs: dict[str, TensorEntry]
    runs: int = 0
    done: bool = False


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
    try:
        with draft_of(path) as draft:
            write_tensors(draft, tensors, {_KEY: to_json(document)})
    except OSError as error:
        raise LoadError(f"cannot write the state file {path}: {error.strerror or error}") from None


def load_state(path: Path, origin: str) -> tuple[ReducedCase, _Document]:
    """Return the case in a state file, and its document.

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
    return case_of_program(program, unpack(path, document.inputs)), document


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
        case, document = load_state(self.state, self._origin)
        probe = Probe(document.signature, self.configuration, runs=document.runs)
        self._reduction = self._made(probe)
        self._reduction.best = case
        if not probe(case):
            raise RunError(
                f"the program in {self.state} no longer reproduces the finding",
                hint="use the same versions of nncdbg, NumPy and backend, or delete the state file",
            )
        return document.done

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


# -- repro bundles: the part of a program before a finding, with bounded data, as a program folder -----


def write_bundle(
    folder: Path,
    case: ReducedCase,
    signature: FindingSignature,
    configuration: WatchConfiguration,
    *,
    model: str = "",
) -> WatchFinding:
    """Write a bundle of a case that shows a finding; return the finding as the bundle shows it.

    Raises RunError if the case does not show the finding, and the errors of `write_folder`.
    """
    check_folder(folder)
    probe, program = Probe(signature, configuration), case.program()
    traced = probe.trace(program, case.inputs, _finding_in(program, case, probe))
    typed = _typed(program, traced)
    finding = _finding_in(typed, case, probe)
    write_folder(
        folder,
        typed,
        case.inputs,
        settings=configuration.kept,
        finding=FolderFinding(finding.as_dict(), traced.ticks, model, _readme(folder, signature, finding)),
    )
    return finding


def _typed(program: Program, traced: StatementTrace) -> Program:
    """Return the program with the types that the values of its entry graph had."""
    types = {
        value.name: type_of(content)
        for one in traced.outer
        for value, content in zip(one.node.outputs, one.results, strict=False)
    }
    entry = program.graphs[program.entry]

    def typed(value: Value) -> Value:
        known = types.get(value.name)
        return replace(value, type=known) if isinstance(known, TensorType) else value

    nodes = tuple(replace(node, outputs=tuple(map(typed, node.outputs))) for node in entry.nodes)
    graph: Graph = replace(entry, nodes=nodes, outputs=tuple(map(typed, entry.outputs)))
    return replace(program, graphs={**program.graphs, program.entry: graph})


def _finding_in(program: Program, case: ReducedCase, probe: Probe) -> WatchFinding:
    """Return the finding that a watch of the program reports, with the lines of the program's text."""
    found = probe.finding_in(program, case.inputs)
    if found is None:
        raise RunError(
            "the finding did not occur again when nncdbg wrote the bundle",
            hint="check whether a kernel uses random numbers or the time",
        )
    return found


def _readme(folder: Path, signature: FindingSignature, finding: WatchFinding) -> str:
    name = folder.name
    return (
        f"{signature}\n{finding.evidence}\n\n"
        f"nncdbg {name}          stopped at the statement; `next` executes it\n"
        f"nncdbg watch {name}    reports it again\n"
    )


LARGEST = 16 << 20
"""Most bytes of data in an excerpt; the values at its edge become inputs."""

LONGEST = 500
"""Most statements in an excerpt; results of earlier ones become inputs."""


def bundle_finding(
    folder: Path,
    program: Program,
    inputs: Mapping[str, Any],
    finding: WatchFinding,
    configuration: WatchConfiguration,
    *,
    model: str = "",
) -> WatchFinding:
    """Write a bundle of a finding that a watch of `program` reported; return the bundle's finding.

    `inputs` are those of the watched run, arrays by name.  The bundle holds the backward slice with calls and
    loops unrolled, cut where the data would exceed `LARGEST`: the values at the cut become inputs.
    If only the complete program shows the finding, the bundle holds that.

    Raises RunError if the finding does not recur, and the errors of `write_bundle`.
    """
    probe = Probe(FindingSignature.of(finding), configuration)
    return write_bundle(
        folder, excerpt(program, inputs, finding, probe), probe.signature, configuration, model=model
    )


def excerpt(program: Program, inputs: Mapping[str, Any], finding: WatchFinding, probe: Probe) -> ReducedCase:
    """Return the largest part within the limits that shows the finding, else the whole program."""
    for line in lines_of(probe.trace(program, inputs, finding)):
        fitting: list[ReducedCase] = []
        for kept in line.surroundings():
            case = line.case(kept)
            # The smallest part is always tried.
            if not fitting or (case.bytes <= LARGEST and case.statements <= LONGEST):
                fitting.append(case)
        for case in reversed(fitting):
            if probe(case):
                return case
    return case_of_program(program, inputs)
