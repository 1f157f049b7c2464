"""Ops of the nncdbg domain about memory: uninitialized tensors.

`nncdbg.Empty` represents an allocation; the machine recognizes it by name and treats its output as
uninitialized unless `init` initializes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import FLOATS, NUMPY
from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops.constant import sizes_of
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.influence import NOTHING, Content
from nncdbg.engine.ops.types import Attributes, Types
from nncdbg.ir.records import TensorType
from nncdbg.stats.inspection import fill

_INITS = ("nan", "none", "zeros", "ones")


def _empty_types(attributes: Attributes, types: Types) -> Types:
    dtype, init = attributes["dtype"], attributes["init"]
    if dtype not in NUMPY:
        raise GraphError(
            f"{dtype!r} is not an element type", hint="use a type such as f32, i64 or bool", attribute="dtype"
        )
    if init not in _INITS:
        raise GraphError(
            f"init cannot be {init!r}", hint=f"use one of: {', '.join(_INITS)}", attribute="init"
        )
    return (TensorType(dtype, sizes_of(attributes["shape"])),)


def unwritten(xp: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Return uninitialized memory as seen by a program: NaN for floats, 0x7F bytes for other types."""
    element = NUMPY[dtype]
    if dtype in FLOATS or dtype in ("c64", "c128"):
        return xp.full(shape, np.nan, dtype=element)
    if dtype == "str":
        return np.full(shape, "", element)
    if dtype == "bool":
        return xp.ones(shape, element)
    return xp.full((*shape, element.itemsize), 0x7F, dtype=np.uint8).view(element).reshape(shape)


@op(
    "nncdbg.Empty",
    infer=_empty_types,
    influence=NOTHING,
    content=Content.GENERATED,
    cause="constants.unwritten",
)
def empty(xp: Any, *, shape: Sequence[int], dtype: str = "f32", init: str = "nan") -> Any:
    """An uninitialized tensor of shape `shape` and element type `dtype`.

    `init` is `nan` or `none` (uninitialized: reading it is an error), `zeros` or `ones` (initialized).
    """
    _empty_types({"shape": shape, "dtype": dtype, "init": init}, ())
    if init in ("zeros", "ones"):
        return xp.full(sizes_of(shape), NUMPY[dtype].type(init == "ones"), dtype=NUMPY[dtype])
    return unwritten(xp, sizes_of(shape), dtype)


def _remains_types(attributes: Attributes, types: Types) -> Types:
    dtype, sizes = attributes["dtype"], sizes_of(attributes["shape"])
    if dtype not in NUMPY or dtype == "str":
        raise GraphError(
            f"{dtype!r} is not an element type with a fixed size",
            hint="use a type such as f32",
            attribute="dtype",
        )
    rows = [tuple(attributes[name] or ()) for name in ("starts", "offsets", "sizes")]
    if any(len(row) != len(types) or min(row, default=0) < 0 for row in rows):
        raise GraphError(
            f"starts, offsets and sizes need one number, 0 or more, for each of the {len(types)} operands",
            hint="write the first byte in the result, the first byte in the operand, and the number of bytes",
            attribute="starts",
        )
    return (TensorType(dtype, sizes),)


@op(
    "nncdbg.Remains",
    infer=_remains_types,
    cause="constants.remains",
    no_gradient="it shows what memory holds in a run with a race",
)
def remains(
    xp: Any,
    *values: Any,
    shape: Sequence[int],
    dtype: str = "f32",
    starts: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
) -> Any:
    """A tensor of shape `shape` and element type `dtype` as memory holds it: bytes of other values.

    Operand i gives `sizes[i]` of its bytes, from byte `offsets[i]`, to the bytes from `starts[i]` of the
    result. The other bytes are uninitialized: NaN for floats, large numbers for integers.
    """
    element = NUMPY[dtype]
    held = np.empty(sizes_of(shape), element)
    raw = held.reshape(-1).view(np.uint8)
    fill(held)
    for value, start, offset, size in zip(values, starts or (), offsets or (), sizes or (), strict=True):
        given = value.get() if hasattr(value, "get") else np.asarray(value)
        given = np.ascontiguousarray(given).reshape(-1).view(np.uint8)[offset : offset + size]
        part = raw[start : start + given.size]
        part[...] = given[: part.size]
    if dtype == "bool":
        held = raw.reshape(held.shape) != 0
    return xp.asarray(held)
