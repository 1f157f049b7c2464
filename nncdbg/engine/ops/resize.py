"""Resize and Upsample: one axis at a time, as sums of gathered and weighted slices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import op, other_version
from nncdbg.engine.ops.gradient import Applied, Emit
from nncdbg.engine.ops.influence import of_first, probed
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.types import Attributes, Shape, Types, at, normal_axes, shape_at, shaped, typed
from nncdbg.errors import GraphError, RunError
from nncdbg.ir.records import Array, Attribute, Literal, Operand


@dataclass(frozen=True, slots=True)
class ResizedAxis:
    """One axis to resize: `size` elements become `length`, `scale` times as many."""

    number: int
    size: int
    length: int
    scale: float
    start: float = 0.0
    end: float = 1.0
    """The part of the axis, from `start` to `end`, that `tf_crop_and_resize` uses."""


def _half_pixel(axis: ResizedAxis, y: Array) -> Array:
    return (y + 0.5) / axis.scale - 0.5


def _symmetric(axis: ResizedAxis, y: Array) -> Array:
    # The center of the whole canvas stays fixed, although the length was rounded down.
    adjustment = axis.length / (axis.scale * axis.size)
    return axis.size / 2 * (1 - adjustment) + _half_pixel(axis, y)


def _align_corners(axis: ResizedAxis, y: Array) -> Array:
    width = axis.scale * axis.size
    return np.zeros(y.shape) if width == 1 else y * (axis.size - 1) / (width - 1)


def _crop(axis: ResizedAxis, y: Array) -> Array:
    width, span = axis.scale * axis.size, (axis.end - axis.start) * (axis.size - 1)
    inside = np.full(y.shape, span / 2) if width == 1 else y * span / (width - 1)
    return inside + axis.start * (axis.size - 1)


_COORDINATES: dict[str, Callable[[ResizedAxis, Array], Array]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": lambda axis, y: (
        _half_pixel(axis, y) if axis.scale * axis.size != 1 else np.full(y.shape, -0.5)
    ),
    "align_corners": _align_corners,
    "asymmetric": lambda axis, y: y / axis.scale,
    "tf_crop_and_resize": _crop,
}

_NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _cubic(distance: Array, a: float) -> Array:
    """Keys' cubic convolution kernel; `a` is -0.75 in PyTorch, -0.5 in TensorFlow."""
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = a * (((x - 5) * x + 8) * x - 4)
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


_KERNELS: dict[str, tuple[Callable[[Array, float], Array], int]] = {
    "linear": (lambda distance, a: np.asarray(np.clip(1 - np.abs(distance), 0, 1)), 1),
    "cubic": (_cubic, 2),
}
"""Mode to its kernel, and the kernel's reach to each side."""


@dataclass(frozen=True, slots=True)
class Method:
    """How values between elements are computed; the fields are attributes of Resize."""

    mode: str
    coordinate_transformation_mode: str = "asymmetric"
    nearest_mode: str = "floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    antialias: int = 0

    def coordinates(self, axis: ResizedAxis) -> Array:
        """Return the positions of the new elements on the old axis; float64 [length]."""
        return _COORDINATES[self.coordinate_transformation_mode](
            axis, np.arange(axis.length, dtype=np.float64)
        )

    def weights(self, axis: ResizedAxis, x: Array) -> tuple[Array, Array]:
        """Return indices and weights of the elements that make each new one; both [length, neighbors]."""
        kernel, reach = _KERNELS[self.mode]
        squeeze = min(axis.scale, 1.0) if self.antialias else 1.0
        first = math.floor(-reach / squeeze) + 1
        # The left neighbor of an integer is the one before it, as in ONNX's own implementation.
        left = np.ceil(x) - 1
        offsets = np.arange(first, 2 - first)
        indices = left[:, None] + offsets
        weights = kernel((indices - x[:, None]) * squeeze, self.cubic_coeff_a)
        if self.exclude_outside:
            weights = np.where((indices < 0) | (indices >= axis.size), 0.0, weights)
        if self.exclude_outside or self.antialias:
            weights = weights / weights.sum(axis=1, keepdims=True)
        # Elements without weight are not read, so that an adjacent infinity has no effect.
        centre = np.clip(np.rint(x), 0, axis.size - 1)
        indices = np.where(weights == 0, centre[:, None], np.clip(indices, 0, axis.size - 1))
        return indices.astype(np.int64), weights


def _along(xp: Any, values: Array, axis: int) -> Any:
    """Reshape a vector to lie along an axis, counted from the last."""
    return xp.asarray(values.reshape(values.shape + (1,) * axis))


def _resize_axis(xp: Any, x: Any, axis: ResizedAxis, method: Method) -> Any:
    where = method.coordinates(axis)
    behind = x.ndim - 1 - axis.number
    if method.mode == "nearest":
        nearest = np.clip(_NEAREST[method.nearest_mode](where), 0, axis.size - 1)
        result = xp.take(x, xp.asarray(nearest.astype(np.int64)), axis=axis.number)
    else:
        indices, weights = method.weights(axis, where)
        result = None
        for index, weight in zip(indices.T, weights.T.astype(x.dtype), strict=True):
            part = xp.take(x, xp.asarray(index), axis=axis.number) * _along(xp, weight, behind)
            result = part if result is None else xp.add(result, part, out=result)
    if method.coordinate_transformation_mode == "tf_crop_and_resize":
        outside = (where < 0) | (where > axis.size - 1)
        return xp.where(_along(xp, outside, behind), x.dtype.type(method.extrapolation_value), result)
    return result


