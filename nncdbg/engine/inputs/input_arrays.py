"""Data that a user gives for an input, as an array of the input's type.

Arrays are never converted silently: another dtype or shape is an error that names both types.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nncdbg import dtypes
from nncdbg.engine.inputs.data_specs import FORMS, DataFile, Generated, ImageFile, Plain, data_file, read_spec
from nncdbg.engine.inputs.image_files import read_image
from nncdbg.engine.inputs.npy import load_archive
from nncdbg.errors import InputError, UsageError
from nncdbg.ir.records import (
    Array,
    Dim,
    Map,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Value,
    tensor_only,
)
from nncdbg.text.lexemes import ElementName, name_text


def title(value: Value) -> str:
    return f"%{name_text(value.name)}: {value.type}" if value.type else f"%{name_text(value.name)}"


def misfit(
    value: Value, array: Array, what: Literal["dtype", "shape"], fact: str, hint: str | None = None
) -> InputError:
    got = TensorType(_name_of(array, value), array.shape)
    return InputError(
        f"input %{name_text(value.name)} has the wrong {what}: {fact}",
        operands=[f"{title(value)} (the graph)", f"{got} (given)"],
        hint=hint,
    )


def _name_of(array: Array, value: Value) -> str:
    try:
        return dtypes.name_of(array.dtype)
    except KeyError:
        raise InputError(
            f"input %{name_text(value.name)} cannot be an array of dtype {array.dtype}",
            hint=f"use an array of type {value.type}" if value.type else "use a plain numeric array",
        ) from None


def given_array(value: Value, data: Any, folder: Path | None, notes: list[str]) -> Any:
    """Return the user's array for an input, of the input's dtype; a list of arrays for a sequence.

    `notes` receives a sentence for each image that is converted.
    """
    if isinstance(value.type, OptionalType):
        element = Value(value.name, value.type.element)
        return None if data is None else given_array(element, data, folder, notes)
    if isinstance(data, os.PathLike):
        data = _path_text(value, data)
    if isinstance(value.type, MapType):
        return _map(value, value.type, data)
    if isinstance(value.type, SequenceType):
        return _sequence(value, value.type, data, folder, notes)
    if isinstance(data, str):
        return _from_text(value, data, folder, notes)
    if isinstance(data, (bool, int, float, complex, list, tuple)):
        return _converted(value, data)
    try:
        array = np.asarray(data)
    except Exception as error:  # noqa: BLE001  # __array__ of a foreign class may raise anything.
        raise InputError(
            f"input %{name_text(value.name)} cannot be converted to an array: {error}"
        ) from error
    return _fitting(value, array, "convert it")


def _path_text(value: Value, path: os.PathLike[Any]) -> str:
    text = os.fsdecode(path)
    try:
        known = data_file(text)
    except UsageError as error:
        raise InputError(f"input %{name_text(value.name)}: {error.message}", hint=error.hint) from None
    if known is None:
        raise InputError(
            f"input %{name_text(value.name)}: {text} is not a data file", hint=f"use one of: {FORMS}"
        )
    return text


def _from_text(value: Value, text: str, folder: Path | None, notes: list[str]) -> Array:
    try:
        spec = read_spec(text, folder)
    except UsageError as error:
        raise InputError(f"input %{name_text(value.name)}: {error.message}", hint=error.hint) from None
    match spec:
        case DataFile():
            array = spec.read(lambda header: _check_header(value, header))
            return _fitting(value, _viewed(value, array), _SAVED)
        case ImageFile():
            read = read_image(value.name, tensor_only(value.type), spec)
            notes.append(f"input %{name_text(value.name)}: {read.words}")
            return read.array
        case Plain(data):
            return _converted(value, data)
        case Generated():
            raise InputError(
                f'sequence element %{name_text(value.name)} cannot be "{text}"',
                hint="generate each element with NumPy, or use a file",
            )


def _map(value: Value, type_: MapType, data: Any) -> Map:
    """Return a dict as a map of the element types of the input."""
    if not isinstance(data, dict):
        raise InputError(
            f"input %{name_text(value.name)} {type_} needs a dict",
            hint="pass it from Python: nncdbg.Debugger(program, {name: {key: value}})",
        )
    keys, values = (
        _converted(Value(value.name, TensorType(dtype, (len(data),))), [*items])
        for dtype, items in ((type_.key, data.keys()), (type_.value, data.values()))
    )
    return Map([keys, values])


def _sequence(
    value: Value, type_: SequenceType, data: Any, folder: Path | None, notes: list[str]
) -> list[Any]:
    if isinstance(data, str) and data.lower().endswith(".npz"):
        element = Value(value.name, type_.element)
        path = folder / data if folder else Path(data)
        data = load_archive(path, lambda header: _check_header(element, header))
    if not isinstance(data, (list, tuple)):
        raise InputError(
            f"input %{name_text(value.name)} {type_} needs a list of arrays",
            hint="put all the arrays in FILE.npz",
        )
    return [
        given_array(Value(ElementName(value.name, index), type_.element), item, folder, notes)
        for index, item in enumerate(data)
    ]


_SAVED = "convert the array before numpy.save"


def check_shape(value: Value, shape: tuple[Dim, ...], array: Array) -> None:
    """Raise InputError unless the array has as many axes as `shape`, and its fixed sizes."""
    if len(shape) != array.ndim:
        raise misfit(value, array, "shape", f"it needs {len(shape)} axes, not {array.ndim}")
    for axis, (dim, size) in enumerate(zip(shape, array.shape, strict=True)):
        if isinstance(dim, int) and dim != size:
            raise misfit(value, array, "shape", f"axis {axis} must have size {dim}, not {size}")


def _check_header(value: Value, header: Array) -> None:
    """Raise InputError for a type or shape that the input cannot have."""
    viewed = _viewed(value, header)
    _check_dtype(value, viewed, _SAVED)
    known = tensor_only(value.type)
    if known is not None and known.shape is not None:
        check_shape(value, known.shape, viewed)


def _fitting(value: Value, array: Array, what: str) -> Array:
    if _name_of(array, value) == "str":
        array = _strings(value, array)
    _check_dtype(value, array, what)
    return array


def _check_dtype(value: Value, array: Array, what: str) -> None:
    name = _name_of(array, value)
    known = tensor_only(value.type)
    if known is None or name == known.dtype:
        return
    wanted = dtypes.NUMPY[known.dtype]
    # NumPy resolves the names of ml_dtypes only after that module is imported.
    target = f"ml_dtypes.{wanted.name}" if wanted.isbuiltin == 2 else f'"{wanted.name}"'
    raise misfit(value, array, "dtype", f"it needs {known.dtype}, not {name}", f"{what}: x.astype({target})")


def _strings(value: Value, array: Array) -> Array:
    """Return text of any width as an array of str objects."""
    strings = array.astype(object)
    flat = [
        item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else item for item in strings.flat
    ]
    for item in flat:
        if not isinstance(item, str):
            raise InputError(
                f"input %{name_text(value.name)} must contain only strings, not {type(item).__name__}"
            )
    out = np.empty(len(flat), object)
    out[:] = flat
    return out.reshape(array.shape)


def _converted(value: Value, data: Any) -> Array:
    """Return a Python scalar or nested list in the input's dtype; InputError if values would change."""
    try:
        plain = np.asarray(data)
    except ValueError as error:
        raise InputError(
            f"input %{name_text(value.name)} is {ragged(data)}",
            operands=[f"{title(value)} (the graph)"],
            hint=EQUAL_ROWS,
        ) from error
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
        raise misfit(value, plain, "dtype", f"it needs {wanted}, not complex numbers")
    with np.errstate(all="ignore"):
        array = plain.astype(dtypes.NUMPY[wanted])
        if wanted in dtypes.FLOATS | dtypes.COMPLEX:
            kept = np.array_equal(np.isfinite(array), np.isfinite(plain))
        else:
            kept = np.array_equal(array.astype(plain.dtype), plain)
    if not kept:
        raise InputError(
            f"input %{name_text(value.name)} ({value.type}) cannot represent {data!r}",
            hint=f"use {wanted} values",
        )
    return array


