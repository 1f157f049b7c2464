"""Ops that read or write at the positions in an index tensor: Gather, Scatter and related ops.

A negative index counts from the end.  NumPy raises IndexError for one out of range.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nncdbg.engine.errors import GraphError, RunError
from nncdbg.engine.ops import contracts
from nncdbg.engine.ops import gradient_indices as gradients
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.influence import MOVED, RESIZED, Content
from nncdbg.engine.ops.influence_products import (
    GATHERED,
    GATHERED_ELEMENTS,
    GATHERED_TUPLES,
    ONE_HOT,
    SCATTERED,
)
from nncdbg.engine.ops.types import (
    Attributes,
    Shape,
    Types,
    at,
    fixed,
    normal_axis,
    same_as,
    shape_at,
    shaped,
    typed,
)
from nncdbg.ir.records import Dim

_COMBINE = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
"""ONNX's `reduction` to the ufunc with the `at` method that implements it."""


def _gather_shape(attributes: Attributes, types: Types) -> Shape | None:
    data, indices = shape_at(types, 0), shape_at(types, 1)
    if data is None or indices is None:
        return None
    axis = normal_axis(attributes["axis"], len(data))
    return data[:axis] + indices + data[axis + 1 :]


@op(
    "Gather",
    since=1,
    infer=shaped(_gather_shape),
    vjp=gradients.moved("Gather"),
    integers=valid.indices(1),
    influence=GATHERED,
)
def gather(xp: Any, x: Any, indices: Any, *, axis: int) -> Any:
    """The slices of `x` along `axis` at `indices`; the axes of `indices` replace it.  ONNX Gather since 1."""
    return xp.asarray(xp.take(x, indices, axis=axis))


@op(
    "GatherElements",
    since=11,
    infer=shaped(lambda attributes, types: shape_at(types, 1)),
    vjp=gradients.moved("GatherElements"),
    integers=valid.indices(1),
    influence=GATHERED_ELEMENTS,
)
def gather_elements(xp: Any, x: Any, indices: Any, *, axis: int) -> Any:
    """out[i][j] = x[index[i][j]][j] for axis 0, and so on.  ONNX GatherElements since 11."""
    axis = normal_axis(axis, x.ndim)
    # The other axes of `indices` may be shorter than those of `x`.
    part = tuple(slice(None) if i == axis else slice(0, n) for i, n in enumerate(indices.shape))
    return xp.take_along_axis(x[part], indices, axis=axis)


def _gather_nd_shape(attributes: Attributes, types: Types) -> Shape | None:
    data, indices, batch = shape_at(types, 0), shape_at(types, 1), attributes.get("batch_dims", 0)
    if data is None or indices is None or not isinstance(indices[-1], int):
        return None
    if batch + indices[-1] > len(data):
        raise GraphError(
            f"batch_dims={batch} plus the index length {indices[-1]} exceeds the {len(data)} axes of data"
        )
    return indices[:-1] + data[batch + indices[-1] :]


@op(
    "GatherND",
    since=11,
    infer=shaped(_gather_nd_shape),
    vjp=gradients.moved("GatherND"),
    integers=valid.index_tuples,
    influence=GATHERED_TUPLES,
)
def gather_nd(xp: Any, x: Any, indices: Any, *, batch_dims: int = 0) -> Any:
    """The slices of `x` at the index tuples in the last axis of `indices`.  ONNX GatherND since 11."""
    where = tuple(xp.moveaxis(indices, -1, 0))
    batches = []
    for axis in range(batch_dims):
        ones = [1] * (indices.ndim - 1)
        ones[axis] = -1
        batches.append(xp.arange(x.shape[axis]).reshape(ones))
    return xp.asarray(x[(*batches, *where)])


def _scattered(xp: Any, x: Any, where: tuple[Any, ...], updates: Any, reduction: str, out: Any) -> Any:
    """Return a copy of `x` with `updates` at `where`; without a reduction, the last duplicate wins."""
    if out is None:
        out = x.copy()
    else:
        out[...] = x
    if reduction == "none":
        out[where] = updates
    else:
        getattr(xp, _COMBINE[reduction]).at(out, where, updates)
    return out


