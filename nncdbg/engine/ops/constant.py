"""Ops that make a tensor from attributes or a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import NUMPY, name_of
from nncdbg.engine.errors import GraphError, RunError, UnsupportedOp
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.gradient import nothing
from nncdbg.engine.ops.gradient_shape import ascending
from nncdbg.engine.ops.influence import NOTHING, RESIZED, Content
from nncdbg.engine.ops.precision import is_narrow
from nncdbg.engine.ops.shape import ranked
from nncdbg.engine.ops.types import Attributes, Types, at, element_type, shape_at, typed
from nncdbg.ir.records import TensorType

_FORMS = {
    "value_float": "f32", "value_floats": "f32", "value_int": "i64", "value_ints": "i64",
    "value_string": "str", "value_strings": "str",
}  # fmt: skip


def _constant_array(attributes: Attributes) -> Any:
    """Return the one tensor in the attributes of `Constant`, as a NumPy array."""
    value = attributes.get("value")
    if value is not None:
        return value
    if attributes.get("sparse_value") is not None:
        raise UnsupportedOp("Constant with a sparse_value is not supported", hint="use a dense `value`")
    for key, name in _FORMS.items():
        given = attributes.get(key)
        if given is not None:
            return np.array(given, NUMPY[name])
    raise GraphError("Constant has no value", hint="set `value`, `value_float` or another value attribute")


def _constant_types(attributes: Attributes, types: Types) -> Types:
    array = _constant_array(attributes)
    return (TensorType(name_of(array.dtype), array.shape),)


@op(
    "Constant",
    since=1,
    infer=_constant_types,
    influence=NOTHING,
    content=Content.CONSTANT,
    exact_infinity=True,
    cause="constants.constant",
    legal="constants.infinite",
)
def constant(xp: Any, **attributes: Any) -> Any:
    """The tensor in `value` or one of its short forms.  ONNX Constant since 1."""
    return xp.asarray(_constant_array(attributes))


def _filler(value: Any) -> Any:
    """Return the single element of the attribute `value`; 0.0 in f32 by default."""
    return np.zeros(1, np.float32) if value is None else value


def _constant_of_shape_types(attributes: Attributes, types: Types) -> Types:
    name = name_of(_filler(attributes["value"]).dtype)
    return (TensorType(name, ranked(0)(attributes, types)),)


@op(
    "ConstantOfShape",
    since=9,
    infer=_constant_of_shape_types,
    accepts_out=True,
    measure=lambda shape: sizes_of(shape.tolist()),
    integers=valid.sizes(0),
    influence=RESIZED,
    content=Content.CONSTANT,
    host_operands=(0,),
    exact_infinity=True,
    cause="constants.constant",
    legal="constants.infinite",
)
def constant_of_shape(xp: Any, shape: Any, *, value: Any, out: Any = None) -> Any:
    """A tensor of shape `shape`, filled with `value`.  ONNX ConstantOfShape since 9."""
    filler = _filler(value)
    result = xp.empty(sizes_of(shape.tolist()), filler.dtype) if out is None else out
    result[...] = filler.reshape(-1)[0]
    return result


def _eye_types(attributes: Attributes, types: Types) -> Types:
    given, dtype = at(types, 0), attributes["dtype"]
    if dtype is not None:
        return (TensorType(element_type(dtype), shape_at(types, 0)),)
    return (given,)


@op("EyeLike", since=9, infer=_eye_types, vjp=nothing, influence=NOTHING, content=Content.GENERATED)
def eye_like(xp: Any, x: Any, *, dtype: int | None, k: int) -> Any:
    """Ones on diagonal `k` of a matrix of the shape of `x`, zeros elsewhere.  ONNX EyeLike since 9."""
    return xp.eye(*x.shape, k=k, dtype=x.dtype if dtype is None else NUMPY[element_type(dtype)])


def _range_types(attributes: Attributes, types: Types) -> Types:
    return (typed(at(types, 0), (None,)),)


@op(
    "Range",
    since=11,
    infer=_range_types,
    integers=valid.between(
        {0: valid.Integers(0, 1), 1: valid.Integers(1, valid.FEW), 2: valid.Integers(1, 2)}
    ),
    vjp=ascending,
    influence=RESIZED,
    content=Content.GENERATED,
    host_operands=(0, 1, 2),
)
def range_of(xp: Any, start: Any, limit: Any, delta: Any, *, stash_type: int = 1) -> Any:
    """start + i * delta while that is below `limit` (above, for a negative delta).

    f16 and bf16 are computed in `stash_type`, f32 by default.  ONNX Range since 11.
    """
    working = NUMPY[element_type(stash_type)] if is_narrow(start.dtype) else start.dtype
    first, last, step = (part.reshape(()).astype(working).item() for part in (start, limit, delta))
    if step == 0:
        raise RunError("Range has a delta of 0", hint="use a delta other than 0")
    if not isfinite(first + last + step):
        raise RunError(
            f"Range from {first} to {last} in steps of {step} has no finite size", hint="use finite numbers"
        )
    if working.kind in "iu":
        return xp.arange(first, last, step, dtype=working)
    count = max(0, ceil((last - first) / step))
    indices = xp.arange(count, dtype=working)
    return (indices * working.type(step) + working.type(first)).astype(start.dtype, copy=False)


def sizes_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a `shape` attribute as sizes; raises GraphError for a negative size."""
    if any(size < 0 for size in shape):
        raise GraphError(f"shape {list(shape)} has a negative size")
    return tuple(int(size) for size in shape)
