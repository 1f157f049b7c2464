"""MaxRoiPool: each region of an image as a small grid of maxima; RoiAlign, which runs its formula."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from nncdbg.engine.errors import GraphError, RunError
from nncdbg.engine.ops import contracts
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import composite, op
from nncdbg.engine.ops.influence import Content, probed
from nncdbg.engine.ops.onnx_messages import types_by_onnx
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.region_formula import max_roi_pool_formula, roi_align_formula
from nncdbg.engine.ops.types import Attributes, Types, at, need_rank, shape_at, typed


def _region_types(attributes: Attributes, types: Types) -> Types:
    """[regions, C, *pooled_shape] from x [N, C, H, W] and rois [regions, 5]."""
    need_rank(types, 0, "X", 4, 4)
    need_rank(types, 1, "rois", 2, 2)
    pooled = tuple(attributes["pooled_shape"])
    if len(pooled) != 2 or min(pooled) < 1:
        raise GraphError(
            f"pooled_shape cannot be {list(pooled)}",
            hint="use two sizes of 1 or more",
            attribute="pooled_shape",
        )
    image, regions = shape_at(types, 0), shape_at(types, 1)
    if regions is not None and isinstance(regions[1], int) and regions[1] != 5:
        raise GraphError(f"rois has {regions[1]} numbers per region, expected 5: batch, x1, y1, x2, y2")
    channels = None if image is None else image[1]
    return (typed(at(types, 0), (None if regions is None else regions[0], channels, *pooled)),)


def _rounded(numbers: Any) -> Any:
    """Round to the nearest integers, halves away from zero."""
    whole = np.trunc(numbers)
    return whole + np.where(np.abs(numbers - whole) >= 0.5, np.sign(numbers), 0)


def _bins(first: Any, last: Any, count: int, size: int) -> list[list[tuple[int, int]]]:
    """Return per region `count` ranges that cover `first` to `last`, cut to an axis of `size` elements.

    Neighbors share an element that contains their border; a range outside the axis is empty.
    """
    length = np.maximum(last - first + 1, 1)[:, None] / first.dtype.type(count)
    places = np.arange(count + 1, dtype=first.dtype)
    starts = np.clip(np.floor(places[:-1] * length) + first[:, None], 0, size)
    ends = np.clip(np.ceil(places[1:] * length) + first[:, None], 0, size)
    return [
        [(int(start), int(end)) for start, end in zip(*row, strict=True)]
        for row in zip(starts, ends, strict=True)
    ]


def _images(numbers: Sequence[float], count: int) -> list[int]:
    for number in numbers:
        if not 0 <= number < count:
            raise RunError(f"a region refers to image {number:g}, but the batch size is {count}")
    return [int(number) for number in numbers]


@op(
    "MaxRoiPool",
    since=1,
    infer=_region_types,
    formula=max_roi_pool_formula,
    integers=valid.indices(1, axis=0),
    influence=probed(0),
    content=Content.BOUNDED,
)
def max_roi_pool(
    xp: ModuleType, x: Any, rois: Any, *, pooled_shape: Sequence[int], spatial_scale: float
) -> Any:
    """The maximum of each cell of a grid over each region of x [N, C, H, W].

    `rois` [regions, 5] contains (image, x1, y1, x2, y2), both corners inclusive; `spatial_scale` converts the
    coordinates to elements.  A cell without elements is 0; NaN is the maximum of a cell that contains NaN.
    Cell borders are computed as in ONNX Runtime, in the input's precision.  ONNX MaxRoiPool since 1.
    """
    wide = widened(xp, x)
    working = np.dtype(np.float64 if x.dtype.itemsize == 8 else np.float32)
    table: Any = np.array(rois.tolist(), working).reshape(-1, 5)
    if not np.isfinite(table).all():
        raise RunError("a region has a corner that is NaN or infinite")
    left, top, right, bottom = _rounded(table[:, 1:] * working.type(spatial_scale)).T
    rows = _bins(top, bottom, pooled_shape[0], x.shape[2])
    columns = _bins(left, right, pooled_shape[1], x.shape[3])
    result = xp.zeros((len(table), x.shape[1], *pooled_shape), wide.dtype)
    for region, image in enumerate(_images(table[:, 0].tolist(), x.shape[0])):
        for i, (up, down) in enumerate(rows[region]):
            if down <= up:
                continue
            band = wide[image, :, up:down].max(axis=1)
            for j, (begin, end) in enumerate(columns[region]):
                if end > begin:
                    result[region, :, i, j] = band[:, begin:end].max(axis=1)
    return settled(xp, result, x.dtype)


for _since in (10, 16, 22):
    # `onnx.reference` shifts regions by half a pixel in all versions; ONNX does so from 16 on.
    composite(
        "RoiAlign",
        since=_since,
        infer=types_by_onnx("RoiAlign", _since),
        integers=valid.indices(2, axis=0),
        contract=contracts.regions,
    )(roi_align_formula)
