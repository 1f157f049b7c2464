"""Pools over windows and over whole planes, and local response normalization.

A maximum or a sum over a window is computed one axis at a time: k + k steps over slices instead of k * k.
Maxima keep NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

import numpy as np

from nncdbg.dtypes import NUMPY
from nncdbg.engine.ops import remarks
from nncdbg.engine.ops import windows as gradients
from nncdbg.engine.ops.convolution import padding_lines, windows_line
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.formula import sizes_at, type_at, wide_formula, wide_name
from nncdbg.engine.ops.influence import Content, Infinities, probed
from nncdbg.engine.ops.precision import mean_over, settled, widened
from nncdbg.engine.ops.remarks import Squares
from nncdbg.engine.ops.scratch import scratch
from nncdbg.engine.ops.types import (
    Attributes,
    Types,
    at,
    at_least_one,
    one_per_plane,
    same_as,
    shape_at,
    shaped,
    typed,
)
from nncdbg.engine.ops.windows import WindowAxis, axes_of, padded, window_view
from nncdbg.errors import GraphError
from nncdbg.ir.records import TensorType


def pool_shape(attributes: Attributes, inputs: Types) -> tuple[Any, ...] | None:
    """[N, C, *windows] from x [N, C, *sizes]."""
    x, kernel = shape_at(inputs, 0), attributes["kernel_shape"]
    if x is None:
        return None
    if len(x) != len(kernel) + 2:
        raise GraphError(f"input has {len(x)} axes, but a {len(kernel)}-D kernel needs {len(kernel) + 2}")
    axes = axes_of(attributes, kernel)
    return (*x[:2], *(axis.output(size) for axis, size in zip(axes, x[2:], strict=True)))


pool_types = shaped(pool_shape)


def max_pool_types(attributes: Attributes, inputs: Types) -> Types:
    """The maxima, and their indices in i64."""
    shape = pool_shape(attributes, inputs)
    return [typed(at(inputs, 0), shape), TensorType("i64", shape)]


def window_numbers(axes: Sequence[WindowAxis], sizes: Sequence[int]) -> list[int]:
    """Return the number of windows along each spatial axis."""
    return [axis.count(size) for axis, size in zip(axes, sizes, strict=True)]


def paddings(axes: Sequence[WindowAxis], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the padding of each spatial axis."""
    return [axis.padding(size) for axis, size in zip(axes, sizes, strict=True)]


def folded(
    xp: ModuleType, x: Any, axes: Sequence[WindowAxis], counts: Sequence[int], ufunc: str, out: Any = None
) -> Any:
    """Return `ufunc` (maximum, add) over the windows of padded `x`, computed one axis at a time.

    The result is a new array, or `out`, which has the dtype of `x`.
    """
    combine, lead = getattr(xp, ufunc), x.ndim - len(axes)
    last = max((place for place, axis in enumerate(axes) if axis.kernel > 1), default=None)
    for place, (axis, windows) in enumerate(zip(axes, counts, strict=True)):
        before = (slice(None),) * (lead + place)
        result = x[(*before, axis.tap(0, windows))]
        if axis.kernel > 1:
            # Axes after the last one that combines are only sliced, so `out` does not have its size yet.
            final = place == last == len(axes) - 1
            target = out if final else scratch(xp, f"folded {place}", result.shape, x.dtype)
            for index in range(1, axis.kernel):
                target = combine(result, x[(*before, axis.tap(index, windows))], out=target)
                result = target
        x = result
    if out is None:
        return xp.array(x, order="C") if last is None or last < len(axes) - 1 else x
    if x is not out:
        xp.copyto(out, x)
    return out


def lowest(dtype: Any) -> Any:
    """Return a value that no maximum selects over an element of the input."""
    return -math.inf if dtype.kind not in "iu" else np.iinfo(dtype).min


def max_pool_formula(attributes: Attributes, inputs: Types) -> str:
    """Windows and their maximum; without the indices."""
    given = type_at(inputs, 0)
    axes = axes_of(attributes, attributes["kernel_shape"])
    value = "-inf" if NUMPY[given.dtype].kind not in "iu" else str(np.iinfo(NUMPY[given.dtype]).min)
    lines = [
        *padding_lines(paddings(axes, sizes_at(inputs, 0)[2:]), value),
        windows_line(axes),
        f"%y.wide = ReduceMax(%windows, {list(range(2 + len(axes), 2 + 2 * len(axes)))}, keepdims=0)",
    ]
    return wide_formula("MaxPool", ["x"], inputs, lines)


