"""Repro bundles: a folder with a program, its data and a finding, which `nncdbg DIR` opens at the finding.

program.nnc           the part of the program that the finding needs
data.safetensors      the weights used by that part
inputs.safetensors    its inputs
nncdbg.json           the finding, its place, how to run it, versions, the source model
README                how to open it

The watch writes bundles (`nan_watch/bundles/writing.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from nncdbg.engine.errors import LoadError, UsageError
from nncdbg.engine.frontends import load
from nncdbg.engine.graph import Program
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.tensor_file import TensorEntry, from_builtins, from_json, unpack

PROGRAM, INPUTS, DOCUMENT, README = "program.nnc", "inputs.safetensors", "nncdbg.json", "README"
STORE = "data.safetensors"
"""The store named in the text of the program."""

FORMAT = 1

SETTINGS = ("backend", "fallback", "allocator", "seed", "max_ops", "op_libraries")
"""The fields of the run configuration saved in a bundle."""

C = TypeVar("C", bound=RunConfiguration)


class BundleDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `nncdbg.json`.

    `statements` is the number of statements that run before the finding's; `finding` is as a watch
    reports it, `model` the source of the program.  `settings` has the fields `SETTINGS` and the gates.
    """

    format: int
    statements: int
    settings: dict[str, Any]
    inputs: dict[str, TensorEntry]
    finding: dict[str, Any]
    model: str = ""
    versions: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle.  `inputs` are by name; `statements` is the number that run before the finding's."""

    folder: Path
    program: Program
    inputs: Mapping[str, Any]
    document: BundleDocument

    @property
    def statements(self) -> int:
        return self.document.statements

    def configuration(self, kind: type[C]) -> C:
        """Return the bundle's run configuration.  Raises LoadError if it is damaged."""
        return from_builtins(self.document.settings, kind, str(self.folder / DOCUMENT))

    @property
    def supplied(self) -> dict[str, Any]:
        """Return the fields of the run configuration that the bundle supplies if they are not given."""
        own = self.configuration(RunConfiguration)
        supplied = {name: getattr(own, name) for name in SETTINGS if name != "op_libraries"}
        return {**supplied, "inputs": self.inputs}

    def check_libraries(self, given: Sequence[str]) -> None:
        """Raise UsageError if the bundle needs op libraries and none is given: it runs no Python itself."""
        needed = self.configuration(RunConfiguration).op_libraries
        if needed and not given:
            raise UsageError(
                f"the bundle {self.folder} needs custom kernels: {', '.join(needed)}",
                hint="review the Python file, then pass it with --op-library FILE.py",
            )

    def sentence(self) -> str:
        """The finding in one line."""
        found = self.document.finding
        within = f" (its {found['within']['op']})" if found.get("within") else ""
        what = f"{found.get('kind')} in %{found.get('value')}, {found.get('op') or 'input'}{within}"
        said = ": ".join(part for part in (found.get("cause"), found.get("evidence")) if part)
        return f"{what}: {said}" if said else what


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a repro bundle, damaged or not."""
    return os.path.lexists(os.path.join(path, DOCUMENT))


def open_bundle(folder: Path) -> Bundle:
    """Open the bundle in a folder.  Raises LoadError if it is missing or damaged; ParseError for its text."""
    document = read_document(folder)
    program = load(folder / PROGRAM)
    inputs = unpack(folder / INPUTS, document.inputs)
    return Bundle(folder, program, inputs, document)


def read_document(folder: Path) -> BundleDocument:
    """Read `nncdbg.json` in a folder.  Raises LoadError if it is missing or damaged."""
    path = folder / DOCUMENT
    try:
        document = from_json(path.read_bytes(), BundleDocument, str(path))
    except FileNotFoundError:
        raise LoadError(
            f"{folder} is a folder, not a repro bundle: it contains no {DOCUMENT}",
            hint="use a model file in the folder (.onnx or .nnc)",
        ) from None
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror or error}") from None
    if document.format != FORMAT:
        raise LoadError(
            f"{path} has format {document.format}, but this nncdbg reads format {FORMAT}",
            hint="update nncdbg, or write the bundle again",
        )
    return document