def _resized(xp: Any, x: Any, axes: Sequence[ResizedAxis], method: Method) -> Any:
    """Resize the axes of `x`; integers are rounded to the nearest and saturate."""
    cropped = method.coordinate_transformation_mode == "tf_crop_and_resize"
    wanted = [axis for axis in axes if cropped or axis.length != axis.size or axis.scale != 1]
    if any(axis.size == 0 and axis.length for axis in wanted):
        raise RunError("Resize cannot enlarge an empty axis")
    if (method.mode == "nearest" and not cropped) or x.dtype in (np.float32, np.float64):
        working = x
    else:
        working = x.astype(np.float64 if x.dtype.kind in "iu" else np.float32)
    for axis in wanted:
        working = _resize_axis(xp, working, axis, method)
    if working.dtype != x.dtype and x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype)
        working = xp.clip(xp.rint(working), limits.min, limits.max)
    return xp.asarray(working, dtype=x.dtype)


def _axes(
    x: Any, axes: Sequence[int] | None, scales: Any, sizes: Any, policy: str = "stretch", roi: Any = None
) -> list[ResizedAxis]:
    """Return the axes with their new lengths; RunError unless scales or sizes match them."""
    numbers = range(x.ndim) if axes is None else normal_axes(axes, x.ndim)
    scales = None if scales is None or not scales.size else [float(scale) for scale in scales]
    sizes = None if sizes is None or not sizes.size else [int(size) for size in sizes]
    old = [x.shape[number] for number in numbers]
    given = scales if scales is not None else sizes
    if given is None or len(given) != len(numbers):
        count = "neither" if given is None else str(len(given))
        raise RunError(f"Resize needs scales or sizes for {len(numbers)} axes, not {count}")
    if scales is None:
        scales, lengths = [new / size if size else 0.0 for new, size in zip(sizes, old, strict=True)], sizes
        if policy != "stretch":
            scale = min(scales) if policy == "not_larger" else max(scales)
            scales, lengths = [scale] * len(old), [int(scale * size + 0.5) for size in old]
    else:
        lengths = [math.floor(size * scale) for size, scale in zip(old, scales, strict=True)]
    if any(scale < 0 or (scale == 0 and size) for scale, size in zip(scales, old, strict=True)):
        raise RunError(f"Resize cannot scale by {[*scales]}", hint="use scales greater than 0")
    parts = np.asarray(roi, np.float64) if roi is not None and roi.size else None
    made = zip(numbers, old, lengths, scales, strict=True)
    if parts is not None and not np.isfinite(parts).all():
        raise RunError(f"Resize has the region {parts.tolist()}", hint="use finite numbers")
    if parts is None:
        return [ResizedAxis(*each) for each in made]
    return [
        ResizedAxis(*each, float(parts[i]), float(parts[len(numbers) + i])) for i, each in enumerate(made)
    ]