@op(
    "MaxPool",
    since=1,
    infer=max_pool_types,
    formula=max_pool_formula,
    vjp=gradients.max_pool,
    outputs_count=True,
    accepts_out=True,
    influence=probed(0).taking(Infinities.ABSORBED),
    content=Content.BOUNDED,
    unit_axis=1,
    cause="sums.window",
)
def max_pool(
    xp: ModuleType,
    x: Any,
    *,
    kernel_shape: Sequence[int],
    storage_order: int = 0,
    outputs_count: int = 1,
    out: Any = None,
    **attributes: Any,
) -> Any:
    """The maximum of each window of x [N, C, *sizes]; the second output is its flat index in x.

    NaN is the maximum of a window that contains NaN.
    """
    wide, axes = widened(xp, x), axes_of(attributes, kernel_shape)
    pads, counts = paddings(axes, x.shape[2:]), window_numbers(axes, x.shape[2:])
    image = padded(xp, wide, pads, lowest(wide.dtype))
    direct = out if out is not None and out.dtype == wide.dtype else None
    result = settled(xp, folded(xp, image, axes, counts, "maximum", direct), x.dtype, out)
    if outputs_count == 1:
        return result
    return result, _indices(xp, x.shape, image, axes, pads, result, storage_order)


def _indices(
    xp: ModuleType,
    shape: Sequence[int],
    image: Any,
    axes: Sequence[WindowAxis],
    pads: Sequence[tuple[int, int]],
    result: Any,
    storage_order: int,
) -> Any:
    """Return flat indices of the first maximum per window, row-major or column-major (`storage_order` 1)."""
    counts = result.shape[2:]
    kernel = math.prod(axis.kernel for axis in axes)
    plane = xp.arange(math.prod(shape[2:]), dtype=xp.int64).reshape(
        shape[2:], order="F" if storage_order else "C"
    )
    numbers = padded(xp, plane, pads, -1, "indices")
    seen = window_view(xp, numbers, axes, counts, taps_first=False).reshape(-1, kernel)
    values = window_view(xp, image, axes, counts, taps_first=False).reshape(*shape[:2], -1, kernel)
    best = widened(xp, result).reshape(*shape[:2], -1, 1)
    # A window full of -inf must not select its padding.
    hit = ((values == best) | (values != values)) & (seen >= 0)
    chosen = xp.take_along_axis(xp.broadcast_to(seen, values.shape), hit.argmax(axis=-1)[..., None], axis=-1)
    planes = xp.arange(math.prod(shape[:2]), dtype=xp.int64).reshape(*shape[:2], 1)
    return (chosen[..., 0] + planes * plane.size).reshape(result.shape)


def divisors(attributes: Attributes, axes: Sequence[WindowAxis], sizes: Sequence[int]) -> Any:
    """Return the number of elements that each window averages over: a NumPy f64 array over the windows."""
    return _divisors(bool(attributes.get("count_include_pad", 0)), tuple(axes), tuple(sizes))


@lru_cache(maxsize=256)
def _divisors(include: bool, axes: tuple[WindowAxis, ...], sizes: tuple[int, ...]) -> Any:
    result: Any = np.ones((), np.float64)
    for axis, size in zip(axes, sizes, strict=True):
        begin, end = axis.declared(size)
        low, high = (-begin, size + end) if include else (0, size)
        starts = np.arange(axis.count(size))[:, None] * axis.stride - begin
        places = starts + np.arange(axis.kernel) * axis.dilation
        result = np.multiply.outer(result, ((low <= places) & (places < high)).sum(axis=1, dtype=np.float64))
    result.setflags(write=False)
    return result


