"""Ops that read or write at the positions in an index tensor, and ops that depend on the order of elements.

A negative index counts from the end.  NumPy raises IndexError for one out of range.  NaN is the greatest
element in TopK and Unique, and the extremum in ArgMax and ArgMin, as in NumPy and PyTorch; ONNX does not
specify these cases.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nncdbg.engine.ops import contracts
from nncdbg.engine.ops import gradient_shape as gradients
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import op, other_version
from nncdbg.engine.ops.influence import (
    BEST,
    GATHERED,
    GATHERED_ELEMENTS,
    GATHERED_TUPLES,
    MOVED,
    ONE_HOT,
    REDUCED_TO_GREATEST,
    REDUCED_TO_LEAST,
    RESIZED,
    SCATTERED,
    Content,
    probed,
)
from nncdbg.engine.ops.precision import is_narrow
from nncdbg.engine.ops.types import (
    Attributes,
    Shape,
    Types,
    at,
    fixed,
    normal_axis,
    reduced_shape,
    same_as,
    shape_at,
    shaped,
    typed,
)
from nncdbg.errors import GraphError, RunError
from nncdbg.ir.records import Dim, TensorType

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


def _arg_shape(attributes: Attributes, types: Types) -> Shape | None:
    return reduced_shape(shape_at(types, 0), (attributes["axis"],), bool(attributes["keepdims"]))


def _arg(xp: Any, find: Any, x: Any, axis: int, keepdims: int, last: int) -> Any:
    axis = normal_axis(axis, x.ndim)
    result = xp.asarray(find(xp.flip(x, axis) if last else x, axis=axis)).astype(np.int64, copy=False)
    if last:
        result = x.shape[axis] - 1 - result
    return xp.expand_dims(result, axis) if keepdims else xp.asarray(result)


@op("ArgMax", since=1, infer=fixed("i64", _arg_shape), influence=REDUCED_TO_GREATEST, content=Content.BOUNDED)
def arg_max(xp: Any, x: Any, *, axis: int, keepdims: int, select_last_index: int = 0) -> Any:
    """The index of the greatest element along `axis`, as i64.  ONNX ArgMax since 1."""
    return _arg(xp, xp.argmax, x, axis, keepdims, select_last_index)


@op("ArgMin", since=1, infer=fixed("i64", _arg_shape), influence=REDUCED_TO_LEAST, content=Content.BOUNDED)
def arg_min(xp: Any, x: Any, *, axis: int, keepdims: int, select_last_index: int = 0) -> Any:
    """The index of the least element along `axis`, as i64.  ONNX ArgMin since 1."""
    return _arg(xp, xp.argmin, x, axis, keepdims, select_last_index)


def _running(xp: Any, function: Any, neutral: int, x: Any, axis: Any, exclusive: int, reverse: int) -> Any:
    along = normal_axis(int(axis.reshape(()).item()), x.ndim)
    working = np.float32 if is_narrow(x.dtype) else x.dtype
    forward = xp.flip(x, along) if reverse else x
    result = function(forward, axis=along, dtype=working).astype(x.dtype, copy=False)
    if exclusive:
        # Shifted by one; `result - x` would turn an infinity into NaN.
        before = (slice(None),) * along
        shifted = xp.full_like(result, neutral)
        shifted[(*before, slice(1, None))] = result[(*before, slice(0, -1))]
        result = shifted
    return xp.flip(result, along) if reverse else result


@op(
    "CumSum",
    since=11,
    infer=same_as(0),
    integers=valid.axes(),
    vjp=gradients.running_sum,
    influence=probed(0),
    host_operands=(1,),
    cause="sums.running_sum",
)
def cumulative_sum(xp: Any, x: Any, axis: Any, *, exclusive: int, reverse: int) -> Any:
    """The running sum along `axis`, f16 and bf16 summed in f32.  ONNX CumSum since 11."""
    return _running(xp, xp.cumsum, 0, x, axis, exclusive, reverse)


@op(
    "CumProd",
    since=26,
    infer=same_as(0),
    integers=valid.axes(),
    vjp=gradients.running_product,
    influence=probed(0),
    cause="sums.running_product",
)
def cumulative_product(xp: Any, x: Any, axis: Any, *, exclusive: int, reverse: int) -> Any:
    """The running product along `axis`, f16 and bf16 in f32.  ONNX CumProd since 26."""
    return _running(xp, xp.cumprod, 1, x, axis, exclusive, reverse)


def _top_types(attributes: Attributes, types: Types) -> Types:
    shape = shape_at(types, 0)
    if shape is not None:
        axis = normal_axis(attributes["axis"], len(shape))
        size: Dim = attributes.get("k")
        shape = (*shape[:axis], size, *shape[axis + 1 :])
    return (typed(at(types, 0), shape), TensorType("i64", shape))


def _order(xp: Any, rows: Any, largest: int) -> Any:
    """Return the indices that sort the last axis; equal elements keep the order of their indices."""
    if not largest:
        return xp.argsort(rows, axis=-1, kind="stable")
    # A stable ascending sort of the reversed rows, read backwards, keeps ties in order.
    order = xp.argsort(xp.flip(rows, -1), axis=-1, kind="stable")
    return rows.shape[-1] - 1 - xp.flip(order, -1)


def _candidates(xp: Any, rows: Any, k: int, largest: int) -> Any:
    """Return the indices of the k extreme elements per row, ascending; None for ties or NaN at the border.

    A partition is linear in the row, a sort is not.
    """
    size = rows.shape[-1]
    if not 0 < k <= size // 8 or rows.dtype.kind not in "fiu":
        return None
    border = size - k if largest else k - 1
    bound = xp.partition(rows, border, axis=-1)[..., border : border + 1]
    chosen = rows >= bound if largest else rows <= bound
    if not bool((xp.count_nonzero(chosen, axis=-1) == k).all()):
        return None
    return xp.nonzero(chosen)[-1].reshape(*rows.shape[:-1], k)


def _top(xp: Any, x: Any, k: int, axis: int, largest: int) -> Any:
    """Return sorted elements and indices; equal elements are in index order, as ONNX requires."""
    axis = normal_axis(axis, x.ndim)
    if not 0 <= k <= x.shape[axis]:
        raise RunError(
            f"TopK needs {k} elements, but the axis has {x.shape[axis]}",
            hint=f"use a k from 0 to {x.shape[axis]}",
        )
    rows = xp.moveaxis(x, axis, -1)
    indices = _candidates(xp, rows, k, largest)
    if indices is None:
        indices = _order(xp, rows, largest)[..., :k]
    else:
        order = _order(xp, xp.take_along_axis(rows, indices, -1), largest)
        indices = xp.take_along_axis(indices, order, -1)
    values = xp.take_along_axis(rows, indices, -1)
    indices = indices.astype(np.int64, copy=False)
    return tuple(xp.ascontiguousarray(xp.moveaxis(part, -1, axis)) for part in (values, indices))


@op(
    "TopK",
    since=1,
    infer=_top_types,
    vjp=gradients.top,
    influence=BEST,
    content=Content.BOUNDED,
    host_operands=(1,),
)
def top_by_attribute(xp: Any, x: Any, *, k: int, axis: int) -> Any:
    """The `k` greatest elements along `axis` and their i64 indices.  ONNX TopK 1."""
    return _top(xp, x, k, axis, 1)


@other_version("TopK", 10, integers=valid.top_count)
def top(xp: Any, x: Any, k: Any, *, axis: int, largest: int = 1, sorted: int = 1) -> Any:
    """The `k` greatest (or least) elements along `axis` and their i64 indices, always sorted.

    ONNX TopK since 10.
    """
    return _top(xp, x, int(k.reshape(()).item()), axis, largest)


def _unique_types(attributes: Attributes, types: Types) -> Types:
    shape, axis = shape_at(types, 0), attributes["axis"]
    kept: Shape | None = (None,)
    if axis is not None and shape is not None:
        axis = normal_axis(axis, len(shape))
        kept = (*shape[:axis], None, *shape[axis + 1 :])
    elif axis is not None:
        kept = None
    return (typed(at(types, 0), kept), *[TensorType("i64", (None,))] * 3)


@op(
    "Unique",
    since=11,
    infer=_unique_types,
    vjp=gradients.unique,
    outputs_count=True,
    influence=RESIZED,
    content=Content.BOUNDED,
)
def unique(xp: Any, x: Any, *, axis: int | None, sorted: int, outputs_count: int) -> Any:
    """Each element (or slice along `axis`) once, with first index, inverse and count, as i64.

    Ascending, or in order of first occurrence without `sorted`.  ONNX Unique since 11.
    """
    found = xp.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    values, first, inverse, counts = found[0], found[1], found[2].reshape(-1), found[3]
    if not sorted:
        order = xp.argsort(first)
        values = xp.take(values, order, axis=0 if axis is None else axis)
        first, counts = first[order], counts[order]
        inverse = xp.argsort(order)[inverse]
    outputs = (values, *(xp.asarray(part).astype(np.int64, copy=False) for part in (first, inverse, counts)))
    return outputs[0] if outputs_count == 1 else outputs[:outputs_count]
