"""Bind the inputs of a graph to arrays, files, generated or random data.

Inputs that are not given are drawn at random: sizes and integers are chosen so that the program runs,
and a note reports each choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nncdbg import dtypes
from nncdbg.engine.inputs.consumers import Chosen, Consumers, Size, is_integer
from nncdbg.engine.inputs.data_specs import FORMS, Generated, generate, generated
from nncdbg.engine.inputs.input_arrays import check_shape, given_array, misfit, title
from nncdbg.engine.inputs.npy import choice
from nncdbg.engine.ops.valid_integers import Integers
from nncdbg.errors import InputError, UsageError
from nncdbg.ir.records import Array, Dim, Graph, OptionalType, SequenceType, TensorType, Value, tensor_only
from nncdbg.text.lexemes import ElementName, integer_of, name_text


@dataclass(frozen=True, slots=True)
class Note:
    """A note to the user before a run.

    For an input or size that was not given, `missing` is its kind and its name, so that each user
    interface can add its own hint; `str(note)` is the note with the hint for the command line.
    """

    fact: str
    missing: tuple[Literal["input", "dim"], str] | None = None

    def __str__(self) -> str:
        if self.missing is None:
            return self.fact
        kind, name = self.missing
        return f"{self.fact} (pass --{kind} {name}={'FILE.npy' if kind == 'input' else 'SIZE'})"


class BoundInputs(dict[str, Any]):
    """One read-only, C-contiguous, native-endian array per graph input, in the graph's order.

    A sequence is a list of such arrays, an absent optional is None.  `dims` holds the size of every
    symbol of the inputs; `notes` report sizes that were assumed and inputs that were drawn at random from
    `seed`; `given` holds the inputs as given: texts, numbers, arrays.
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        dims: Mapping[str, int],
        notes: Sequence[Note],
        given: Mapping[str, Any],
        seed: int,
    ) -> None:
        super().__init__(arrays)
        self.dims, self.notes, self.given, self.seed = dims, notes, given, seed

    @property
    def samples(self) -> dict[str, int]:
        """The sizes of the first axes, by name."""
        shapes = {name: getattr(array, "shape", ()) for name, array in self.items()}
        return {name: shape[0] for name, shape in shapes.items() if shape}


def parse_spec(text: str) -> tuple[str, str]:
    """Parse ``NAME=SPEC`` of the command line.  Raises UsageError unless both sides are given."""
    name, equals, spec = text.partition("=")
    if not equals or not name or not spec:
        raise UsageError(f'"{text}" is not NAME=VALUE', hint=f"write VALUE as one of: {FORMS}")
    return name, spec


def parse_dim(text: str) -> tuple[str, int]:
    """Parse ``N=4`` of the command line.  Raises UsageError unless it is a name and a size."""
    name, _, size = text.rpartition("=")
    number = integer_of(size)
    if not name or number is None or not size[0].isdigit():
        raise UsageError(f'"{text}" is not NAME=SIZE', hint="write, for example, --dim N=4")
    return name, number