def average_pool_formula(attributes: Attributes, inputs: Types) -> str:
    """Windows, their sum, and the number of elements that each window averages over."""
    sizes = sizes_at(inputs, 0)[2:]
    axes = axes_of(attributes, attributes["kernel_shape"])
    counts = divisors(attributes, axes, sizes)
    last = list(range(2 + len(axes), 2 + 2 * len(axes)))
    lines = [*padding_lines(paddings(axes, sizes), "0"), windows_line(axes)]
    if (counts == math.prod(axis.kernel for axis in axes)).all():
        lines.append(f"%y.wide = ReduceMean(%windows, {last}, keepdims=0)")
    else:
        lines.append(f"%sum = ReduceSum(%windows, {last}, keepdims=0)")
        lines.append(f"%y.wide = Div(%sum, {counts.tolist()})")
    return wide_formula("AveragePool", ["x"], inputs, lines)


@op(
    "AveragePool",
    since=1,
    infer=pool_types,
    formula=average_pool_formula,
    accepts_out=True,
    influence=probed(0),
    unit_axis=1,
    cause="sums.window",
    remark=remarks.window,
)
def average_pool(
    xp: ModuleType, x: Any, *, kernel_shape: Sequence[int], out: Any = None, **attributes: Any
) -> Any:
    """The mean of each window of x [N, C, *sizes], including padding with count_include_pad."""
    wide, axes = widened(xp, x), axes_of(attributes, kernel_shape)
    sizes = x.shape[2:]
    image, counts = padded(xp, wide, paddings(axes, sizes), 0), window_numbers(axes, sizes)
    sums = folded(
        xp, image, axes, counts, "add", out if out is not None and out.dtype == wide.dtype else None
    )
    sums /= xp.asarray(divisors(attributes, axes, sizes).astype(wide.dtype))
    return settled(xp, sums, x.dtype, out)


def power_lines(p: float) -> list[str]:
    """Compute `%powers`: the absolute values to the power of `p`, exactly 0 where `%x` is 0."""
    return ["%size = Abs(%x.wide)", f"%powers = Pow(%size, {float(p)})"]


def _root_lines(dtype: str, p: int) -> list[str]:
    """Compute `%y.wide` from `%sum`; an exponent in place would be f32 for each type of the base."""
    return [f"%exponent: {wide_name(dtype)}[] = {1 / p}", "%y.wide = Pow(%sum, %exponent)"]


def lp_pool_formula(attributes: Attributes, inputs: Types) -> str:
    """Powers, padded with zeros, their sum over each window, and its root."""
    given, sizes, p = type_at(inputs, 0), sizes_at(inputs, 0)[2:], attributes["p"]
    axes = axes_of(attributes, attributes["kernel_shape"])
    padding = [line.replace("%x.wide", "%powers") for line in padding_lines(paddings(axes, sizes), "0")]
    lines = [
        *power_lines(p),
        *padding,
        windows_line(axes),
        f"%sum = ReduceSum(%windows, {list(range(2 + len(axes), 2 + 2 * len(axes)))}, keepdims=0)",
        *_root_lines(given.dtype, p),
    ]
    return wide_formula("LpPool", ["x"], inputs, lines)


def global_lp_pool_formula(attributes: Attributes, inputs: Types) -> str:
    """Powers, their sum over all axes after the second, and its root."""
    given, p = type_at(inputs, 0), attributes["p"]
    axes = list(range(2, len(sizes_at(inputs, 0))))
    lines = [*power_lines(p), f"%sum = ReduceSum(%powers, {axes})", *_root_lines(given.dtype, p)]
    return wide_formula("GlobalLpPool", ["x"], inputs, lines)


@op(
    "LpPool",
    since=2,
    infer=at_least_one("p", pool_types),
    formula=lp_pool_formula,
    influence=probed(0),
    cause="sums.window",
    remark=remarks.norm,
)
def lp_pool(xp: ModuleType, x: Any, *, kernel_shape: Sequence[int], p: int, **attributes: Any) -> Any:
    """The p-norm of each window of x [N, C, *sizes]."""
    wide, axes = widened(xp, x), axes_of(attributes, kernel_shape)
    counts = window_numbers(axes, x.shape[2:])
    powers = padded(xp, xp.abs(wide) ** p, paddings(axes, x.shape[2:]), 0)
    return settled(xp, folded(xp, powers, axes, counts, "add") ** (1 / p), x.dtype)


