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
from nncdbg.engine.graph import TensorType
from nncdbg.engine.ops.constant import sizes_of
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.influence import NOTHING, Content
from nncdbg.engine.ops.types import Attributes, Types

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
