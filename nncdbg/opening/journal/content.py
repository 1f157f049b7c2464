"""What a journal keeps of a program and its inputs, so that a run can be opened without its files.

The text of the program is kept with the run.  The first checkpoint of a run also has the data that the
text refers to (`data/STORE/KEY`) and the inputs (`input/NAME`).  A file has equal tensors
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import numpy as np

from nncdbg.dtypes import name_of
from nncdbg.engine.inputs.data_specs import data_file
from nncdbg.errors import LoadError, ParseError, UsageError
from nncdbg.ir.constants import initial_data
from nncdbg.ir.records import Array, Constant, Program, Reference, TensorType, Value
from nncdbg.ir.walk import blocks
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.text.lexemes import name_text

# -- inputs ----------------------------------------------------------------------------------------

LARGE = 64 << 20
"""Bytes from which an input in a file is kept by reference."""

PREFIX = "input/"


def kept_inputs(
    inputs: Mapping[str, Any], configuration: RunConfiguration
) -> tuple[dict[str, Array], dict[str, tuple[str, str]]]:
    """Return what a journal keeps of the inputs of a run.

    These are tensors by their names in a checkpoint, and (text, hash) of the other inputs, which are files.
    Raises UsageError for an input that is no tensor of numbers.
    """
    tensors: dict[str, Array] = {}
    files: dict[str, tuple[str, str]] = {}
    for name, content in inputs.items():
        if not hasattr(content, "dtype") or content.dtype.hasobject:
            raise UsageError(
                f"the input %{name_text(name)} cannot be kept in a journal: it is not a tensor of numbers",
                hint="give the input as a tensor of numbers, or run without --journal",
            )
        text = _file_text(configuration, name) if content.nbytes >= LARGE else None
        if text is None:
            tensors[f"{PREFIX}{name}"] = content
        else:
            files[name] = text, _hash(content)
    return tensors, files


def _file_text(configuration: RunConfiguration, name: str) -> str | None:
    """Return the text of an input in a file, with its path in full; None for other data."""
    given = {key.removeprefix("%"): value for key, value in configuration.inputs.items()}.get(name)
    if not isinstance(given, str) or data_file(given) is None:
        return None
    return str(Path(configuration.folder or "", given).absolute())


def _hash(content: Array) -> str:
    from xxhash import xxh3_128_hexdigest

    return xxh3_128_hexdigest(np.ascontiguousarray(content).data.cast("B"))


def check_files(kept: Mapping[str, Any], inputs: Mapping[str, Any], run: int) -> None:
    """Raise LoadError if a file has changed since the run."""
    for name, (text, known) in kept.get("files", {}).items():
        if name in inputs and _hash(inputs[name]) != known:
            raise LoadError(
                f"the input %{name_text(name)} of run {run} is in {text}, which has changed",
                hint="restore the file, or start the training again",
            )


# -- program and data ------------------------------------------------------------------------------

SETTINGS = (
    "seed",
    "backend",
    "fallback",
    "kernels",
    "allocator",
    "outputs",
    "in_place_states",
    "op_libraries",
)
"""The fields of the run configuration that a run in a journal keeps, besides the sizes and inputs."""


def text_of(program: Program) -> str:
    """Return the text of a program with its comments, if it was read from text and not changed since."""
    from nncdbg.textual_repr.parser import parse

    if program.listing is not None:
        text = "\n".join(program.listing.lines).rstrip("\n") + "\n"
        try:
            if parse(text) == program:
                return text
        except ParseError:
            pass
    return program.text()


def data_of(program: Program) -> dict[str, Array]:
    """Return the data that the text of a program refers to, by their names in a checkpoint.

    Raises LoadError if they cannot be read.
    """
    return {
        f"data/{each.store}/{each.key}": initial_data(Constant(Value(each.key), each), program)
        for each in references(program)
    }


def references(program: Program) -> Iterator[Reference]:
    """Yield each reference of a program to data in a store; equal ones may be repeated."""
    for _, graph in blocks(program):
        yield from (each.data for each in graph.constants if isinstance(each.data, Reference))
    yield from (each.first for each in program.states if isinstance(each.first, Reference))
    for run in program.runs:
        for line in (run, *run.evaluations):
            yield from line.sources


@dataclass(frozen=True, slots=True)
class JournalStore:
    """The data of one store of a program (see `frontends.stores.Store`), in the tensors of a checkpoint."""

    tensors: Mapping[str, Array]
    number: int

    def keys(self) -> Iterable[str]:
        prefix = f"data/{self.number}/"
        return [key.removeprefix(prefix) for key in self.tensors if key.startswith(prefix)]

    def type(self, key: str) -> TensorType:
        array = self.read(key)
        return TensorType(name_of(array.dtype), array.shape)

    def read(self, key: str) -> Array:
        name = f"data/{self.number}/{key}"
        if name not in self.tensors:
            raise LoadError(f'the journal has no data "{key}"', hint="open another run")
        return self.tensors[name]


def program_of(text: str, source: str | None, tensors: Mapping[str, Array]) -> Program:
    """Return the program of a run, with its data from the run's first checkpoint.

    `source` is the file from which the program was read.  Raises ParseError if this version of nncdbg does
    not read the text.
    """
    from nncdbg.textual_repr.parser import parse

    program = parse(text, file=source)
    readers = tuple(JournalStore(tensors, number) for number in range(len(program.stores)))
    return replace(program, readers=readers, source=source)


def kept_configuration(
    configuration: RunConfiguration, dims: Mapping[str, int], files: Mapping[str, tuple[str, str]]
) -> dict[str, Any]:
    """Return what a journal keeps of a run configuration: JSON.  `files` are inputs kept by reference."""
    return {name: getattr(configuration, name) for name in SETTINGS} | {
        "dims": dict(dims),
        "program": configuration.program,
        "files": {name: [text, digest] for name, (text, digest) in files.items()},
    }


def supplied(kept: Mapping[str, Any], tensors: Mapping[str, Array]) -> dict[str, Any]:
    """Return the fields of a run configuration that a run in a journal supplies.

    Inputs are arrays, or texts that name files.  Raises LoadError if a field has another type.
    """
    types = get_type_hints(RunConfiguration)
    try:
        found = {
            name: msgspec.convert(kept[name], types[name]) for name in (*SETTINGS, "dims") if name in kept
        }
        files = msgspec.convert(kept.get("files", {}), dict[str, tuple[str, str]])
        arrays = {key.removeprefix(PREFIX): tensors[key] for key in tensors if key.startswith(PREFIX)}
        return {**found, "inputs": {**{name: text for name, (text, _) in files.items()}, **arrays}}
    except msgspec.ValidationError as error:
        raise LoadError(
            f"the configuration of the run is damaged: {error}", hint="open another run of the journal"
        ) from None