def bind(
    graph: Graph,
    specs: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    *,
    folder: Path | None = None,
    consumers: Consumers | None = None,
) -> BoundInputs:
    """Bind every input of `graph`.

    `specs` maps an input's name (``x`` or ``%x``) to an array, a Python scalar or nested list (converted to
    the input's dtype), a path, or a text: FILE.npy, FILE.npz:KEY, FILE.png:STEPS (see `image_specs`),
    relative to `folder`, a number or list, or zeros, ones, normal, uniform, arange, with optional sizes
    (``normal[1,512]``).  A sequence is a list of those, or FILE.npz with all its arrays; an optional may be
    None.  `dims` gives symbolic sizes.  Other sizes, and integers to draw, are chosen for `consumers` if
    these are given.  A note reports each choice, and how an image became a tensor.

    Raises InputError for an unknown name, a dtype, rank or size that does not fit, a text in none of these
    forms, or a seed below 0; LoadError for a file that cannot be read; UsageError for an image if Pillow
    is not installed.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"invalid seed {seed!r}", hint="use an integer of 0 or more")
    first = graph.inputs[0].name if graph.inputs else "x"
    for what, mapping, example in (("inputs", specs, first), ("dims", dims, "N")):
        if mapping is not None and not isinstance(mapping, Mapping):
            message = f"{what} must be a dict keyed by name, not {type(mapping).__name__}"
            raise InputError(message, hint=f'{{"{example}": ...}}')
    inputs = {value.name: value for value in graph.inputs}
    named = {_input_name(name, inputs, graph): data for name, data in (specs or {}).items()}
    wanted = {name: _wanted(name, data) for name, data in named.items() if isinstance(data, str)}
    made = {name: spec for name, spec in wanted.items() if spec is not None}
    read: list[str] = []
    given = {
        name: given_array(inputs[name], data, folder, read)
        for name, data in named.items()
        if name not in made
    }
    sizes = _Sizes(graph, dims or {})
    for name, array in given.items():
        sizes.match(inputs[name], array)
    missing = {name: _Missing(value, made.get(name)) for name, value in inputs.items() if name not in given}
    for each in missing.values():
        sizes.match_spec(each)
    if consumers is not None:
        sizes.choose(consumers, missing, given, seed)
    notes = [*map(Note, read)]
    types = {name: each.concrete(sizes, notes) for name, each in missing.items()}
    integers = _integers(consumers, missing, types, given, sizes, seed)
    arrays = {}
    for name in inputs:
        if name in given:
            arrays[name] = _frozen(given[name])
        else:
            arrays[name] = _frozen(_generated(missing[name], types[name], integers.get(name), seed, notes))
    return BoundInputs(arrays, sizes.known, notes, named, seed)


@dataclass(frozen=True, slots=True)
class _Missing:
    """An input without data, and the data to generate for it if specified."""

    value: Value
    spec: Generated | None

    @property
    def kind(self) -> str | None:
        return self.spec.kind if self.spec is not None else None

    @property
    def sequence(self) -> bool:
        """True for a sequence, which is generated with two tensors."""
        return isinstance(self.value.type, SequenceType)

    @property
    def type(self) -> TensorType | None:
        """The type of the tensors to generate; None if it is unknown, or the input stays absent."""
        if isinstance(self.value.type, OptionalType) and self.spec is None:
            return None
        declared = self.value.type
        known = tensor_only(declared.element if isinstance(declared, SequenceType) else declared)
        if self.spec is not None and self.spec.sizes is not None:
            return TensorType(known.dtype if known is not None else "f32", self.spec.sizes)
        return known if known is not None and known.shape is not None else None

    def concrete(self, sizes: _Sizes, notes: list[Note]) -> TensorType | None:
        """Return the type with numbers for all sizes; None for an optional that stays absent."""
        if self.type is not None:
            return TensorType(self.type.dtype, sizes.shape(Value(self.value.name, self.type), notes))
        if isinstance(self.value.type, OptionalType):
            return None
        name = self.value.name
        if isinstance(self.value.type, SequenceType):
            raise InputError(
                f"input %{name_text(name)} {self.value.type} has elements of unknown shape, so it "
                f"cannot be generated",
                hint=f"supply the input: --input {name}=FILE.npz",
            )
        raise InputError(
            f"input %{name_text(name)} has no known {'shape' if self.value.type else 'type'}, so "
            f"it cannot be generated",
            hint=f"supply the input: --input {name}=FILE.npy, or sizes: {name}=normal[1,512]",
        )


def _wanted(name: str, text: str) -> Generated | None:
    try:
        return generated(text)
    except UsageError as error:
        raise InputError(f"input %{name_text(name)}: {error.message}", hint=error.hint) from None


def _integers(
    consumers: Consumers | None,
    missing: Mapping[str, _Missing],
    types: Mapping[str, TensorType | None],
    given: Mapping[str, Any],
    sizes: _Sizes,
    seed: int,
) -> dict[str, tuple[Integers, str]]:
    """Return the integers that the program accepts from drawn inputs, also from those that are floats."""
    tensors = {
        name: type_ for name, type_ in types.items() if type_ is not None and not missing[name].sequence
    }
    drawn = {
        name: type_
        for name, type_ in tensors.items()
        if missing[name].kind in (None, "uniform") and (is_integer(type_) or type_.dtype in dtypes.FLOATS)
    }
    if consumers is None or not drawn:
        return {}

    def draw(name: str, accepted: Integers | None) -> Array:
        return generate(name, drawn[name], None, seed, accepted)

    return consumers.integers(drawn, given, sizes.known, draw, tensors)


class _Sizes:
    """Sizes of symbols: from the user, from given arrays, else chosen."""

    def __init__(self, graph: Graph, dims: Mapping[str, int]) -> None:
        symbols = symbolic_sizes(graph)
        for name, size in dims.items():
            if name not in symbols:
                raise InputError(
                    f'no input of @{graph.name} has the size "{name}"',
                    hint=choice(str(name), symbols) or "omit the size: its inputs have no symbolic sizes",
                )
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise InputError(f"invalid size {name}={size!r}", hint="use an integer of 0 or more")
        self.known = dict(dims)
        self._from = dict.fromkeys(dims, "the size that was given for it")
        self.chosen = Chosen({}, {})

    def match(self, value: Value, data: Any) -> None:
        """Check an array against its input's type, and store the sizes of symbols."""
        if isinstance(value.type, SequenceType):
            for item in data:
                # Elements may differ in size, so each one binds symbols separately.
                _Sizes(Graph(""), {}).match(Value(value.name, value.type.element), item)
        elif isinstance(value.type, OptionalType):
            if data is not None:
                self.match(Value(value.name, value.type.element), data)
        elif isinstance(value.type, TensorType) and value.type.shape is not None:
            self._match_tensor(value, value.type.shape, data)

    def _match_tensor(self, value: Value, shape: tuple[Dim, ...], array: Array) -> None:
        check_shape(value, shape, array)
        for axis, (dim, size) in enumerate(zip(shape, array.shape, strict=True)):
            if isinstance(dim, str):
                if self.known.setdefault(dim, size) != size:
                    fact = f"axis {axis} is {dim}={size}, but {dim}={self.known[dim]} in {self._from[dim]}"
                    raise misfit(value, array, "shape", fact)
                self._from.setdefault(dim, f"%{name_text(value.name)}")

    def match_spec(self, missing: _Missing) -> None:
        """Check the sizes of data to generate, and store the sizes of symbols in them."""
        if missing.spec is not None and missing.spec.sizes is not None:
            known = tensor_only(missing.value.type)
            if known is not None and known.shape is not None:
                made = np.broadcast_to(np.zeros((), dtypes.NUMPY[known.dtype]), missing.spec.sizes)
                self._match_tensor(missing.value, known.shape, made)

    def choose(
        self, consumers: Consumers, missing: Mapping[str, _Missing], given: Mapping[str, Any], seed: int
    ) -> None:
        """Choose the unknown sizes so that the program runs."""
        types = {name: each.type for name, each in missing.items() if not each.sequence}
        known = {name: type_ for name, type_ in types.items() if type_ is not None}

        def draw(name: str, accepted: Integers | None) -> Array:
            return generate(name, known[name], missing[name].kind, seed, accepted)

        self.chosen = consumers.sizes(known, given, self.known, draw)

    def shape(self, value: Value, notes: list[Note]) -> tuple[int, ...]:
        """Return the shape of a generated input, with a note for each size that was chosen."""
        sizes = []
        for axis, dim in enumerate(_dims(value)):
            if dim is None:
                what = f"axis {axis} of input %{name_text(value.name)} {value.type} has an unknown size"
                size = self._taken((value.name, axis), what, f"axis {axis}", ("input", value.name), notes)
            elif isinstance(dim, str):
                what = f"size {dim} of input %{name_text(value.name)} {value.type} is not given"
                if dim not in self.known:
                    self.known[dim] = self._taken(dim, what, dim, ("dim", dim), notes)
                size = self.known[dim]
            else:
                size = dim
            sizes.append(size)
        return tuple(sizes)

    def _taken(
        self,
        size: Size,
        what: str,
        title: str,
        missing: tuple[Literal["input", "dim"], str],
        notes: list[Note],
    ) -> int:
        number = self.chosen.sizes.get(size, 1)
        reason = self.chosen.reasons.get(size)
        choice = f", {number} is used" if reason is None else f": {title} = {number}, {reason}"
        notes.append(Note(what + choice, missing))
        return number


