"""What the inputs of a graph are bound to: arrays, files, generated or random data.

Nothing a user gives is converted behind their back: an array of another dtype or shape is an
error with both types.  What is not given is drawn at random, and a note says so.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nncdbg.engine import dtypes
from nncdbg.engine.errors import UsageError
from nncdbg.engine.generated import GENERATED, generate
from nncdbg.engine.graph import Array, Dim, Graph, OptionalType, SequenceType, TensorType, Value, tensor_only
from nncdbg.engine.npy import choice, load_archive, load_array, load_from_archive

_FORMS = "FILE.npy, FILE.npz:KEY, " + ", ".join(GENERATED)


@dataclass(frozen=True, slots=True)
class Note:
    """What the user should know before a run.

    Where that is of something that was not given, `missing` is its kind and its name, so that each
    surface can say in its own words how to give it; `str(note)` says it for the command line.
    """

    fact: str
    missing: tuple[Literal["input", "dim"], str] | None = None

    def __str__(self) -> str:
        if self.missing is None:
            return self.fact
        kind, name = self.missing
        return f"{self.fact} (give --{kind} {name}={'FILE.npy' if kind == 'input' else 'SIZE'})"


@dataclass(frozen=True, slots=True)
class Bound:
    """One read-only, C-contiguous, native-endian array per graph input, in the graph's order.

    A sequence is a list of such arrays, an optional that is absent is None.  `dims` holds the size
    of every symbol of the inputs; `notes` what the user should know: sizes that were assumed and
    inputs that were drawn at random.
    """

    arrays: dict[str, Any]
    dims: dict[str, int]
    notes: list[Note] = field(default_factory=list)


def parse_spec(text: str) -> tuple[str, str]:
    """``NAME=SPEC`` of the command line; UsageError unless both sides are there."""
    name, equals, spec = text.partition("=")
    if not equals or not name or not spec:
        raise UsageError(f'"{text}" is not NAME=VALUE', hint=f"VALUE is one of {_FORMS}")
    return name, spec


def parse_dim(text: str) -> tuple[str, int]:
    """``N=4`` of the command line; UsageError unless it is a name and a size."""
    name, _, size = text.rpartition("=")
    if not name or not (size.isascii() and size.isdigit()):
        raise UsageError(f'"{text}" is not NAME=SIZE', hint="for example --dim N=4")
    return name, int(size)


def bind(
    graph: Graph,
    specs: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    *,
    folder: Path | None = None,
) -> Bound:
    """Bind every input of `graph`.

    `specs` maps an input's name (``x`` or ``%x``) to an array, a Python scalar or nested list
    (converted to the input's dtype), or a string: FILE.npy, FILE.npz:KEY, relative to `folder`,
    or zeros, ones, normal, uniform, arange.  A sequence is a list of those, or FILE.npz with all
    that it holds; an optional may be None.  `dims` gives symbolic sizes.

    Raises UsageError for a name that is no input, a dtype, rank or size that does not fit, a spec
    that is none, or a seed below 0; LoadError for a file that cannot be read.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UsageError(f"the seed cannot be {seed!r}", hint="a seed is an integer from 0 on")
    inputs = {value.name: value for value in graph.inputs}
    named = {_input_name(name, inputs, graph): data for name, data in (specs or {}).items()}
    given = {
        name: _given(inputs[name], data, folder)
        for name, data in named.items()
        if not (isinstance(data, str) and data in GENERATED)
    }
    sizes = _Sizes(graph, dims or {})
    for name, array in given.items():
        sizes.match(inputs[name], array)
    notes: list[Note] = []
    arrays = {}
    for name, value in inputs.items():
        if name in given:
            arrays[name] = _frozen(given[name])
        else:
            arrays[name] = _frozen(_generated(value, named.get(name), sizes, seed, notes))
    return Bound(arrays, sizes.known, notes)


class _Sizes:
    """Sizes of symbols: from given arrays, then from the user, else 1."""

    def __init__(self, graph: Graph, dims: Mapping[str, int]) -> None:
        symbols = {dim for value in graph.inputs for dim in _dims(value) if isinstance(dim, str)}
        for name, size in dims.items():
            if name not in symbols:
                raise UsageError(
                    f'no input of @{graph.name} has the size "{name}"', hint=choice(name, symbols)
                )
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise UsageError(f"the size {name} cannot be {size!r}", hint="a size is an integer from 0 on")
        self.known = dict(dims)
        self._from = dict.fromkeys(dims, "the size that was given for it")

    def match(self, value: Value, data: Any) -> None:
        """Check an array against its input's type, and learn the sizes of symbols."""
        if isinstance(value.type, SequenceType):
            for item in data:
                # Elements may differ in size: a symbol inside a sequence says nothing of the others.
                _Sizes(Graph(""), {}).match(Value(value.name, value.type.element), item)
        elif isinstance(value.type, OptionalType):
            if data is not None:
                self.match(Value(value.name, value.type.element), data)
        elif value.type is not None and value.type.shape is not None:
            self._match_tensor(value, value.type.shape, data)

    def _match_tensor(self, value: Value, shape: tuple[Dim, ...], array: Array) -> None:
        if len(shape) != array.ndim:
            raise _misfit(value, array, f"it needs {len(shape)} axes, not {array.ndim}")
        for axis, (dim, size) in enumerate(zip(shape, array.shape, strict=True)):
            if isinstance(dim, int) and dim != size:
                raise _misfit(value, array, f"axis {axis} must have size {dim}, not {size}")
            if isinstance(dim, str):
                if self.known.setdefault(dim, size) != size:
                    fact = f"axis {axis} is {dim}={size}, but {dim}={self.known[dim]} in {self._from[dim]}"
                    raise _misfit(value, array, fact)
                self._from.setdefault(dim, f"%{value.name}")

    def shape(self, value: Value, notes: list[Note]) -> tuple[int, ...]:
        """The shape of an input that is made here; sizes that nobody said are 1, with a note."""
        sizes = []
        for axis, dim in enumerate(_dims(value)):
            if dim is None:
                fact = f"axis {axis} of input %{value.name} {value.type} has an unknown size, 1 is taken"
                notes.append(Note(fact, ("input", value.name)))
            elif isinstance(dim, str) and dim not in self.known:
                fact = f"size {dim} of input %{value.name} {value.type} is not given, 1 is taken"
                notes.append(Note(fact, ("dim", dim)))
                self.known[dim] = 1
            sizes.append(1 if dim is None else dim if isinstance(dim, int) else self.known[dim])
        return tuple(sizes)


def _dims(value: Value) -> tuple[Dim, ...]:
    """The sizes that the type of a tensor says."""
    known = tensor_only(value.type)
    return known.shape or () if known is not None else ()


def _input_name(name: str, inputs: Mapping[str, Value], graph: Graph) -> str:
    for candidate in (name, name.removeprefix("%")):
        if candidate in inputs:
            return candidate
    raise UsageError(
        f'@{graph.name} has no input "{name}"',
        operands=[_title(value) for value in inputs.values()],
        hint=choice(name.removeprefix("%"), inputs),
    )


def _title(value: Value) -> str:
    return f"%{value.name}: {value.type}" if value.type else f"%{value.name}"


def _misfit(value: Value, array: Array, fact: str, hint: str | None = None) -> UsageError:
    got = TensorType(_name_of(array, value), array.shape)
    return UsageError(
        f"input %{value.name} does not fit: {fact}",
        operands=[f"{_title(value)} (the graph)", f"{got} (given)"],
        hint=hint,
    )


def _name_of(array: Array, value: Value) -> str:
    try:
        return dtypes.name_of(array.dtype)
    except KeyError:
        raise UsageError(
            f"input %{value.name} cannot be an array of {array.dtype}",
            hint=f"the graph has {value.type}" if value.type else "give a plain numeric array",
        ) from None


def _given(value: Value, data: Any, folder: Path | None) -> Any:
    """The array that the user gives for an input, of the input's dtype; a list of them for a sequence."""
    if isinstance(value.type, OptionalType):
        return None if data is None else _given(Value(value.name, value.type.element), data, folder)
    if isinstance(value.type, SequenceType):
        return _sequence(value, value.type, data, folder)
    if isinstance(data, str):
        return _fitting(value, _viewed(value, _read(value, data, folder)), "convert it before numpy.save")
    if isinstance(data, (bool, int, float, complex, list, tuple)):
        return _converted(value, data)
    try:
        array = np.asarray(data)
    except Exception as error:  # noqa: BLE001  # __array__ of a foreign class may raise anything.
        raise UsageError(f"input %{value.name} cannot be made an array: {error}") from error
    return _fitting(value, array, "convert it")


def _sequence(value: Value, type_: SequenceType, data: Any, folder: Path | None) -> list[Any]:
    if isinstance(data, str) and data.lower().endswith(".npz"):
        data = load_archive(_path(data, folder))
    if not isinstance(data, (list, tuple)):
        raise UsageError(
            f"input %{value.name} {type_} needs a list of arrays", hint="FILE.npz gives all that it holds"
        )
    return [
        _given(Value(f"{value.name}[{index}]", type_.element), item, folder)
        for index, item in enumerate(data)
    ]


def _fitting(value: Value, array: Array, what: str) -> Array:
    name = _name_of(array, value)
    if name == "str":
        array = _strings(value, array)
    known = tensor_only(value.type)
    if known is None or name == known.dtype:
        return array
    wanted = dtypes.NUMPY[known.dtype]
    # NumPy knows the names of ml_dtypes only where that is imported.
    target = f"ml_dtypes.{wanted.name}" if wanted.isbuiltin == 2 else f'"{wanted.name}"'
    raise _misfit(value, array, f"it needs {known.dtype}, not {name}", f"{what}: x.astype({target})")


def _strings(value: Value, array: Array) -> Array:
    """Text of any width as an array of str objects."""
    strings = array.astype(object)
    flat = [
        item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else item for item in strings.flat
    ]
    for item in flat:
        if not isinstance(item, str):
            raise UsageError(f"input %{value.name} holds a {type(item).__name__}, which no tensor can hold")
    out = np.empty(len(flat), object)
    out[:] = flat
    return out.reshape(array.shape)


def _converted(value: Value, data: Any) -> Array:
    """A Python scalar or nested list in the input's dtype; UsageError if it would not be the same."""
    try:
        plain = np.asarray(data)
    except ValueError as error:
        raise UsageError(f"input %{value.name} is a ragged list: {error}") from error
    if plain.dtype.kind in "OUS":
        plain = np.asarray(data, object)
    known = tensor_only(value.type)
    if known is None:
        return plain
    wanted = known.dtype
    if wanted == "str" or plain.dtype.kind == "O":
        return _fitting(value, plain, "convert it")
    if plain.size == 0:
        return plain.astype(dtypes.NUMPY[wanted])
    if plain.dtype.kind == "c" and wanted not in dtypes.COMPLEX:
        raise _misfit(value, plain, f"it needs {wanted}, not complex numbers")
    with np.errstate(all="ignore"):
        array = plain.astype(dtypes.NUMPY[wanted])
        if wanted in dtypes.FLOATS | dtypes.COMPLEX:
            kept = np.array_equal(np.isfinite(array), np.isfinite(plain))
        else:
            kept = np.array_equal(array.astype(plain.dtype), plain)
    if not kept:
        raise UsageError(
            f"input %{value.name} {value.type} cannot hold {data!r}", hint=f"give {wanted} values"
        )
    return array


def _viewed(value: Value, array: Array) -> Array:
    """bf16 and its kin come back from .npy as raw bytes: their dtype is the graph's word."""
    known = tensor_only(value.type)
    if array.dtype.type is not np.void or array.dtype.names or known is None:
        return array
    wanted = dtypes.NUMPY[known.dtype]
    from_extension = wanted.isbuiltin == 2
    return array.view(wanted) if from_extension and wanted.itemsize == array.dtype.itemsize else array


def _read(value: Value, spec: str, folder: Path | None) -> Array:
    lower = spec.lower()
    if ".npz:" in lower:
        cut = lower.rindex(".npz:") + len(".npz")
        return load_from_archive(_path(spec[:cut], folder), spec[cut + 1 :])
    if lower.endswith(".npz"):
        return load_from_archive(_path(spec, folder), None)
    if lower.endswith(".npy"):
        return load_array(_path(spec, folder))
    near = difflib.get_close_matches(spec, GENERATED, n=1)
    raise UsageError(
        f'input %{value.name} cannot be "{spec}"',
        hint=f"did you mean {near[0]}?" if near else f"give one of {_FORMS}",
    )


def _path(name: str, folder: Path | None) -> Path:
    return folder / name if folder else Path(name)


def _generated(value: Value, kind: str | None, sizes: _Sizes, seed: int, notes: list[Note]) -> Array | None:
    """Zeros, ones and so on, or, where nothing is asked for, random data with a note."""
    if isinstance(value.type, OptionalType) and kind is None:
        notes.append(Note(f"input %{value.name} {value.type} is absent", ("input", value.name)))
        return None
    known = tensor_only(value.type)
    if known is None or known.shape is None:
        raise UsageError(
            f"input %{value.name} has no known type, so it cannot be made up",
            hint=f"give it: --input {value.name}=FILE.npy",
        )
    type_ = TensorType(known.dtype, sizes.shape(value, notes))
    if kind is None:
        fact = f"input %{value.name} {type_} drawn at random from seed {seed}"
        notes.append(Note(fact, ("input", value.name)))
    return generate(value.name, type_, kind, seed)


def _frozen(array: Any) -> Any:
    """C-contiguous, native byte order, read-only; a view where the user's array is so already."""
    if array is None:
        return None
    if isinstance(array, list):
        return list(map(_frozen, array))
    native = array.astype(array.dtype.newbyteorder("="), copy=False) if array.dtype.isbuiltin != 2 else array
    view = np.asarray(native, order="C").view()
    view.flags.writeable = False
    return view
