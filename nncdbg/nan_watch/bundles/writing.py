"""Write repro bundles (see `opening/bundle.py`): a case, its finding, and its run configuration."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from nncdbg.engine.errors import LoadError, RunError, UsageError
from nncdbg.engine.graph import Graph, Program, TensorType, Value, type_of
from nncdbg.nan_watch.configuration import WatchConfiguration
from nncdbg.nan_watch.records import WatchFinding
from nncdbg.nan_watch.reduction.case import ArrayStore, ReducedCase
from nncdbg.nan_watch.reduction.sameness import FindingSignature, Probe
from nncdbg.nan_watch.reduction.tracing import StatementTrace
from nncdbg.opening.bundle import DOCUMENT, FORMAT, INPUTS, PROGRAM, README, STORE, BundleDocument
from nncdbg.opening.tensor_file import pack, to_json, write_tensors
from nncdbg.version import __version__

FILES = (PROGRAM, STORE, INPUTS, DOCUMENT, README)


def write_bundle(
    folder: Path,
    case: ReducedCase,
    signature: FindingSignature,
    configuration: WatchConfiguration,
    *,
    model: str = "",
) -> WatchFinding:
    """Write a bundle of a case that shows a finding; return the finding as the bundle shows it.

    The folder is created if missing; otherwise it must be empty or hold a bundle, which is replaced.
    Raises UsageError if it holds anything else, RunError if the case does not show the finding, LoadError
    if it cannot be written, for example because the disk is full.
    """
    check_folder(folder)
    probe, program = Probe(signature, configuration), case.program()
    traced = probe.trace(program, case.inputs, _finding_in(program, case, probe))
    typed = _typed(program, traced)
    finding = _finding_in(typed, case, probe)
    tensors, entries = pack(case.inputs)
    document = BundleDocument(
        format=FORMAT,
        statements=traced.ticks,
        settings=configuration.kept,
        inputs=entries,
        finding=finding.as_dict(),
        model=model,
        versions=versions(configuration.backend),
    )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise LoadError(f"cannot write the bundle {folder}: {error.strerror or error}") from None
    try:
        weights: Any = typed.readers[0] if typed.readers else ArrayStore({})
        if typed.stores:
            write_tensors(draft / STORE, weights.arrays, None)
        if tensors:
            write_tensors(draft / INPUTS, tensors, None)
        (draft / PROGRAM).write_bytes(typed.text().encode("utf-8", "surrogateescape"))
        (draft / DOCUMENT).write_text(to_json(document), encoding="utf-8")
        (draft / README).write_text(_readme(folder, signature, finding), encoding="utf-8", errors="replace")
        _move(draft, folder)
    except OSError as error:
        raise LoadError(f"cannot write the bundle {folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return finding


def check_folder(folder: Path) -> None:
    """Raise UsageError unless the folder is new, empty, or holds a bundle."""
    try:
        held = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        taken = folder.exists() and not folder.is_dir()
    except OSError as error:
        raise LoadError(f"cannot read the folder {folder}: {error.strerror or error}") from None
    if taken:
        raise UsageError(f"cannot write the bundle {folder}: the path is a file", hint="use a folder")
    if held and DOCUMENT not in held or held - {*FILES}:
        raise UsageError(
            f"cannot write the bundle {folder}: the folder is not empty",
            hint="use a new folder, or the folder of an existing bundle",
        )


def _move(draft: Path, folder: Path) -> None:
    """Move the finished files into place; the document comes last, so a partial bundle has none."""
    folder.mkdir(exist_ok=True)
    (folder / DOCUMENT).unlink(missing_ok=True)
    for name in (*(each for each in FILES if each != DOCUMENT), DOCUMENT):
        if (draft / name).exists():
            (draft / name).replace(folder / name)
        else:
            (folder / name).unlink(missing_ok=True)


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


def versions(backend: str) -> dict[str, str]:
    """Return the versions of the packages that can influence the result."""
    found = {
        "nncdbg": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    for name in ("numpy", "onnx", "ml_dtypes", *([] if backend == "numpy" else [backend])):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


def _readme(folder: Path, signature: FindingSignature, finding: WatchFinding) -> str:
    name = folder.name
    return (
        f"{signature}\n{finding.evidence}\n\n"
        f"nncdbg {name}          stopped at the statement; `next` executes it\n"
        f"nncdbg watch {name}    reports it again\n"
    )