@op(
    "ScatterElements",
    since=11,
    infer=same_as(0),
    accepts_out=True,
    vjp=gradients.scattered,
    contract=contracts.distinct_elements,
    integers=valid.indices(1),
    influence=SCATTERED,
    content=Content.UPDATED,
)
def scatter_elements(
    xp: Any, x: Any, indices: Any, updates: Any, *, axis: int, reduction: str = "none", out: Any = None
) -> Any:
    """`x` with x[index[i][j]][j] = update[i][j] for axis 0, and so on.  ONNX ScatterElements since 11."""
    axis = normal_axis(axis, x.ndim)
    where: list[Any] = []
    for i, size in enumerate(indices.shape):
        ones = [1] * indices.ndim
        ones[i] = -1
        where.append(indices if i == axis else xp.arange(size).reshape(ones))
    return _scattered(xp, x, tuple(where), updates, reduction, out)


op(
    "Scatter",
    since=9,
    contract=contracts.distinct_elements,
    infer=same_as(0),
    accepts_out=True,
    integers=valid.indices(1),
    influence=SCATTERED,
    content=Content.UPDATED,
    vjp=gradients.scattered_before,
)(scatter_elements)


@op(
    "ScatterND",
    since=11,
    infer=same_as(0),
    accepts_out=True,
    vjp=gradients.scattered_tuples,
    contract=contracts.distinct_tuples,
    integers=valid.index_tuples,
    influence=SCATTERED,
    content=Content.UPDATED,
)
def scatter_nd(
    xp: Any, x: Any, indices: Any, updates: Any, *, reduction: str = "none", out: Any = None
) -> Any:
    """`x` with `updates` at the index tuples in the last axis of `indices`.  ONNX ScatterND since 11."""
    return _scattered(xp, x, tuple(xp.moveaxis(indices, -1, 0)), updates, reduction, out)


def _one_hot_types(attributes: Attributes, types: Types) -> Types:
    indices, values = shape_at(types, 0), at(types, 2)
    if indices is None:
        return (typed(values, None),)
    axis = normal_axis(attributes["axis"], len(indices) + 1)
    unknown: Dim = None
    return (typed(values, (*indices[:axis], unknown, *indices[axis:])),)


@op(
    "OneHot",
    since=9,
    infer=_one_hot_types,
    vjp=gradients.moved("OneHot", 2),
    integers=valid.one_hot,
    influence=ONE_HOT,
    content=Content.BOUNDED,
    host_operands=(1,),
)
def one_hot(xp: Any, indices: Any, depth: Any, values: Any, *, axis: int) -> Any:
    """`values[1]` where the position along the new axis is the index, else `values[0]`.

    Indices in [-depth, depth); one outside gives only `values[0]`.  ONNX OneHot since 9.
    """
    size = int(depth.reshape(-1)[0].item())
    if size < 1:
        raise RunError(f"OneHot has the depth {size}", hint="use a depth of 1 or more")
    place = normal_axis(axis, indices.ndim + 1)
    whole = xp.asarray(indices, dtype=np.int64)
    wrapped = xp.where(whole < 0, whole + size, whole)
    ones = [1] * (indices.ndim + 1)
    ones[place] = size
    hot = xp.expand_dims(wrapped, place) == xp.arange(size).reshape(ones)
    return xp.where(hot, values[1], values[0])


def _nonzero_shape(attributes: Attributes, types: Types) -> Shape | None:
    shape = shape_at(types, 0)
    return (None if shape is None else max(1, len(shape)), None)


@op("NonZero", since=9, infer=fixed("i64", _nonzero_shape), influence=RESIZED)
def nonzero(xp: Any, x: Any) -> Any:
    """i64[rank, count]: the indices of nonzero elements; NaN counts as nonzero.  ONNX NonZero since 9.

    A scalar counts as one axis, as in ONNX Runtime.
    """
    return xp.stack(xp.nonzero(x.reshape(1) if x.ndim == 0 else x)).astype(np.int64, copy=False)


def _compress_shape(attributes: Attributes, types: Types) -> Shape | None:
    shape, axis = shape_at(types, 0), attributes["axis"]
    if axis is None:
        return (None,)
    if shape is None:
        return None
    axis = normal_axis(axis, len(shape))
    unknown: Dim = None
    return (*shape[:axis], unknown, *shape[axis + 1 :])


@op(
    "Compress",
    since=9,
    infer=shaped(_compress_shape),
    vjp=gradients.moved("Compress"),
    influence=MOVED,
    contract=contracts.condition,
)
def compress(xp: Any, x: Any, condition: Any, *, axis: int | None) -> Any:
    """The slices of `x` along `axis` (of flattened `x` without `axis`) where `condition` is true.

    ONNX Compress since 9.
    """
    return xp.compress(condition[: x.size if axis is None else x.shape[axis]], x, axis=axis)
