"""Ops of onnxruntime over images: regions, grids, borders, scales."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from nncdbg.engine.errors import GraphError, RunError
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import composite, op
from nncdbg.engine.ops.formula import sizes_at
from nncdbg.engine.ops.microsoft.composing import formula, wide_formula
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.types import Attributes, Shape, Types, at, need_rank, same_as, shape_at, typed


@composite(
    "com.microsoft.GridSample", infer=lambda attributes, types: [typed(at(types, 0), _sampled_shape(types))]
)
def grid_sample(attributes: Attributes, types: Types) -> str:
    """GridSample of ONNX over images [N, C, H, W]."""
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(attributes["mode"], attributes["mode"])
    stated = f'align_corners={attributes["align_corners"]}, padding_mode="{attributes["padding_mode"]}"'
    line = f'%y = GridSample(%x, %grid, mode="{mode}", {stated})'
    return formula("GridSample", ["x", "grid"], types, [line])


def _sampled_shape(types: Types) -> Shape | None:
    image, grid = shape_at(types, 0), shape_at(types, 1)
    return None if image is None or grid is None else (*image[:2], *grid[1:-1])


def _cropped_types(attributes: Attributes, types: Types) -> Types:
    """[regions, C, height, width]: two sizes that are known only at run time."""
    need_rank(types, 0, "X", 4, 4)
    need_rank(types, 1, "rois", 2, 2)
    image, regions = shape_at(types, 0), shape_at(types, 1)
    count = None if regions is None else regions[0]
    return [typed(at(types, 0), (count, None if image is None else image[1], None, None))]


@op(
    "com.microsoft.CropAndResize",
    infer=_cropped_types,
    integers=lambda *given: {**valid.indices(2, axis=0)(*given), 3: valid.Integers(1, valid.FEW)},
)
def crop_and_resize(
    xp: ModuleType,
    x: Any,
    rois: Any,
    images: Any,
    crop_size: Any,
    *,
    mode: str,
    extrapolation_value: float,
) -> Any:
    """Regions of images [N, C, H, W] at a common size, by bilinear interpolation or the nearest element.

    `rois` [regions, 4] contains (y1, x1, y2, x2) from 0 to 1, `images` the image of each region.  Positions
    outside an image get `extrapolation_value`.
    """
    if mode not in ("bilinear", "nearest"):
        raise GraphError(f"unknown mode {mode!r}", hint="use bilinear or nearest")
    height, width = (int(size) for size in crop_size.reshape(-1))
    result = xp.full((len(rois), x.shape[1], height, width), extrapolation_value, widened(xp, x).dtype)
    for number, (image, (top, left, bottom, right)) in enumerate(
        zip(images.tolist(), rois.tolist(), strict=True)
    ):
        if not 0 <= image < x.shape[0]:
            raise RunError(f"a region refers to image {image}, but the batch size is {x.shape[0]}")
        rows = _places(xp, top, bottom, height, x.shape[2], x.dtype)
        columns = _places(xp, left, right, width, x.shape[3], x.dtype)
        inside = ((rows >= 0) & (rows <= x.shape[2] - 1))[:, None] & (
            (columns >= 0) & (columns <= x.shape[3] - 1)
        )
        values = _sampled(xp, widened(xp, x[image]), rows, columns, mode)
        result[number] = xp.where(inside, values, result[number])
    return settled(xp, result, x.dtype)


def _places(xp: ModuleType, begin: float, end: float, count: int, size: int, dtype: Any) -> Any:
    """Return the positions of the elements of a crop along an axis of `size` elements."""
    if count == 1:
        return xp.asarray([0.5 * (begin + end) * (size - 1)], dtype)
    step = (end - begin) * (size - 1) / (count - 1)
    return xp.asarray(begin * (size - 1) + xp.arange(count) * step, dtype)


def _sampled(xp: ModuleType, image: Any, rows: Any, columns: Any, mode: str) -> Any:
    """Return elements of `image` [C, H, W] at these rows and columns, clamped to its borders."""
    rows, columns = (
        xp.clip(places, 0, size - 1) for places, size in zip((rows, columns), image.shape[1:], strict=True)
    )
    if mode == "nearest":
        near = [xp.floor(places + 0.5).astype(xp.int64) for places in (rows, columns)]
        return image[:, near[0][:, None], near[1][None]]
    low = [xp.floor(places).astype(xp.int64) for places in (rows, columns)]
    high = [xp.ceil(places).astype(xp.int64) for places in (rows, columns)]
    down, across = (rows - low[0])[:, None], (columns - low[1])[None]
    corners = [[image[:, r[:, None], c[None]] for c in (low[1], high[1])] for r in (low[0], high[0])]
    upper, lower = (pair[0] + (pair[1] - pair[0]) * across for pair in corners)
    return upper + (lower - upper) * down


@composite("ImageScaler", infer=same_as(0))
def image_scaler(attributes: Attributes, types: Types) -> str:
    """x [N, C, H, W] times the attribute `scale`, plus a bias for each channel."""
    bias = [float(number) for number in attributes["bias"] or ()]
    lines = [f"%scaled = Mul(%x.wide, {attributes['scale']})"]
    if bias:
        lines += [
            f"%bias: f32[1,{len(bias)},1,1] = {[[[[number]] for number in bias]]}",
            "%offset = CastLike(%bias, %scaled)",
            "%y.wide = Add(%scaled, %offset)",
        ]
    else:
        lines.append("%y.wide = Identity(%scaled)")
    return wide_formula("ImageScaler", ["x"], types, lines)


def _window(attributes: Attributes, shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return where the result of Crop begins and ends, along the last two axes."""
    left, top, right, bottom = attributes["border"]
    scale = attributes["scale"]
    if scale:
        return [top, left], [top + scale[0], left + scale[1]]
    return [top, left], [shape[-2] - bottom, shape[-1] - right]


def _crop_types(attributes: Attributes, types: Types) -> Types:
    x = shape_at(types, 0)
    if x is None or not all(isinstance(size, int) for size in x[2:]):
        return [typed(at(types, 0), None)]
    begins, ends = _window(attributes, tuple(size for size in x if isinstance(size, int)))
    sizes = (end - begin for begin, end in zip(begins, ends, strict=True))
    return [typed(at(types, 0), (*x[:2], *sizes))]


@composite("Crop", infer=_crop_types)
def crop(attributes: Attributes, types: Types) -> str:
    """x [N, C, H, W] without its `border` (left, top, right, bottom), or `scale` (height, width) of it."""
    begins, ends = _window(attributes, sizes_at(types, 0))
    return formula("Crop", ["x"], types, [f"%y = Slice(%x, {begins}, {ends}, [2, 3])"])
