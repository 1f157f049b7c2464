"""The inputs of a run in a journal: by value, or large files by reference with the hash of their content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from nncdbg.engine.errors import LoadError, UsageError
from nncdbg.engine.inputs.data_specs import data_file
from nncdbg.engine.text.lexemes import name_text
from nncdbg.ir.records import Array
from nncdbg.opening.configuration import RunConfiguration

LARGE = 64 << 20
"""Bytes from which an input in a file is kept by reference."""

PREFIX = "input/"


@dataclass(frozen=True, slots=True)
class KeptInputs:
    """The tensors of inputs by their names in a checkpoint; `files` are (text, hash) of the others."""

    tensors: dict[str, Array]
    files: dict[str, tuple[str, str]]


def kept_inputs(inputs: Mapping[str, Any], configuration: RunConfiguration) -> KeptInputs:
    """Return what a journal keeps of the inputs of a run.

    Raises UsageError for an input that is no tensor of numbers.
    """
    kept = KeptInputs({}, {})
    for name, content in inputs.items():
        if not hasattr(content, "dtype") or content.dtype.hasobject:
            raise UsageError(
                f"the input %{name_text(name)} cannot be kept in a journal: it is not a tensor of numbers",
                hint="give the input as a tensor of numbers, or run without --journal",
            )
        text = _file_text(configuration, name) if content.nbytes >= LARGE else None
        if text is None:
            kept.tensors[f"{PREFIX}{name}"] = content
        else:
            kept.files[name] = text, _hash(content)
    return kept


def _file_text(configuration: RunConfiguration, name: str) -> str | None:
    """Return the text of an input in a file, with its path in full; None for other data."""
    given = {key.removeprefix("%"): value for key, value in configuration.inputs.items()}.get(name)
    if not isinstance(given, str) or data_file(given) is None:
        return None
    return str(Path(configuration.folder or "", given).absolute())


def _hash(content: Array) -> str:
    from xxhash import xxh3_128_hexdigest

    return xxh3_128_hexdigest(np.ascontiguousarray(content).data.cast("B"))


def supplied_inputs(kept: Mapping[str, Any], tensors: Mapping[str, Array]) -> dict[str, Any]:
    """Return the inputs of a run, as arrays and as texts that name files.

    Raises msgspec.ValidationError for files that are not texts and hashes.
    """
    files = msgspec.convert(kept.get("files", {}), dict[str, tuple[str, str]])
    found: dict[str, Any] = {name: text for name, (text, _) in files.items()}
    arrays = {key.removeprefix(PREFIX): tensors[key] for key in tensors if key.startswith(PREFIX)}
    return found | arrays


def check_files(kept: Mapping[str, Any], inputs: Mapping[str, Any], run: int) -> None:
    """Raise LoadError if a file has changed since the run."""
    for name, (text, known) in kept.get("files", {}).items():
        if name in inputs and _hash(inputs[name]) != known:
            raise LoadError(
                f"the input %{name_text(name)} of run {run} is in {text}, which has changed",
                hint="restore the file, or start the training again",
            )
