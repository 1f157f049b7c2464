"""GridSample: values of an image at points between its elements, for any number of axes."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops import contracts
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.influence import probed
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.sampling_formula import CUBIC, MODES, grid_sample_formula
from nncdbg.engine.ops.types import Attributes, Types, at, shape_at, typed
from nncdbg.ir.records import Dim


def _sample_types(attributes: Attributes, types: Types) -> Types:
    image, grid = shape_at(types, 0), shape_at(types, 1)
    if image is None or grid is None:
        return (typed(at(types, 0), None),)
    if len(image) != len(grid) or len(image) < 3:
        raise GraphError(f"an image of {len(image)} axes needs a grid of {len(image)} axes, not {len(grid)}")
    sizes: tuple[Dim, ...] = (image[0], image[1], *grid[1:-1])
    return (typed(at(types, 0), sizes),)


def _reflected(xp: Any, x: Any, low: float, high: float) -> Any:
    """Reflect `x` at both borders until it is between them."""
    span = high - low
    if span == 0:
        return xp.full_like(x, low)
    away = xp.abs(x - low) % (2 * span)
    return low + xp.where(away > span, 2 * span - away, away)


def _padded(xp: Any, x: Any, size: int, padding: str, align: bool) -> Any:
    """Map coordinates outside the image inside, according to the padding mode."""
    low, high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
    outside = (x < low) | (x > high)
    if padding == "border":
        return xp.where(outside, xp.clip(x, 0, size - 1), x)
    if padding == "reflection":
        return xp.where(outside, _reflected(xp, x, low, high), x)
    return x


def _neighbours(xp: Any, x: Any, mode: str) -> tuple[list[Any], list[Any]]:
    """Return integer coordinates around `x`, and the weight of each."""
    if mode == "nearest":
        return [xp.rint(x)], [xp.where(xp.isnan(x), x, x.dtype.type(1))]
    base = xp.floor(x)
    part = x - base
    if mode == "linear":
        return [base, base + 1], [1 - part, part]
    offsets = (-1, 0, 1, 2)
    return [base + offset for offset in offsets], [_keys(xp, xp.abs(part - offset)) for offset in offsets]


def _keys(xp: Any, x: Any) -> Any:
    near = ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1
    return xp.where(x <= 1, near, CUBIC * (((x - 5) * x + 8) * x - 4))


def _indices(xp: Any, x: Any, size: int, padding: str, align: bool) -> tuple[Any, Any]:
    """Return valid indices, and where they refer to elements of the image (rather than a zero)."""
    inside = (x >= 0) & (x < size) if padding == "zeros" else xp.ones(x.shape, bool)
    if padding == "reflection":
        x = xp.trunc(_padded(xp, x, size, padding, align))
    return xp.clip(xp.nan_to_num(x), 0, size - 1).astype(np.int64), inside


@op(
    "GridSample",
    since=16,
    infer=_sample_types,
    formula=grid_sample_formula,
    influence=probed(0, 1),
    contract=contracts.grid,
)
def grid_sample(xp: Any, image: Any, grid: Any, *, align_corners: int, mode: str, padding_mode: str) -> Any:
    """`image` [N, C, D1, ..] at the points of `grid` [N, P1, .., axes], last axis first, in -1 to 1.

    Modes nearest, linear and cubic; padding zeros, border and reflection.  A NaN point gives NaN.  ONNX
    GridSample since 16.
    """
    mode, align = MODES.get(mode, mode), bool(align_corners)
    if mode not in ("nearest", "linear", "cubic") or padding_mode not in ("zeros", "border", "reflection"):
        raise GraphError(f"GridSample does not support mode {mode!r} with padding {padding_mode!r}")
    sizes, wide, points = image.shape[2:], widened(xp, image), widened(xp, grid)
    flat = wide.reshape(*wide.shape[:2], -1)
    count, shape = len(sizes), (*image.shape[:2], *grid.shape[1:-1])
    if 0 in shape:
        return xp.zeros(shape, image.dtype)
    axes = []
    for number, size in enumerate(sizes):
        point = points[..., count - 1 - number].reshape(grid.shape[0], -1)
        x = (point + 1) / 2 * (size - 1) if align else ((point + 1) * size - 1) / 2
        # As in PyTorch and onnxruntime, `border` clips the neighbors of a cubic point. `onnx.reference` clips
        # the point, so that its result jumps at the border.
        if (mode, padding_mode) != ("cubic", "border"):
            x = _padded(xp, xp.rint(x) if mode == "nearest" else x, size, padding_mode, align)
        found, weights = _neighbours(xp, x, mode)
        axes.append(
            [
                (*_indices(xp, each, size, padding_mode, align), w)
                for each, w in zip(found, weights, strict=True)
            ]
        )
    result = sum(_corner(xp, flat, sizes, corner) for corner in product(*axes))
    return settled(xp, xp.asarray(result).reshape(shape), image.dtype)


def _corner(xp: Any, flat: Any, sizes: tuple[int, ...], corner: tuple[tuple[Any, Any, Any], ...]) -> Any:
    """Return one neighbor of every point, weighted; [N, C, points]."""
    place, inside, weight = 0, True, 1.0
    for size, (index, exists, share) in zip(sizes, corner, strict=True):
        place, inside, weight = place * size + index, inside & exists, weight * share
    values = xp.take_along_axis(flat, xp.asarray(place)[:, None, :], axis=2)
    weights = xp.asarray(weight)[:, None, :].astype(flat.dtype)
    return xp.where(xp.asarray(inside)[:, None, :], values, flat.dtype.type(0)) * weights
