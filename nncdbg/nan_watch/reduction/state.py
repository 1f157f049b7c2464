"""State files of reductions, from which a stopped or killed reduction resumes.

A state file is in the safetensors format: the weights and inputs of the smallest case so far, with a JSON
document in the header that has the text of the program.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from nncdbg.engine.errors import LoadError, UsageError
from nncdbg.engine.frontends.safetensors import open_store
from nncdbg.engine.frontends.stores import ArrayStore
from nncdbg.engine.frontends.tensor_file import TensorEntry, from_json, pack, to_json, unpack, write_tensors
from nncdbg.ir.records import Program
from nncdbg.nan_watch.configuration import WatchConfiguration
from nncdbg.nan_watch.reduction.case import ReducedCase, case_of_program
from nncdbg.nan_watch.reduction.sameness import FindingSignature

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
