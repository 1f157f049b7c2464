"""Files of states: save those of a run, and begin another program with them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import msgspec

from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.engine.frontends.stores import ArrayStore, Store
from nncdbg.engine.frontends.tensor_file import TensorEntry, open_store, pack, unpack, write_tensors
from nncdbg.errors import LoadError
from nncdbg.ir.records import Array, Inline, Node, Program, Reference, StateLine, TensorType
from nncdbg.process.files import draft_of
from nncdbg.text.counting import counted, listed
from nncdbg.text.lexemes import name_text

_ENTRIES = "nncdbg.states"
"""The note of a file with element types that safetensors does not have."""

_MOST = 5
"""Names in one part of a report."""


@dataclass(frozen=True, slots=True)
class LoadedStates:
    """A program with states from a file, and a report; names are without the `%`.

    `missing` are states that the file lacks, `unused` are tensors of the file that the program lacks, and
    `unfit` are (name, type in the program, type in the file).  All of these keep their first values.
    `moments` are missing states that belong to another state, such as those of an optimizer.
    """

    program: Program
    file: str
    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    moments: tuple[str, ...]
    unused: tuple[str, ...]
    unfit: tuple[tuple[str, str, str], ...]

    @property
    def complete(self) -> bool:
        """Whether program and file have the same states with the same types, apart from `moments`."""
        return not (self.missing or self.unused or self.unfit)

    def __str__(self) -> str:
        unfit = [f"%{name_text(name)} is {wanted}, in the file {found}" for name, wanted, found in self.unfit]
        parts = [
            f"{counted(len(self.loaded), 'state')} loaded from {self.file}",
            *_part(self.missing, "missing"),
            *_part(self.moments, "of an optimizer missing"),
            *_part(self.unused, "not used"),
            *([f"{len(unfit)} with another type: {listed(unfit, _MOST)}"] if unfit else []),
        ]
        return "; ".join(parts)


def _part(names: Sequence[str], what: str) -> list[str]:
    return (
        [f"{len(names)} {what}: {listed([f'%{name_text(name)}' for name in names], _MOST)}"] if names else []
    )


def load_states(
    program: ProgramSource, states: str | PathLike[str], *, strict_states: bool = False
) -> LoadedStates:
    """Return a program whose states begin with the tensors of a file, by name, and a report.

    `states` is a .safetensors file or an ONNX model, whose weights are used.  A tensor must have the shape
    and the element type of its state.

    Raises LoadError for a file that cannot be read, and with `strict_states` for a report that is not
    `complete`.
    """
    loaded = load(program)
    if not loaded.states:
        raise LoadError(
            f"the program has no states for {states}", hint="a state is written `state %w: f32[4] = ...`"
        )
    store = _opened(Path(states))
    keys = store.keys()
    types = {key: store.type(key) for key in keys}
    lines, found, unfit = [], [], []
    for state in loaded.states:
        name, wanted = state.value.name, state.value.type
        given = types.pop(name, None)
        if given is None:
            lines.append(state)
        elif _fits(wanted, given):
            found.append(name)
            lines.append(_from_store(state, store, loaded))
        else:
            unfit.append((name, str(wanted), str(given)))
            lines.append(state)
    known = {*found, *(name for name, _, _ in unfit)}
    absent = [state for state in loaded.states if state.value.name not in known]
    changed = replace(loaded, states=tuple(lines))
    if loaded.listing is None:
        readers = (*loaded.readers, *[None] * (len(loaded.stores) - len(loaded.readers)), store)
        changed = replace(changed, stores=(*loaded.stores, str(states)), readers=readers)
    report = LoadedStates(
        changed,
        str(states),
        tuple(found),
        tuple(state.value.name for state in absent if state.of is None),
        tuple(state.value.name for state in absent if state.of is not None),
        tuple(types),
        tuple(unfit),
    )
    if strict_states and not report.complete:
        raise LoadError(str(report), hint="without `strict_states` the other states keep their first values")
    return report


def _fits(wanted: object, given: TensorType) -> bool:
    if not isinstance(wanted, TensorType) or wanted.dtype != given.dtype or wanted.shape is None:
        return False
    sizes = given.shape or ()
    return len(wanted.shape) == len(sizes) and all(
        size == other or not isinstance(size, int) for size, other in zip(wanted.shape, sizes, strict=True)
    )


def _from_store(state: StateLine, store: Store, program: Program) -> StateLine:
    """Return a state with its data; in a text with line numbers a statement remains a statement."""
    name = state.value.name
    if program.listing is None:
        return replace(state, first=Reference(name, len(program.stores)))
    data = Inline(store.read(name))
    if isinstance(state.first, Node):
        return replace(state, first=Node("Constant", (), (state.value,), {"value": data}))
    return replace(state, first=data)


def _opened(file: Path) -> Store:
    if file.suffix == ".onnx":
        from nncdbg.engine.frontends.onnx import weights

        return ArrayStore(weights(file))
    store = open_store(file)
    entries = store.note().get(_ENTRIES)
    if entries is None:
        return store
    try:
        decoded = msgspec.json.decode(entries, type=dict[str, TensorEntry])
    except (msgspec.DecodeError, RecursionError) as error:
        raise LoadError(f"the note of {file} is damaged: {error}", hint="save the states again") from None
    return ArrayStore(unpack(file, decoded))


def save_states(states: Mapping[str, Array], file: str | PathLike[str]) -> None:
    """Write states to a .safetensors file, of any element type.  Raises LoadError if it cannot be written."""
    tensors, entries = pack(states)
    plain = all(entry.tensor == name and not entry.bytes for name, entry in entries.items())
    documents = {name: msgspec.to_builtins(entry) for name, entry in entries.items()}
    # The program may read its states from the file that is replaced here.
    with draft_of(Path(file)) as draft:
        write_tensors(draft, tensors, None if plain else {_ENTRIES: json.dumps(documents)})
