"""Functions for shapes and types, and functions that make tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nncdbg import dtypes
from nncdbg.expression.operators import (
    Function,
    OperandError,
    check_room,
    integer,
    is_text,
    number,
    type_text,
)
from nncdbg.expression.reductions import array_of, axes_of
from nncdbg.ir.records import Array

_LONG_NAMES = {
    "bool_": "bool",
    "half": "f16",
    "float": "f32",
    "double": "f64",
    "long": "i64",
    "int": "i64",
    "bfloat16": "bf16",
    "complex64": "c64",
    "complex128": "c128",
    **{f"float{bits}": f"f{bits}" for bits in (16, 32, 64)},
    **{f"{kind}int{bits}": f"{kind or 'i'}{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)},
}
"""NumPy's and PyTorch's type names to those of program text."""


def dtype_name(word: str) -> str | None:
    """Return the type name of a word: `f16` for `f16`, `float16` and `half`; None if it is not a type."""
    name = _LONG_NAMES.get(word, word)
    return name if name in dtypes.NUMPY and name != "str" else None


def _dtype_of(text: Any) -> np.dtype[Any]:
    name = dtype_name(text) if isinstance(text, str) else None
    if name is None:
        raise OperandError(
            f"{text!r} is not an element type", 'write a type such as "f32", "float16" or np.int64'
        )
    return dtypes.NUMPY[name]


def _tensor(x: Any) -> Array:
    """Return `x` as an array of unchanged type."""
    return np.asarray(x if is_text(x) or isinstance(x, np.ndarray) else number(x))


def _sizes(shape: Any) -> tuple[int, ...]:
    items = shape if isinstance(shape, tuple) or np.ndim(shape) == 1 else (shape,)
    return tuple(integer(item, "a size") for item in items)


# -- facts -----------------------------------------------------------------------------------------


def _size(x: Any, axis: Any = None) -> int:
    array = _tensor(x)
    along = axes_of(axis, array.ndim)
    return array.size if along is None else math.prod(array.shape[one] for one in along)


def _nbytes(x: Any) -> int:
    array = _tensor(x)
    if is_text(x):
        raise OperandError("strings have no fixed number of bytes")
    return array.nbytes


def _len(x: Any) -> int:
    if isinstance(x, str | tuple | list):
        return len(x)
    array = _tensor(x)
    if array.ndim == 0:
        raise OperandError(f"{type_text(x)} has no length", "a scalar has one element: .size")
    return len(array)


def _item(x: Any) -> Any:
    array = _tensor(x)
    if array.size != 1:
        raise OperandError(
            f"{type_text(x)} has {array.size} elements, not one", "choose one by its index: %h[0, 2]"
        )
    return array.reshape(-1)[0] if is_text(x) else array_of(array).reshape(-1)[0].item()


# -- other shapes ----------------------------------------------------------------------------------


def _reshape(x: Any, shape: Any) -> Array:
    array, sizes = _tensor(x), _sizes(shape)
    if any(size < -1 for size in sizes) or sizes.count(-1) > 1:
        raise OperandError("a size must be 0 or more; one size may be -1")
    try:
        return array.reshape(sizes)
    except ValueError:
        raise OperandError(
            f"{array.size} elements do not fit the shape {sizes}", f"x has shape {array.shape}"
        ) from None


def _transpose(x: Any, axes: Any = None) -> Array:
    array = _tensor(x)
    order = axes_of(axes, array.ndim)
    if order is not None and len(order) != array.ndim:
        hint = f"use {array.ndim} axes, or swap two axes: swapaxes(x, 0, 1)"
        raise OperandError(f"expected {array.ndim} axes, got {len(order)}", hint)
    return array.transpose(order)


def _squeeze(x: Any, axis: Any = None) -> Array:
    array = _tensor(x)
    return np.squeeze(array, axes_of(axis, array.ndim))


def _flip(x: Any, axis: Any = None) -> Array:
    array = _tensor(x)
    return np.flip(array, axes_of(axis, array.ndim))


def _astype(x: Any, dtype: Any) -> Any:
    wanted = _dtype_of(dtype)
    # bf16 and similar types convert directly; `array_of` would widen them first.
    array = _tensor(x)
    if is_text(x):
        raise OperandError("cannot convert strings to numbers")
    return array.astype(wanted)


# -- new tensors -----------------------------------------------------------------------------------


def _new(shape: Any, dtype: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    sizes, type_ = _sizes(shape), _dtype_of(dtype)
    if any(size < 0 for size in sizes):
        raise OperandError("a size must be 0 or more")
    check_room(sizes, max(1, type_.itemsize), ())
    return sizes, type_


def _full(shape: Any, value: Any, dtype: Any = None) -> Array:
    number_ = array_of(value)
    if number_.ndim:
        raise OperandError(f"the value must be a scalar, not {type_text(value)}")
    natural = "f32" if isinstance(value, float) else dtypes.name_of(number_.dtype)
    sizes, type_ = _new(shape, natural if dtype is None else dtype)
    return np.full(sizes, number_, type_)


def _arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Array:
    first, last = (0, start) if stop is None else (start, stop)
    bounds = [array_of(each) for each in (first, last, step)]
    if any(each.ndim or not np.isfinite(each) for each in bounds) or not bounds[2]:
        raise OperandError("arange needs finite numbers and a nonzero step")
    numbers = [each.item() for each in bounds]
    integers = all(isinstance(each, int) for each in numbers)
    count = math.ceil((float(numbers[1]) - float(numbers[0])) / float(numbers[2]))
    type_ = _dtype_of(dtype) if dtype is not None else np.dtype(np.int64 if integers else np.float32)
    check_room((max(0, count),), 8, ())
    return np.arange(*numbers).astype(type_)


SHAPES: dict[str, Function] = {
    "shape": Function.of(lambda x: _tensor(x).shape, "the sizes, as a tuple"),
    "dtype": Function.of(lambda x: dtypes.name_of(_tensor(x).dtype), 'the element type as text: "f32"'),
    "size": Function.of(_size, "the number of elements, in total or along an axis"),
    "ndim": Function.of(lambda x: _tensor(x).ndim, "the number of axes"),
    "nbytes": Function.of(_nbytes, "the size of the elements in bytes"),
    "len": Function.of(_len, "the size of the first axis"),
    "item": Function.of(_item, "the only element of a tensor, as a number"),
    "T": Function.of(lambda x: _tensor(x).T, "the tensor with its axes reversed"),
    "reshape": Function.of(_reshape, "the tensor in another shape; a size of -1 is inferred", spread="shape"),
    "flatten": Function.of(lambda x: _tensor(x).reshape(-1), "the elements as a tensor of one axis"),
    "transpose": Function.of(
        _transpose,
        "x with permuted axes; reversed by default",
        spread="axes",
        torch="PyTorch's transpose exchanges two axes: write swapaxes(x, 0, 1)",
    ),
    "swapaxes": Function.of(
        lambda x, a, b: np.swapaxes(_tensor(x), integer(a, "an axis"), integer(b, "an axis")),
        "x with two axes exchanged",
    ),
    "squeeze": Function.of(_squeeze, "x without its axes of size 1, or without one of them"),
    "unsqueeze": Function.of(
        lambda x, axis: np.expand_dims(_tensor(x), integer(axis, "an axis")),
        "the tensor with a new axis of size 1",
    ),
    "flip": Function.of(_flip, "the elements in reverse order along the axes"),
    "astype": Function.of(_astype, 'the tensor converted to another type: %h.astype("f16")'),
    "zeros": Function.of(
        lambda shape, dtype="f32": np.zeros(*_new(shape, dtype)),
        "a tensor of zeros (default: f32)",
        spread="shape",
    ),
    "ones": Function.of(
        lambda shape, dtype="f32": np.ones(*_new(shape, dtype)),
        "a tensor of ones (default: f32)",
        spread="shape",
    ),
    "full": Function.of(_full, "a tensor filled with one value"),
    "arange": Function.of(_arange, "the numbers from start (default: 0) to stop, excluding stop"),
}