def _viewed(value: Value, array: Array) -> Array:
    """Return raw bytes from a .npy file (bf16 and other `ml_dtypes` types) with the graph's dtype."""
    known = tensor_only(value.type)
    if array.dtype.type is not np.void or array.dtype.names or known is None:
        return array
    wanted = dtypes.NUMPY[known.dtype]
    from_extension = wanted.isbuiltin == 2
    return array.view(wanted) if from_extension and wanted.itemsize == array.dtype.itemsize else array


EQUAL_ROWS = "use rows of equal length"

_DEEPEST = 64
"""The most axes of an array."""

_MOST = 1 << 20
"""The most items that are compared at one depth."""


def ragged(data: Any) -> str:
    """Describe why a nested list is not an array: `a ragged list: [0] has 2 items, [1] has 1`."""
    level: list[tuple[tuple[int, ...], Any]] = [((), data)]
    for _ in range(_DEEPEST):
        (first, item), *others = level
        length = _length(item)
        for path, other in others:
            if (wrong := _length(other)) != length:
                return f"a ragged list: {_item_count(first, length)}, {_item_count(path, wrong)}"
        if not length or len(level) * length > _MOST:
            return "a ragged list"
        level = [((*path, index), each) for path, item in level for index, each in enumerate(item)]
    return f"a list nested more than {_DEEPEST} levels deep"


def _length(item: Any) -> int | None:
    """Return the length of a list or of an array's first axis; None for a scalar."""
    return len(item) if isinstance(item, (list, tuple)) or np.ndim(item) else None


def _item_count(path: tuple[int, ...], length: int | None) -> str:
    items = "is a single item" if length is None else f"has {length} item{'s' * (length != 1)}"
    return f"{list(path)} {items}"