def _resize_vjp(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent by the transposed map; none for the region, scales and sizes."""
    extrapolated = {key: value for key, value in at.given.items() if key != "extrapolation_value"}
    return (emit("nncdbg.ResizeTransposed", at.d, at.x, *at.operands[1:], **extrapolated),)


def _scaled_vjp(emit: Emit, at: Applied) -> Sequence[Operand]:
    """As for Resize, for the versions with scales only."""
    given: dict[str, Attribute] = {
        "mode": at.attributes["mode"],
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    listed = at.attributes.get("scales")
    scales = at.operands[1] if listed is None else Literal(tuple(listed))
    return (emit("nncdbg.ResizeTransposed", at.d, at.x, None, scales, **given),)


def _resize_types(attributes: Attributes, types: Types) -> Types:
    """Keep the rank; axes that are not listed keep their sizes."""
    shape, axes = shape_at(types, 0), attributes.get("axes")
    if shape is None:
        return (typed(at(types, 0), None),)
    changed = range(len(shape)) if axes is None else normal_axes(axes, len(shape))
    return (typed(at(types, 0), tuple(None if i in changed else dim for i, dim in enumerate(shape))),)


@op(
    "Resize",
    since=11,
    infer=_resize_types,
    vjp=_resize_vjp,
    integers=valid.sizes(2, 3),
    influence=probed(0),
    host_operands=(1, 2, 3),
    unit_axis=1,
)
def resize(
    xp: Any,
    x: Any,
    roi: Any = None,
    scales: Any = None,
    sizes: Any = None,
    *,
    axes: Sequence[int] | None = None,
    keep_aspect_ratio_policy: str = "stretch",
    **attributes: Any,
) -> Any:
    """`x` with its axes stretched or shrunk to `sizes` or by `scales`.

    Modes nearest, linear and cubic; every coordinate mode, `antialias`, `exclude_outside` and
    `roi`.  Computed in f32 (f64 for f64 and integers).  ONNX Resize since 11.
    """
    method = Method(**attributes)
    if method.mode not in ("nearest", *_KERNELS) or method.coordinate_transformation_mode not in _COORDINATES:
        raise GraphError(
            f"Resize does not support mode {method.mode!r} with {method.coordinate_transformation_mode!r}"
        )
    if method.antialias and method.mode == "nearest":
        raise RunError("Resize cannot antialias in mode 'nearest'")
    return _resized(xp, x, _axes(x, axes, scales, sizes, keep_aspect_ratio_policy, roi), method)


@other_version("Resize", 10, integers=valid.sizes(1), vjp=_scaled_vjp)
def resize_by_scales(xp: Any, x: Any, scales: Any, *, mode: str) -> Any:
    """`x` resized by `scales`, nearest or linear.  ONNX Resize 10."""
    return _resized(xp, x, _axes(x, None, scales, None), Method(mode))


@op(
    "Upsample",
    since=9,
    infer=_resize_types,
    vjp=_scaled_vjp,
    integers=valid.sizes(1),
    influence=probed(0),
    host_operands=(1,),
)
def upsample(xp: Any, x: Any, scales: Any, *, mode: str) -> Any:
    """`x` stretched by `scales`, nearest or linear.  ONNX Upsample since 9."""
    if (scales < 1).any():
        raise RunError(
            f"Upsample cannot scale by {scales.tolist()}", hint="use scales of 1 or more, or Resize"
        )
    return resize_by_scales(xp, x, scales, mode=mode)


def _upsample_types(attributes: Attributes, types: Types) -> Types:
    shape, scales = shape_at(types, 0), attributes["scales"]
    if shape is None:
        return (typed(at(types, 0), None),)
    if len(shape) != len(scales):
        raise GraphError(f"expected {len(shape)} scales, one per axis, got {len(scales)}")
    result: Shape = tuple(
        math.floor(dim * scale) if isinstance(dim, int) else dim if scale == 1 else None
        for dim, scale in zip(shape, scales, strict=True)
    )
    return (typed(at(types, 0), result),)


@other_version("Upsample", 7, infer=_upsample_types, integers=None)
def upsample_by_attribute(xp: Any, x: Any, *, scales: Sequence[float], mode: str) -> Any:
    """`x` stretched by `scales`, nearest or linear.  ONNX Upsample 7 and 8."""
    return resize_by_scales(xp, x, np.asarray(scales), mode=mode)


# The transpose ---------------------------------------------------------------------------------


def _spread_axis(xp: Any, d: Any, axis: ResizedAxis, method: Method) -> Any:
    """Add each element of `d` to the elements of the old axis that made it, with their weights."""
    where = method.coordinates(axis)
    if method.coordinate_transformation_mode == "tf_crop_and_resize":
        outside = (where < 0) | (where > axis.size - 1)
        d = xp.where(_along(xp, outside, d.ndim - 1 - axis.number), d.dtype.type(0), d)
    if method.mode == "nearest":
        nearest = np.clip(_NEAREST[method.nearest_mode](where), 0, axis.size - 1).astype(np.int64)
        indices, weights = nearest[:, None], np.ones((axis.length, 1))
    else:
        indices, weights = method.weights(axis, where)
    matrix = np.zeros((axis.length, axis.size))
    np.add.at(matrix, (np.arange(axis.length)[:, None], indices), weights)
    moved = xp.moveaxis(d, axis.number, -1)
    return xp.moveaxis(xp.matmul(moved, xp.asarray(matrix.astype(d.dtype))), -1, axis.number)


def _spread_vjp(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The resized cotangent, in the form that the opset has."""
    _, _, roi, *lengths = at.operands
    if emit.version >= 11:
        return (emit("Resize", at.d, roi, *lengths, **at.given),)
    mode, scales = at.attributes["mode"], lengths[0]
    if isinstance(scales, Literal) and emit.version < 9:
        return (emit("Upsample", at.d, scales=scales.data, mode=mode),)
    return (emit("Resize" if emit.version == 10 else "Upsample", at.d, scales, mode=mode),)


@op(
    "nncdbg.ResizeTransposed",
    infer=shaped(lambda attributes, types: shape_at(types, 1)),
    vjp=_spread_vjp,
    influence=of_first(probed(0)),
)
def resize_transposed(
    xp: Any,
    d: Any,
    like: Any,
    roi: Any = None,
    scales: Any = None,
    sizes: Any = None,
    *,
    axes: Sequence[int] | None = None,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    antialias: int = 0,
) -> Any:
    """The elements of `d`, a result of Resize, added to those of `like` that they were computed from.

    With the weights of Resize: the transpose of the linear map, in the shape of `like`.
    """
    method = Method(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        exclude_outside,
        extrapolation_value,
        antialias,
    )
    working = widened(xp, d)
    for axis in _axes(like, axes, scales, sizes, keep_aspect_ratio_policy, roi):
        working = _spread_axis(xp, working, axis, method)
    return settled(xp, working, d.dtype)
