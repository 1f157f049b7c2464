"""What the inputs of a graph are bound to: arrays, files, generated or random data.

Nothing a user gives is converted behind their back: an array of another dtype or shape is an
error with both types.  What is not given is drawn at random, and a note says so.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nncdbg.engine import dtypes
from nncdbg.engine.errors import UsageError
from nncdbg.engine.generated import GENERATED, generate
from nncdbg.engine.graph import Array, Graph, TensorType, Value
from nncdbg.engine.npy import choice, load_array, load_from_archive

_FORMS = "FILE.npy, FILE.npz:KEY, " + ", ".join(GENERATED)


@dataclass(frozen=True, slots=True)
class Bound:
    """One read-only, C-contiguous, native-endian array per graph input, in the graph's order.

    `dims` holds the size of every symbol of the inputs; `notes` what the user should know: sizes
    that were assumed and inputs that were drawn at random.
    """

    arrays: dict[str, Array]
    dims: dict[str, int]
    notes: list[str] = field(default_factory=list)


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
    or zeros, ones, normal, uniform, arange.  `dims` gives symbolic sizes.

    Raises UsageError for a name that is no input, a dtype, rank or size that does not fit, or a
    spec that is none; LoadError for a file that cannot be read.
    """
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
    notes: list[str] = []
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
        symbols = {
            dim
            for value in graph.inputs
            for dim in (value.type.shape if value.type and value.type.shape else ())
            if isinstance(dim, str)
        }
        for name, size in dims.items():
            if name not in symbols:
                raise UsageError(
                    f'no input of @{graph.name} has the size "{name}"', hint=choice(name, symbols)
                )
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise UsageError(f"the size {name} cannot be {size!r}", hint="a size is an integer from 0 on")
        self.known = dict(dims)
        self._from = dict.fromkeys(dims, "the size that was given for it")

    def match(self, value: Value, array: Array) -> None:
        """Check an array against its input's type, and learn the sizes of symbols."""
        shape = value.type.shape if value.type else None
        if shape is None:
            return
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

    def shape(self, value: Value, notes: list[str]) -> tuple[int, ...]:
        """The shape of an input that is made here; sizes that nobody said are 1, with a note."""
        assert value.type is not None
        assert value.type.shape is not None
        sizes = []
        for axis, dim in enumerate(value.type.shape):
            if dim is None:
                notes.append(
                    f"axis {axis} of input %{value.name} {value.type} has an unknown size, 1 is taken"
                    f" (give --input {value.name}=FILE.npy)"
                )
            elif isinstance(dim, str) and dim not in self.known:
                notes.append(
                    f"size {dim} of input %{value.name} {value.type} is not given, 1 is taken"
                    f" (give --dim {dim}=SIZE)"
                )
                self.known[dim] = 1
            sizes.append(1 if dim is None else dim if isinstance(dim, int) else self.known[dim])
        return tuple(sizes)


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


def _given(value: Value, data: Any, folder: Path | None) -> Array:
    """The array that the user gives for an input, of the input's dtype."""
    if isinstance(data, str):
        return _fitting(value, _viewed(value, _read(value, data, folder)), "convert it before numpy.save")
    if isinstance(data, (bool, int, float, complex, list, tuple)):
        return _converted(value, data)
    try:
        array = np.asarray(data)
    except Exception as error:  # noqa: BLE001  # __array__ of a foreign class may raise anything.
        raise UsageError(f"input %{value.name} cannot be made an array: {error}") from error
    return _fitting(value, array, "convert it")


def _fitting(value: Value, array: Array, what: str) -> Array:
    name = _name_of(array, value)
    if name == "str":
        array = _strings(value, array)
    if value.type is None or name == value.type.dtype:
        return array
    wanted = dtypes.NUMPY[value.type.dtype]
    # NumPy knows the names of ml_dtypes only where that is imported.
    target = f"ml_dtypes.{wanted.name}" if wanted.isbuiltin == 2 else f'"{wanted.name}"'
    raise _misfit(value, array, f"it needs {value.type.dtype}, not {name}", f"{what}: x.astype({target})")


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
    if value.type is None:
        return plain
    wanted = value.type.dtype
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
    if array.dtype.type is not np.void or array.dtype.names or value.type is None:
        return array
    wanted = dtypes.NUMPY[value.type.dtype]
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


def _generated(value: Value, kind: str | None, sizes: _Sizes, seed: int, notes: list[str]) -> Array:
    """Zeros, ones and so on, or, where nothing is asked for, random data with a note."""
    if value.type is None or value.type.shape is None:
        raise UsageError(
            f"input %{value.name} has no known type, so it cannot be made up",
            hint=f"give it: --input {value.name}=FILE.npy",
        )
    type_ = TensorType(value.type.dtype, sizes.shape(value, notes))
    if kind is None:
        notes.append(
            f"input %{value.name} {type_} drawn at random from seed {seed}"
            f" (give --input {value.name}=FILE.npy)"
        )
    return generate(value.name, type_, kind, seed)


def _frozen(array: Array) -> Array:
    """C-contiguous, native byte order, read-only; a view where the user's array is so already."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False) if array.dtype.isbuiltin != 2 else array
    view = np.asarray(native, order="C").view()
    view.flags.writeable = False
    return view
