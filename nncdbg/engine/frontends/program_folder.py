"""Program folders: a program with its data, and how to run it; `nncdbg DIR` opens one.

program.nnc           the program
data.safetensors      its weights
inputs.safetensors    its inputs
nncdbg.json           how to run it, the title, versions, the source model, and the finding of a repro bundle
source.json           how the user's source ran, for a recorded step
README                how to open it

A program folder with a finding is a repro bundle, which opens at the finding.  `opening/folder_writing.py`
writes program folders.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from nncdbg.engine.frontends.tensor_file import TensorEntry, from_builtins, from_json, unpack
from nncdbg.engine.frontends.text import load as load_text
from nncdbg.engine.inference.types import common_type
from nncdbg.errors import LoadError, UsageError
from nncdbg.ir.records import Graph, Program, SavedRun, TensorType
from nncdbg.ir.source_trace import SourceTrace
from nncdbg.ir.walk import misfit
from nncdbg.process.files import read_regular
from nncdbg.text.file_names import DOCUMENT, INPUTS, PROGRAM, TRACE
from nncdbg.text.lexemes import name_text
from nncdbg.text.listing import Listing

FORMAT = 1

SETTINGS = ("backend", "fallback", "allocator", "seed", "max_ops", "op_libraries")
"""The fields of the run configuration saved in a program folder."""

_NOT_PACKAGES = ("python", "platform")
"""Versions in a document that are not of installed packages."""

C = TypeVar("C")


class FolderDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `nncdbg.json`.

    `settings` has the fields `SETTINGS`, a repro bundle's gates, and the checksums of a recorded step.
    `model` is the source of the program.
    `finding` is as a watch reports it, and `statements` the number of statements that run before its own.
    `title` and `notes` are for users; `versions` are by package.
    """

    format: int
    settings: dict[str, Any]
    inputs: dict[str, TensorEntry]
    statements: int = 0
    finding: dict[str, Any] | None = None
    title: str = ""
    notes: list[str] = []
    model: str = ""
    versions: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class ProgramFolder:
    """An opened program folder.  `program.saved` is how to run it, with its inputs."""

    path: Path
    program: Program
    document: FolderDocument

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The saved inputs by name."""
        return self.program.saved.inputs

    @property
    def statements(self) -> int:
        """The number of statements that run before the finding's; 0 without a finding."""
        return self.document.statements if self.document.finding is not None else 0

    @property
    def at_finding(self) -> bool:
        """Whether this is a repro bundle, which opens at its finding."""
        return self.document.finding is not None

    def configuration(self, kind: type[C]) -> C:
        """Return the saved settings as a record of this kind.  Raises LoadError if they are damaged."""
        return from_builtins(self.document.settings, kind, str(self.path / DOCUMENT))

    @property
    def supplied(self) -> dict[str, Any]:
        """Return the fields of the run configuration that the folder supplies if they are not given."""
        return {name: getattr(self.program.saved, name) for name in (*SETTINGS[:-1], "inputs")}

    def check_libraries(self, given: Sequence[str]) -> None:
        """Raise UsageError if the program needs op libraries and none is given: a folder runs no Python."""
        needed = self.program.saved.op_libraries
        if needed and not given:
            raise UsageError(
                f"{self.path} needs custom kernels: {', '.join(needed)}",
                hint="review the Python file, then pass it with --op-library FILE.py",
            )

    def sentence(self) -> str:
        """The finding, or the title of a folder without one, in one line."""
        found = self.document.finding
        if found is None:
            return self.document.title or f"program folder {self.path.name or self.path}"
        within = f" (its {found['within']['op']})" if found.get("within") else ""
        what = f"{found.get('kind')} in %{found.get('value')}, {found.get('op') or 'input'}{within}"
        said = ": ".join(part for part in (found.get("cause"), found.get("evidence")) if part)
        return f"{what}: {said}" if said else what


