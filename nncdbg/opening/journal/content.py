"""What a journal keeps of a program and its inputs, so that a run can be opened without its files.

The text of the program is kept with the run.  The first checkpoint of a run also has the data that the
text refers to (`data/STORE/KEY`) and the inputs (`input/NAME`; see `inputs.py`).  A file has equal tensors
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

import msgspec

from nncdbg.engine.compilation.code import initial_data
from nncdbg.engine.dtypes import name_of
from nncdbg.engine.errors import LoadError, ParseError
from nncdbg.ir.records import Array, Constant, Program, Reference, RunLine, TensorType, Value
from nncdbg.ir.walk import blocks
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.journal.inputs import supplied_inputs

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
        _key(each): initial_data(Constant(Value(each.key), each), program) for each in references(program)
    }


def references(program: Program) -> Iterator[Reference]:
    """Yield each reference of a program to data in a store; equal ones may be repeated."""
    for _, graph in blocks(program):
        yield from (each.data for each in graph.constants if isinstance(each.data, Reference))
    yield from (each.first for each in program.states if isinstance(each.first, Reference))
    for run in program.runs:
        yield from _sources(run)


def _sources(run: RunLine) -> Iterator[Reference]:
    yield from run.sources
    for each in run.evaluations:
        yield from each.sources


def _key(reference: Reference) -> str:
    return f"data/{reference.store}/{reference.key}"


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

    Raises LoadError if one has another type.
    """
    types = get_type_hints(RunConfiguration)
    try:
        found = {
            name: msgspec.convert(kept[name], types[name]) for name in (*SETTINGS, "dims") if name in kept
        }
        return {**found, "inputs": supplied_inputs(kept, tensors)}
    except msgspec.ValidationError as error:
        raise LoadError(
            f"the configuration of the run is damaged: {error}", hint="open another run of the journal"
        ) from None
