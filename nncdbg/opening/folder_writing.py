"""Write program folders (see `engine/frontends/program_folder.py`), with all weights beside the text."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from nncdbg.dtypes import name_of
from nncdbg.engine.frontends.program_folder import FORMAT, FolderDocument, check_inputs
from nncdbg.engine.frontends.stores import ArrayStore
from nncdbg.engine.frontends.tensor_file import STORABLE, key_for, pack, to_json, write_tensors
from nncdbg.errors import LoadError, UsageError
from nncdbg.ir.constants import initial_data
from nncdbg.ir.records import (
    Array,
    Constant,
    Graph,
    Inline,
    Node,
    Program,
    Reference,
    RunLine,
    StateLine,
    Value,
)
from nncdbg.ir.rewrite import rewrite
from nncdbg.ir.walk import fitting_trace
from nncdbg.text.file_names import DOCUMENT, FILES, INPUTS, PROGRAM, README, STORE, TRACE
from nncdbg.version import __version__

# -- self-contained programs -----------------------------------------------------------------------

_INLINE = 16
"""Most elements of a constant that is written inline in the text."""


def self_contained(program: Program) -> Program:
    """Return the program with its weights in memory, in one store named `STORE`, or in the text if small.

    Raises LoadError if they cannot be read.
    """
    weights: dict[str, Array] = {}
    graphs = {name: stored_graph(graph, program, weights) for name, graph in program.graphs.items()}
    states = tuple(_stored_state(state, program, weights) for state in program.states)
    runs = tuple(_stored_run(run, program, weights) for run in program.runs)
    stores, readers = ((STORE,), (ArrayStore(weights),)) if weights else ((), ())
    return replace(
        program, graphs=graphs, states=states, runs=runs, stores=stores, readers=readers, listing=None
    )


def stored_graph(graph: Graph, program: Program, weights: dict[str, Array]) -> Graph:
    """Return a graph of a program with its weights in `weights`."""

    def stored(path: object, block: Graph) -> Graph:
        constants = tuple(_stored_constant(each, program, weights) for each in block.constants)
        return replace(block, constants=constants)

    return rewrite(graph, lambda path, pc, node: node, enter=stored)


def stored_blocks(node: Node, program: Program, weights: dict[str, Array]) -> Node:
    """Return a statement with the weights of its blocks in `weights`."""
    return stored_graph(Graph("", nodes=(node,)), program, weights).nodes[0]


def _stored_constant(constant: Constant, program: Program, weights: dict[str, Array]) -> Constant:
    key = constant.data.key if isinstance(constant.data, Reference) else constant.value.name
    return replace(constant, data=stored_data(key, initial_data(constant, program), weights))


def _stored_state(state: StateLine, program: Program, weights: dict[str, Array]) -> StateLine:
    if isinstance(state.first, Node):
        return replace(state, first=stored_blocks(state.first, program, weights))
    return replace(state, first=_stored_constant(Constant(state.value, state.first), program, weights).data)


def _stored_run(run: RunLine, program: Program, weights: dict[str, Array]) -> RunLine:
    sources = []
    for name, source in zip(run.values, run.sources, strict=False):
        array = initial_data(Constant(Value(name), source), program)
        sources.append(_reference(source.key, array, weights))
    evaluations = tuple(_stored_run(each, program, weights) for each in run.evaluations)
    return replace(run, sources=tuple(sources), evaluations=evaluations)


def stored_data(key: str, array: Array, weights: dict[str, Array]) -> Inline | Reference:
    """Return a constant's data: inline if small, else a reference to `weights`, under `key` if unused."""
    if array.size <= _INLINE or name_of(array.dtype) not in STORABLE:
        return Inline(array)
    return _reference(key, array, weights)


def _reference(key: str, array: Array, weights: dict[str, Array]) -> Reference:
    if weights.get(key) is not array:  # One array per constant.
        key = key_for(key, weights)
    weights[key] = array
    return Reference(key)


# -- writing ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FolderFinding:
    """The finding at which a repro bundle opens."""

    facts: dict[str, Any]
    statements: int
    """The number of statements that run before it."""
    model: str
    """The source of the program that was reduced."""
    readme: str


