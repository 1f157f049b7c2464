"""Values as text that can be pasted into Python: `np.array([0.5, np.nan], dtype=np.float32)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nncdbg.ir.records import Array
from nncdbg.presentation.elements import type_of

MAX_ELEMENTS = 10_000
"""Elements of a tensor that is copied whole."""

_TYPES = {"bool": "np.bool_", "object": "object"}


def python_text(text: str, content: Any) -> str:
    """Return a value as exact Python text; `text` is its expression.

    For a tensor of more than `MAX_ELEMENTS` elements, its edges, and how to get it whole.
    """
    if isinstance(content, np.ndarray):
        return _array(text, content)
    if isinstance(content, np.generic):
        return _speller(np.asarray(content))(content)
    if isinstance(content, list):
        return f"[{', '.join(python_text(f'{text}[{i}]', item) for i, item in enumerate(content))}]"
    return _real(content) if isinstance(content, float) else repr(content)


def _array(text: str, array: Array) -> str:
    if array.size > MAX_ELEMENTS:
        edges = np.array2string(array, separator=", ", threshold=0)
        return (
            f"# {text}: {type_of(array)}, {array.size} elements, too many to copy; "
            f"`save {text} FILE.npy` writes them\n{edges}"
        )
    dtype = _dtype(array.dtype)
    if array.size == 0:
        return f"np.empty({array.shape}, dtype={dtype})"
    return f"np.array({_nested(array, _speller(array))}, dtype={dtype})"


def _dtype(dtype: np.dtype[Any]) -> str:
    if dtype.isbuiltin != 1:
        return f"ml_dtypes.{dtype.name}"
    return _TYPES.get(dtype.name, f"np.{dtype.name}")


def _nested(array: Array, spell: Callable[[Any], str]) -> str:
    if array.ndim == 0:
        return spell(array[()])
    # With `...` the selected part stays an array, of strings too.
    return f"[{', '.join(_nested(array[position, ...], spell) for position in range(len(array)))}]"


def _speller(array: Array) -> Callable[[Any], str]:
    """Return the formatter for one element of the array."""
    kind = array.dtype.kind
    if kind == "c":
        return lambda each: f"complex({_real(each.real)}, {_real(each.imag)})"
    if kind in "OUST":
        return lambda each: repr(str(each))
    if kind in "biu":
        return str
    return _real


def _real(number: Any) -> str:
    """The shortest digits that restore the number in its own type."""
    text = str(number)
    bare = text.lstrip("+-")
    return text.replace(bare, f"np.{bare}") if bare in ("nan", "inf") else text