# Whole planes ---------------------------------------------------------------------------------


def plane_formula(name: str) -> Any:
    """Return a formula with one reduction over the spatial axes."""

    def formula(attributes: Attributes, inputs: Types) -> str:
        axes = list(range(2, len(sizes_at(inputs, 0))))
        return wide_formula("GlobalPool", ["x"], inputs, [f"%y.wide = {name}(%x.wide, {axes})"])

    return formula


def over_planes(xp: ModuleType, x: Any, reduce: Callable[..., Any]) -> Any:
    """Apply `reduce` to all axes after the second, which keep size 1."""
    return settled(xp, reduce(widened(xp, x), axis=tuple(range(2, x.ndim)), keepdims=True), x.dtype)


@op(
    "GlobalAveragePool",
    since=1,
    infer=shaped(one_per_plane),
    formula=plane_formula("ReduceMean"),
    influence=probed(0),
    unit_axis=1,
    cause="sums.plane",
    remark=remarks.mean,
)
def global_average_pool(xp: ModuleType, x: Any) -> Any:
    """The mean over all axes after the second."""
    return over_planes(xp, x, partial(mean_over, xp))


@op(
    "GlobalMaxPool",
    since=1,
    infer=shaped(one_per_plane),
    formula=plane_formula("ReduceMax"),
    influence=probed(0),
    content=Content.BOUNDED,
    unit_axis=1,
)
def global_max_pool(xp: ModuleType, x: Any) -> Any:
    """The maximum over all axes after the second."""
    return over_planes(xp, x, xp.max)


@op(
    "GlobalLpPool",
    since=2,
    infer=at_least_one("p", shaped(one_per_plane)),
    formula=global_lp_pool_formula,
    influence=probed(0),
    cause="sums.plane",
    remark=remarks.norm,
)
def global_lp_pool(xp: ModuleType, x: Any, *, p: int) -> Any:
    """The p-norm over all axes after the second."""
    wide = widened(xp, x)
    return settled(xp, over_planes(xp, xp.abs(wide) ** p, xp.sum) ** (1 / p), x.dtype)


def lrn_formula(attributes: Attributes, inputs: Types) -> str:
    """Squares, summed over neighboring channels."""
    sizes = sizes_at(inputs, 0)
    size, rank = attributes["size"], len(sizes)
    pads = [0] * (2 * rank)
    pads[1], pads[rank + 1] = (size - 1) // 2, size - 1 - (size - 1) // 2
    window = [size, *[1] * (rank - 2)]
    lines = [
        "%squares = Mul(%x.wide, %x.wide)",
        f"%padded = Pad(%squares, {pads}, 0)",
        f"%windows = nncdbg.Windows(%padded, kernel_shape={window})",
        f"%sums = ReduceSum(%windows, {list(range(rank, 2 * rank - 1))}, keepdims=0)",
        f"%scaled = Mul(%sums, {attributes['alpha'] / size})",
        f"%base = Add(%scaled, {attributes['bias']})",
        f"%divisor = Pow(%base, {attributes['beta']})",
        "%y.wide = Div(%x.wide, %divisor)",
    ]
    return wide_formula("LRN", ["x"], inputs, lines)


@op(
    "LRN",
    since=1,
    infer=at_least_one("size", same_as(0)),
    formula=lrn_formula,
    influence=probed(0),
    squares=Squares((0,), scale_free=False),
    unit_axis=1,
    cause="sums.response",
    remark=remarks.variances(remarks.neighbors, centred=False),
)
def lrn(xp: ModuleType, x: Any, *, alpha: float, beta: float, bias: float, size: int) -> Any:
    """x / (bias + alpha / size * s) ** beta, s the sum of squares over `size` channels around each."""
    wide = widened(xp, x)
    before = (size - 1) // 2
    rows = (wide * wide).reshape(*x.shape[:2], -1)
    around = padded(xp, rows, [(before, size - 1 - before), (0, 0)], 0)
    sums = folded(xp, around, [WindowAxis(size), WindowAxis(1)], rows.shape[1:], "add").reshape(x.shape)
    return settled(xp, wide / (bias + alpha / size * sums) ** beta, x.dtype)