def write_folder(
    folder: str | os.PathLike[str],
    program: Program,
    inputs: Mapping[str, Any],
    *,
    settings: Mapping[str, Any] | None = None,
    finding: FolderFinding | None = None,
    title: str = "",
    notes: Sequence[str] = (),
) -> None:
    """Write a program with its weights and inputs as a folder that `nncdbg DIR` opens.

    `inputs` has a value for each input of the program: an array, a list of arrays for a sequence, None for
    an absent optional.  `settings`, fields of the run configuration, are used by callers that give no
    others.  `title` is the line shown when the folder opens, with a note for each of `notes`; a folder with
    a `finding` is a repro bundle, which shows the finding.

    The folder is created if missing; otherwise it must be empty or a program folder, which is replaced.  It
    is complete when it appears, and an existing folder keeps its files after an error.

    Raises UsageError if the path holds anything else; LoadError if an input does not fit the program, or
    the folder cannot be written, for example because the disk is full.
    """
    folder = Path(folder)
    check_folder(folder)
    program = self_contained(program)
    tensors, entries = pack(inputs)
    check_inputs(folder, program.graph, entries)
    saved = {**(settings or {})}
    saved.setdefault("backend", "numpy")
    if program.saved.sources:
        saved["sources"] = to_builtins(program.saved.sources)
    document = FolderDocument(
        format=FORMAT,
        settings=saved,
        inputs=entries,
        statements=finding.statements if finding is not None else 0,
        finding=finding.facts if finding is not None else None,
        title=title,
        notes=[*notes],
        model=finding.model if finding is not None else "",
        versions=versions_of(saved["backend"]),
    )
    place, text = folder.resolve(), finding.readme if finding is not None else _readme(folder, document)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".nncdbg.", dir=place.parent, ignore_cleanup_errors=True
        ) as work:
            draft = Path(work) / "new"
            draft.mkdir()
            for store in program.readers:
                assert isinstance(store, ArrayStore)
                write_tensors(draft / STORE, store.arrays)
            if tensors:
                write_tensors(draft / INPUTS, tensors)
            (draft / PROGRAM).write_bytes(program.text().encode("utf-8", "surrogateescape"))
            (draft / DOCUMENT).write_text(to_json(document), encoding="utf-8")
            if (trace := fitting_trace(program)) is not None:
                (draft / TRACE).write_text(to_json(trace), encoding="utf-8")
            (draft / README).write_text(text, encoding="utf-8", errors="replace")
            _move(draft, place)
    except OSError as error:
        raise LoadError(f"cannot write the folder {folder}: {error.strerror or error}") from None


def check_folder(folder: Path) -> None:
    """Raise UsageError unless the folder is new, empty, or a program folder without other files."""
    try:
        held = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        taken = folder.exists() and not folder.is_dir()
        current = folder.exists() and Path.cwd().is_relative_to(folder.resolve())
    except OSError as error:
        raise LoadError(f"cannot read the folder {folder}: {error.strerror or error}") from None
    if taken:
        raise UsageError(f"cannot write the folder {folder}: the path is a file", hint="use a folder")
    if held and DOCUMENT not in held or held - {*FILES}:
        raise UsageError(
            f"cannot write the folder {folder}: the folder is not empty",
            hint="use a new folder, or one that nncdbg wrote",
        )
    if current:
        raise UsageError(
            f"cannot write the folder {folder}: it is the current folder", hint="use the name of a new folder"
        )


def _move(draft: Path, folder: Path) -> None:
    """Put the finished folder into place; on failure, an older one stays."""
    if not folder.exists():
        draft.rename(folder)
        return
    older = draft.with_name("older")
    folder.rename(older)
    try:
        draft.rename(folder)
    except OSError:
        older.rename(folder)
        raise


def versions_of(backend: str) -> dict[str, str]:
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


def _readme(folder: Path, document: FolderDocument) -> str:
    name = folder.name
    described = "".join(f"{line}\n" for line in (document.title, *document.notes) if line)
    commands = f"nncdbg {name}          open it\nnncdbg watch {name}    find the first NaN or Inf\n"
    return f"{described}\n{commands}" if described else commands
