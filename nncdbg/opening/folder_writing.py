"""Write program folders (see `engine/frontends/program_folder.py`)."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from nncdbg.engine.errors import LoadError, UsageError
from nncdbg.engine.frontends.folder_files import DOCUMENT, FILES, INPUTS, PROGRAM, README, STORE
from nncdbg.engine.frontends.program_folder import FORMAT, FolderDocument, check_inputs
from nncdbg.engine.frontends.stores import ArrayStore
from nncdbg.engine.frontends.tensor_file import pack, to_json, write_tensors
from nncdbg.ir.records import Program
from nncdbg.opening.self_contained import self_contained
from nncdbg.version import __version__


@dataclass(frozen=True, slots=True)
class FolderFinding:
    """The finding at which a repro bundle opens: its facts, and the statements that run before it."""

    facts: dict[str, Any]
    statements: int


def write_folder(
    folder: str | os.PathLike[str],
    program: Program,
    inputs: Mapping[str, Any],
    *,
    backend: str = "numpy",
    settings: Mapping[str, Any] | None = None,
    finding: FolderFinding | None = None,
    title: str = "",
    notes: Sequence[str] = (),
    model: str = "",
    versions: Mapping[str, str] | None = None,
    readme: str | None = None,
) -> None:
    """Write a program with its weights and inputs as a folder that `nncdbg DIR` opens.

    `inputs` has a value for each input of the program: an array, a list of arrays for a sequence, None for
    an absent optional.  `backend` and `settings`, more fields of the run configuration, are used by callers
    that give no others.  `title` is the line shown when the folder opens, with a note for each of `notes`;
    a folder with a `finding` is a repro bundle, which shows the finding.  `versions` are of packages, in
    addition to those of nncdbg, its libraries and the backend.

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
    document = FolderDocument(
        format=FORMAT,
        settings={**(settings or {}), "backend": backend, **_sources(program)},
        inputs=entries,
        statements=finding.statements if finding is not None else 0,
        finding=finding.facts if finding is not None else None,
        title=title,
        notes=[*notes],
        model=model,
        versions={**versions_of(backend), **(versions or {})},
    )
    place, text = folder.resolve(), readme if readme is not None else _readme(folder, document)
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
            (draft / README).write_text(text, encoding="utf-8", errors="replace")
            _move(draft, place)
    except OSError as error:
        raise LoadError(f"cannot write the folder {folder}: {error.strerror or error}") from None


def _sources(program: Program) -> dict[str, Any]:
    """Return the setting with the source lines that a recorded step has."""
    return {"sources": to_builtins(program.saved.sources)} if program.saved.sources else {}


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