def open_program_folder(path: Path) -> ProgramFolder:
    """Open a program folder.

    Raises LoadError if a file is missing or damaged, or does not fit the others; ParseError for the text.
    """
    document = read_document(path)
    in_file = any(entry.in_file for entry in document.inputs.values())
    for name in (PROGRAM, *([INPUTS] if in_file else [])):
        if not os.path.lexists(path / name):
            raise LoadError(f"{path} is incomplete: it has no {name}", hint="write or copy the folder again")
    settings = from_builtins(document.settings, SavedRun, str(path / DOCUMENT))
    program = load_text(path / PROGRAM)
    check_inputs(path, program.graph, document.inputs)
    saved = replace(
        settings,
        origin=str(path),
        inputs=unpack(path / INPUTS, document.inputs),
        trace=_read_trace(path / TRACE, program),
    )
    notes = (*program.notes, *document.notes, *_version_notes(document.versions))
    listing = program.listing if _is_readable(program.listing) else None
    program = replace(program, saved=saved, notes=notes, listing=listing)
    return ProgramFolder(path, program, document)


_comment = re.compile(r"\s*#(?!#|nncdbg )").match


def _is_readable(listing: Listing | None) -> bool:
    """Return whether to show a text as it is: it has comments of a person, or no locations to leave out."""
    return listing is not None and (
        any(map(_comment, listing.lines)) or not any(" loc(" in line for line in listing.lines)
    )


def _read_trace(path: Path, program: Program) -> SourceTrace | None:
    """Read how the source ran; None if the folder does not say it.  Raises LoadError if it is damaged."""
    if not os.path.lexists(path):
        return None
    try:
        trace = from_json(read_regular(path), SourceTrace, str(path))
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror or error}") from None
    if (wrong := misfit(program, trace)) is not None:
        raise LoadError(f"{path} is damaged: {wrong}", hint=f"remove {TRACE}, or copy the folder again")
    return trace


def load(path: Path) -> Program:
    """Return the program of a program folder, with a note on the kernels that it needs.

    Raises the errors of `open_program_folder`.
    """
    program = open_program_folder(path).program
    if not program.saved.op_libraries:
        return program
    needed = f"the program needs custom kernels: {', '.join(program.saved.op_libraries)}"
    return replace(program, notes=(*program.notes, f"{needed} (load them with nncdbg.load_op_library)"))


def read_document(folder: Path) -> FolderDocument:
    """Read `nncdbg.json` in a folder.  Raises LoadError if it is missing or damaged."""
    path = folder / DOCUMENT
    try:
        document = from_json(read_regular(path), FolderDocument, str(path))
    except FileNotFoundError:
        raise LoadError(
            f"{folder} is not a folder that nncdbg wrote: it contains no {DOCUMENT}",
            hint="use a model file in the folder (.onnx or .nnc)",
        ) from None
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror or error}") from None
    if document.format != FORMAT:
        raise LoadError(
            f"{path} has format {document.format}, but this nncdbg reads format {FORMAT}",
            hint="update nncdbg, or write the folder again",
        )
    return document


def check_inputs(folder: Path, graph: Graph, entries: Mapping[str, TensorEntry]) -> None:
    """Raise LoadError unless there is an entry for each input of the graph, of its type, and no other."""
    declared = {value.name: value.type for value in graph.inputs}
    hint = f"restore {PROGRAM} and {DOCUMENT}, or write the folder again"
    for name in declared.keys() - entries.keys():
        raise LoadError(f"{folder} has no data for the input %{name_text(name)} of its program", hint=hint)
    for name in entries.keys() - declared.keys():
        raise LoadError(
            f"{folder} has data for %{name_text(name)}, which is no input of its program", hint=hint
        )
    for name, entry in entries.items():
        wanted = declared[name]
        if not isinstance(wanted, TensorType) or entry.dtype is None:
            continue
        found = TensorType(entry.dtype, tuple(entry.shape or ()))
        if common_type(wanted, found) is None:
            raise LoadError(
                f"the data of %{name_text(name)} in {folder} is {found}, but its program declares {wanted}",
                hint=hint,
            )


def _version_notes(written: Mapping[str, str]) -> list[str]:
    """Return a note if installed packages have other versions than those that wrote the folder."""
    before, now = [], []
    for name, version in written.items():
        installed = None if name in _NOT_PACKAGES or version == "unknown" else _installed(name)
        # A local part, such as +cpu, is another build of the same version.
        if installed is not None and installed.partition("+")[0] != version.partition("+")[0]:
            before.append(f"{name} {version}")
            now.append(f"{name} {installed}")
    if not before:
        return []
    return [f"written with {', '.join(before)}; installed: {', '.join(now)}; results may differ"]


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