def symbolic_sizes(graph: Graph) -> list[str]:
    """Return the names of the symbolic sizes of the inputs, each once, in order."""
    return list(dict.fromkeys(dim for value in graph.inputs for dim in _dims(value) if isinstance(dim, str)))


def _dims(value: Value) -> tuple[Dim, ...]:
    """Return the sizes in a tensor type."""
    known = tensor_only(value.type)
    return known.shape or () if known is not None else ()


def _input_name(name: str, inputs: Mapping[str, Value], graph: Graph) -> str:
    plain = str(name).removeprefix("%")
    for candidate in (name, plain):
        if candidate in inputs:
            return candidate
    raise InputError(
        f'@{graph.name} has no input "{name}"',
        operands=[title(value) for value in inputs.values()],
        hint=choice(plain, inputs) or "omit the input: the graph has none",
    )


def _generated(
    missing: _Missing,
    type_: TensorType | None,
    accepted: tuple[Integers, str] | None,
    seed: int,
    notes: list[Note],
) -> Array | list[Array] | None:
    """Return generated data, or random data with a note; None for an optional that stays absent."""
    value = missing.value
    if type_ is None:
        notes.append(Note(f"input %{name_text(value.name)} {value.type} is absent", ("input", value.name)))
        return None
    kind = missing.kind
    integers, reader = accepted or (None, "")
    if kind is None or integers is not None:
        fact = f"input %{name_text(value.name)} {type_} drawn at random from seed {seed}"
        if integers is not None:
            fact = f"{fact}: {integers}, from {reader}"
        notes.append(Note(fact, ("input", value.name)))
    drawn = kind if integers is None else None
    if missing.sequence:
        return [generate(ElementName(value.name, index), type_, drawn, seed) for index in range(2)]
    return generate(value.name, type_, drawn, seed, integers)


def _frozen(array: Any) -> Any:
    """Return a C-contiguous, native-endian, read-only array; a view if the user's array already is."""
    if array is None:
        return None
    if isinstance(array, list):
        return type(array)(map(_frozen, array))
    native = array.astype(array.dtype.newbyteorder("="), copy=False) if array.dtype.isbuiltin != 2 else array
    view = np.asarray(native, order="C").view()
    view.flags.writeable = False
    return view
