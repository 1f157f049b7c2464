"""Values of images at points and in regions: GridSample, RoiAlign, MaxRoiPool and NonMaxSuppression."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from nncdbg.engine.ops import contracts
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import composite, op
from nncdbg.engine.ops.formula import cast, formula, sizes_at, type_at, wide_formula, wide_name
from nncdbg.engine.ops.influence import RESIZED, Content, probed
from nncdbg.engine.ops.onnx_schemas import types_by_onnx
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.types import Attributes, Types, at, need_rank, shape_at, typed
from nncdbg.errors import GraphError, RunError
from nncdbg.ir.records import Dim, TensorType

CUBIC = -0.75
"""The free parameter of Keys' kernel, as in PyTorch."""

MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Mode names of opset 16."""

_OFFSETS = {"nearest": [0], "linear": [0, 1], "cubic": [-1, 0, 1, 2]}


def grid_sample_formula(attributes: Attributes, inputs: Types) -> str:
    """Return the formula of GridSample for an image [N, C, *sizes] and a grid [N, *points, axes]."""
    (batch, channels, *sizes), grid = sizes_at(inputs, 0), sizes_at(inputs, 1)
    name: str = attributes["mode"]
    mode = MODES.get(name, name)
    zeros = attributes["padding_mode"] == "zeros"
    neighbors = len(_OFFSETS[mode]) ** len(sizes)
    lines = [
        cast("image", "X", wide_name(type_at(inputs, 0).dtype)),
        cast("wide_grid", "grid", wide_name(type_at(inputs, 1).dtype)),
        f"%points = Reshape(%wide_grid, {[batch, -1, len(sizes)]})",
    ]
    for axis, size in enumerate(sizes):
        lines += _axis_lines(str(axis), len(sizes) - 1 - axis, size, mode, attributes)
    lines += _joined_lines(sizes, zeros)
    points = prod(grid[1:-1])
    lines += [
        f"%flat = Reshape(%image, {[batch, channels, -1]})",
        f"%row = Reshape(%place, {[batch, 1, -1]})",
        f"%rows = Expand(%row, {[batch, channels, points * neighbors]})",
        "%found = GatherElements(%flat, %rows, axis=2)",
        f"%{'all' if zeros else 'kept'} = Reshape(%found, {[batch, channels, points, neighbors]})",
        *(["%where = Unsqueeze(%inside, [1])", "%kept = Where(%where, %all, 0)"] if zeros else []),
        "%typed = CastLike(%weight, %image)",
        "%shares = Unsqueeze(%typed, [1])",
        "%products = Mul(%kept, %shares)",
        "%sums = ReduceSum(%products, [3], keepdims=0)",
        f"%wide = Reshape(%sums, {[batch, channels, *grid[1:-1]]})",
        cast("Y", "wide", type_at(inputs, 0).dtype),
    ]
    return formula("GridSample", ["X", "grid"], inputs, lines, ["Y"])


def _axis_lines(a: str, column: int, size: int, mode: str, attributes: Attributes) -> list[str]:
    """Compute `%i`, `%w` and `%in` [N, points, neighbors]: indices, weights, and which elements exist."""
    align, padding = bool(attributes["align_corners"]), attributes["padding_mode"]
    scale = (size - 1) / 2 if align else size / 2
    lines = [
        f"%g{a} = Gather(%points, {column}, axis=2)",
        f"%right{a} = Add(%g{a}, 1)",
        f"%{'at' if align else 'scaled'}{a} = Mul(%right{a}, {scale})",
        *([] if align else [f"%at{a} = Sub(%scaled{a}, 0.5)"]),
    ]
    source = f"at{a}"
    if mode == "nearest":
        lines.append(f"%near{a} = Round(%at{a})")
        source = f"near{a}"
    limits = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
    clips_neighbors = (mode, padding) == ("cubic", "border")
    lines += _inward_lines(f"x{a}", source, size, "zeros" if clips_neighbors else padding, limits)
    whole = "Round" if mode == "nearest" else "Floor"
    lines += [
        f"%base{a} = {whole}(%x{a})",
        f"%part{a} = Sub(%x{a}, %base{a})",
        f"%left{a} = Unsqueeze(%base{a}, [2])",
        f"%inner{a} = Unsqueeze(%part{a}, [2])",
        f"%each{a} = Add(%left{a}, {_OFFSETS[mode]})",
        f"%off{a} = Sub(%inner{a}, {_OFFSETS[mode]})",
        f"%t{a} = Abs(%off{a})",
        *_weight_lines(a, mode),
    ]
    return [*lines, *_index_lines(a, size, padding, limits)]


def _inward_lines(target: str, source: str, size: int, padding: str, limits: Sequence[float]) -> list[str]:
    """Compute `target`: coordinates, moved into the image by the padding mode."""
    low, high = limits
    if padding == "zeros":
        return [f"%{target} = Identity(%{source})"]
    if padding == "border":
        inward = [f"%{target}.moved = Clip(%{source}, 0, {size - 1})"]
    elif high == low:
        inward = [
            f"%{target}.none = Sub(%{source}, %{source})",
            f"%{target}.moved = Add(%{target}.none, {low})",
        ]
    else:
        span = high - low
        inward = [
            f"%{target}.from = Sub(%{source}, {low})",
            f"%{target}.size = Abs(%{target}.from)",
            f"%{target}.away = Mod(%{target}.size, {2 * span}, fmod=1)",
            f"%{target}.back = Sub({2 * span}, %{target}.away)",
            f"%{target}.far = Greater(%{target}.away, {span})",
            f"%{target}.near = Where(%{target}.far, %{target}.back, %{target}.away)",
            f"%{target}.moved = Add(%{target}.near, {low})",
        ]
    return [
        *inward,
        f"%{target}.before = Less(%{source}, {low})",
        f"%{target}.after = Greater(%{source}, {high})",
        f"%{target}.outside = Or(%{target}.before, %{target}.after)",
        f"%{target} = Where(%{target}.outside, %{target}.moved, %{source})",
    ]


def _weight_lines(a: str, mode: str) -> list[str]:
    """Compute `%w` from the distances `%t` to the neighbors; the kernel of Keys for cubic."""
    if mode == "nearest":
        return [f"%none{a} = Sub(%t{a}, %t{a})", f"%w{a} = Add(%none{a}, 1)"]
    if mode == "linear":
        return [f"%w{a} = Sub(1, %t{a})"]
    return [
        f"%n1{a} = Mul(%t{a}, {CUBIC + 2})",
        f"%n2{a} = Sub(%n1{a}, {CUBIC + 3})",
        f"%square{a} = Mul(%t{a}, %t{a})",
        f"%n3{a} = Mul(%n2{a}, %square{a})",
        f"%near.w{a} = Add(%n3{a}, 1)",
        f"%f1{a} = Sub(%t{a}, 5)",
        f"%f2{a} = Mul(%f1{a}, %t{a})",
        f"%f3{a} = Add(%f2{a}, 8)",
        f"%f4{a} = Mul(%f3{a}, %t{a})",
        f"%f5{a} = Sub(%f4{a}, 4)",
        f"%far.w{a} = Mul(%f5{a}, {CUBIC})",
        f"%close{a} = LessOrEqual(%t{a}, 1)",
        f"%w{a} = Where(%close{a}, %near.w{a}, %far.w{a})",
    ]


def _index_lines(a: str, size: int, padding: str, limits: Sequence[float]) -> list[str]:
    """Compute `%i`: indices in range, and for zeros `%in`."""
    lines, source = [], f"each{a}"
    if padding == "reflection":
        lines = _inward_lines(f"again{a}", source, size, padding, limits)
        source = f"again{a}"
    if padding == "zeros":
        lines += [
            f"%reaches{a} = GreaterOrEqual(%{source}, 0)",
            f"%ends{a} = Less(%{source}, {size})",
            f"%in{a} = And(%reaches{a}, %ends{a})",
        ]
    return [
        *lines,
        f"%lost{a} = IsNaN(%{source})",
        f"%number{a} = Where(%lost{a}, 0, %{source})",
        f"%clipped{a} = Clip(%number{a}, 0, {size - 1})",
        f"%i{a} = Cast(%clipped{a}, to=7)",
    ]


def _joined_lines(sizes: Sequence[int], zeros: bool) -> list[str]:
    """Compute `%place`, `%weight` and `%inside` [N, points, all neighbors] over all axes."""
    lines = []
    last = {"place": "i0", "weight": "w0", "inside": "in0"}
    for axis in range(1, len(sizes)):
        lines += [f"%rows{axis} = Mul(%{last['place']}, {sizes[axis]})"]
        for key, source, name, kind in (
            ("place", f"rows{axis}", f"i{axis}", "Add"),
            ("weight", last["weight"], f"w{axis}", "Mul"),
            ("inside", last["inside"], f"in{axis}", "And"),
        ):
            if key == "inside" and not zeros:
                continue
            lines += [
                f"%{key}{axis}.outer = Unsqueeze(%{source}, [3])",
                f"%{key}{axis}.inner = Unsqueeze(%{name}, [2])",
                f"%{key}{axis}.both = {kind}(%{key}{axis}.outer, %{key}{axis}.inner)",
                f"%{key}{axis} = Reshape(%{key}{axis}.both, [0, 0, -1])",
            ]
            last[key] = f"{key}{axis}"
    keys = ["place", "weight", *(["inside"] if zeros else [])]
    return [*lines, *(f"%{key} = Identity(%{last[key]})" for key in keys)]


def _sample_types(attributes: Attributes, types: Types) -> Types:
    image, grid = shape_at(types, 0), shape_at(types, 1)
    if image is None or grid is None:
        return (typed(at(types, 0), None),)
    if len(image) != len(grid) or len(image) < 3:
        raise GraphError(f"an image of {len(image)} axes needs a grid of {len(image)} axes, not {len(grid)}")
    sizes: tuple[Dim, ...] = (image[0], image[1], *grid[1:-1])
    return (typed(at(types, 0), sizes),)


def _padded(xp: Any, x: Any, size: int, padding: str, align: bool) -> Any:
    """Map coordinates outside the image inside, according to the padding mode."""
    low, high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
    outside = (x < low) | (x > high)
    if padding == "border":
        return xp.where(outside, xp.clip(x, 0, size - 1), x)
    if padding != "reflection":
        return x
    span = high - low
    if span == 0:
        return xp.where(outside, xp.full_like(x, low), x)
    away = xp.abs(x - low) % (2 * span)
    return xp.where(outside, low + xp.where(away > span, 2 * span - away, away), x)


def _neighbours(xp: Any, x: Any, mode: str) -> tuple[list[Any], list[Any]]:
    """Return integer coordinates around `x`, and the weight of each."""
    if mode == "nearest":
        return [xp.rint(x)], [xp.where(xp.isnan(x), x, x.dtype.type(1))]
    base = xp.floor(x)
    part = x - base
    if mode == "linear":
        return [base, base + 1], [1 - part, part]
    offsets = _OFFSETS["cubic"]
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


def roi_align_formula(attributes: Attributes, inputs: Types) -> str:
    """Return the formula of RoiAlign: bilinear values at the points of each bin, and their mean or maximum.

    X is [N, C, H, W], rois [R, 4] with (x, y, x, y), and the result [R, C, output_height, output_width].
    """
    (_, channels, *sizes), (count, _) = sizes_at(inputs, 0), sizes_at(inputs, 1)
    # Before opset 16 there was no attribute, and no shift.
    half = attributes.get("coordinate_transformation_mode", "output_half_pixel") == "half_pixel"
    bins = (attributes["output_height"], attributes["output_width"])
    lines = [
        f"%scaled = Mul(%rois.wide, {attributes['spatial_scale']})",
        f"%corners = Sub(%scaled, {0.5 if half else 0.0})",
    ]
    for name, column, number, size in zip("yx", (1, 0), bins, sizes, strict=True):
        lines += _bin_lines(name, column, number, attributes["sampling_ratio"], half)
        lines += _neighbor_lines(name, size)
    lines += _corner_lines(count, channels, sizes)
    lines += _MEAN_LINES if attributes["mode"] == "avg" else _MAXIMUM_LINES
    return wide_formula("RoiAlign", ["X", "rois", "batch_indices"], inputs, lines, ["Y"])


def _bin_lines(a: str, column: int, bins: int, ratio: int, half: bool) -> list[str]:
    """Compute `%at` and `%used` [R, bins, points]: coordinates along one axis, and which of them count."""
    points = f"Identity(%whole_{a})" if ratio == 0 else f"Add(%none_{a}, {float(ratio)})"
    return [
        f"%start_{a} = Gather(%corners, [{column}], axis=1)",
        f"%end_{a} = Gather(%corners, [{column + 2}], axis=1)",
        f"%length_{a} = Sub(%end_{a}, %start_{a})",
        # Without the shift, a region is at least one element long.
        f"%side_{a} = {f'Identity(%length_{a})' if half else f'Max(%length_{a}, 1)'}",
        f"%bin_{a} = Div(%side_{a}, {float(bins)})",
        f"%whole_{a} = Ceil(%bin_{a})",
        f"%none_{a} = Sub(%whole_{a}, %whole_{a})",
        f"%points_{a} = {points}",
        f"%most_{a} = ReduceMax(%points_{a}, keepdims=0)",
        f"%limit_{a} = Max(%most_{a}, 1)",
        f"%steps_{a} = Cast(%limit_{a}, to=7)",
        f"%numbers_{a} = Range(0, %steps_{a}, 1)",
        f"%point_{a} = CastLike(%numbers_{a}, %bin_{a})",
        f"%counted_{a} = Less(%point_{a}, %points_{a})",
        f"%used_{a} = Unsqueeze(%counted_{a}, [1])",
        f"%middle_{a} = Add(%point_{a}, 0.5)",
        f"%each_{a} = Max(%points_{a}, 1)",
        f"%parts_{a} = Div(%middle_{a}, %each_{a})",
        f"%part_{a} = Unsqueeze(%parts_{a}, [1])",
        f"%before_{a} = Add(%part_{a}, {[[float(n)] for n in range(bins)]})",
        f"%wide_bin_{a} = Unsqueeze(%bin_{a}, [1])",
        f"%moved_{a} = Mul(%before_{a}, %wide_bin_{a})",
        f"%first_{a} = Unsqueeze(%start_{a}, [1])",
        f"%at_{a} = Add(%moved_{a}, %first_{a})",
    ]


def _neighbor_lines(a: str, size: int) -> list[str]:
    """Compute the two neighbors `%low`, `%high` of each coordinate, their weights, and `%inside`."""
    return [
        f"%reaches_{a} = GreaterOrEqual(%at_{a}, -1)",
        f"%ends_{a} = LessOrEqual(%at_{a}, {size})",
        f"%inside_{a} = And(%reaches_{a}, %ends_{a})",
        f"%clipped_{a} = Clip(%at_{a}, 0, {size - 1})",
        f"%floor_{a} = Floor(%clipped_{a})",
        f"%high_w_{a} = Sub(%clipped_{a}, %floor_{a})",
        f"%low_w_{a} = Sub(1, %high_w_{a})",
        f"%low_{a} = Cast(%floor_{a}, to=7)",
        f"%next_{a} = Add(%low_{a}, 1)",
        f"%high_{a} = Min(%next_{a}, {size - 1})",
    ]


def _corner_lines(count: int, channels: int, sizes: Sequence[int]) -> list[str]:
    """Compute `%share_...` [R, C, bins, points, bins, points]: the weighted value of each corner."""
    lines = [
        f"%flat = Reshape(%X.wide, [0, 0, {prod(sizes)}])",
        "%maps = Gather(%flat, %batch_indices, axis=0)",
    ]
    for key in ("inside", "used"):
        lines += _joined(key, f"{key}_y", f"{key}_x", "And")
    lines.append("%counts = And(%inside, %used)")
    for row in ("low", "high"):
        for column in ("low", "high"):
            key = f"{row}_{column}"
            lines += [
                f"%begin_{key} = Mul(%{row}_y, {sizes[1]})",
                *_joined(f"place_{key}", f"begin_{key}", f"{column}_x", "Add"),
                *_joined(f"weight_{key}", f"{row}_w_y", f"{column}_w_x", "Mul"),
                f"%row_{key} = Reshape(%place_{key}, {[count, 1, -1]})",
                f"%rows_{key} = Expand(%row_{key}, {[count, channels, 1]})",
                f"%found_{key} = GatherElements(%maps, %rows_{key}, axis=2)",
                f"%grid_{key} = Shape(%place_{key}, start=2)",
                f"%shape_{key} = Concat({[count, channels]}, %grid_{key}, axis=0)",
                f"%value_{key} = Reshape(%found_{key}, %shape_{key})",
                f"%product_{key} = Mul(%value_{key}, %weight_{key})",
                f"%share_{key} = Where(%counts, %product_{key}, 0)",
            ]
    return lines


def _joined(target: str, y: str, x: str, op: str) -> list[str]:
    """Join [R, bins, points] of both axes to [R, 1, bins, points, bins, points]."""
    return [
        f"%{target}.y = Unsqueeze(%{y}, [1, 4, 5])",
        f"%{target}.x = Unsqueeze(%{x}, [1, 2, 3])",
        f"%{target} = {op}(%{target}.y, %{target}.x)",
    ]


_SHARES = "%share_low_low, %share_low_high, %share_high_low, %share_high_high"


_MEAN_LINES = (
    f"%values = Sum({_SHARES})",
    "%sums = ReduceSum(%values, [3, 5], keepdims=0)",
    "%area = Mul(%points_y, %points_x)",
    "%number = Max(%area, 1)",
    "%numbers = Unsqueeze(%number, [2, 3])",
    "%Y.wide = Div(%sums, %numbers)",
)

_MAXIMUM_LINES = (
    f"%values = Max({_SHARES})",
    "%candidates = Where(%used, %values, -inf)",
    "%largest = ReduceMax(%candidates, [3, 5], keepdims=0)",
    "%any_y = Greater(%points_y, 0)",
    "%any_x = Greater(%points_x, 0)",
    "%any_point = And(%any_y, %any_x)",
    "%any = Unsqueeze(%any_point, [2, 3])",
    "%Y.wide = Where(%any, %largest, 0)",
)
"""The largest weighted corner, as in ONNX's reference; a point outside the image has the value 0."""


def max_roi_pool_formula(attributes: Attributes, inputs: Types) -> str:
    """Return the formula of MaxRoiPool: the maximum of each cell, along the columns and then along the rows.

    X is [N, C, H, W], rois [R, 5] with (image, x, y, x, y), and the result [R, C, *pooled_shape].
    """
    sizes = sizes_at(inputs, 0)[2:]
    lines = [
        "%table = Slice(%rois.wide, [1], [5], [1])",
        f"%corners = Mul(%table, {attributes['spatial_scale']})",
        # Halves are rounded away from zero.
        "%size = Abs(%corners)",
        "%whole = Floor(%size)",
        "%rest = Sub(%size, %whole)",
        "%up = GreaterOrEqual(%rest, 0.5)",
        "%one = CastLike(%up, %whole)",
        "%near = Add(%whole, %one)",
        "%side = Sign(%corners)",
        "%edges = Mul(%near, %side)",
        *_cell_lines("x", 0, attributes["pooled_shape"][1], sizes[1]),
        *_cell_lines("y", 1, attributes["pooled_shape"][0], sizes[0]),
        "%number = Gather(%rois.wide, 0, axis=1)",
        "%image = Cast(%number, to=7)",
        "%maps = Gather(%X.wide, %image, axis=0)",
        "%each_row = Unsqueeze(%maps, [3])",
        "%in_x = Unsqueeze(%cells_x, [1, 2])",
        "%along_x = Where(%in_x, %each_row, -inf)",
        "%bands = ReduceMax(%along_x, [4], keepdims=0)",
        "%columns = Transpose(%bands, perm=[0, 1, 3, 2])",
        "%each_column = Unsqueeze(%columns, [2])",
        "%in_y = Unsqueeze(%cells_y, [1, 3])",
        "%along_y = Where(%in_y, %each_column, -inf)",
        "%largest = ReduceMax(%along_y, [4], keepdims=0)",
        "%any_y = Unsqueeze(%filled_y, [1, 3])",
        "%any_x = Unsqueeze(%filled_x, [1, 2])",
        "%any = And(%any_y, %any_x)",
        "%Y.wide = Where(%any, %largest, 0)",
    ]
    return wide_formula("MaxRoiPool", ["X", "rois"], inputs, lines, ["Y"])


def _cell_lines(a: str, column: int, cells: int, size: int) -> list[str]:
    """Compute `%cells` [R, cells, size], the elements of each cell along one axis, and `%filled`."""
    return [
        f"%first_{a} = Gather(%edges, [{column}], axis=1)",
        f"%last_{a} = Gather(%edges, [{column + 2}], axis=1)",
        f"%span_{a} = Sub(%last_{a}, %first_{a})",
        f"%inclusive_{a} = Add(%span_{a}, 1)",
        f"%length_{a} = Max(%inclusive_{a}, 1)",
        f"%cell_{a} = Div(%length_{a}, {float(cells)})",
        f"%from_{a} = Mul(%cell_{a}, {[float(n) for n in range(cells)]})",
        f"%to_{a} = Mul(%cell_{a}, {[float(n) for n in range(1, cells + 1)]})",
        f"%floor_{a} = Floor(%from_{a})",
        f"%ceil_{a} = Ceil(%to_{a})",
        f"%start_{a} = Add(%floor_{a}, %first_{a})",
        f"%end_{a} = Add(%ceil_{a}, %first_{a})",
        f"%starts_{a} = Unsqueeze(%start_{a}, [2])",
        f"%ends_{a} = Unsqueeze(%end_{a}, [2])",
        f"%reached_{a} = LessOrEqual(%starts_{a}, {[float(n) for n in range(size)]})",
        f"%before_{a} = Greater(%ends_{a}, {[float(n) for n in range(size)]})",
        f"%cells_{a} = And(%reached_{a}, %before_{a})",
        f"%ones_{a} = Cast(%cells_{a}, to=7)",
        f"%most_{a} = ReduceMax(%ones_{a}, [2], keepdims=0)",
        f"%filled_{a} = Cast(%most_{a}, to=9)",
    ]


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


def _first(value: Any, default: float) -> float:
    return float(value.reshape(-1)[0]) if value is not None and value.size else default


def _corners(boxes: Any, centered: bool) -> tuple[Any, Any, Any, Any]:
    """Return (x1, y1, x2, y2), sorted; boxes are (x, y, width, height) or two corners (y, x, y, x)."""
    a, b, c, d = boxes.T
    if centered:
        return a - c / 2, b - d / 2, a + c / 2, b + d / 2
    return np.minimum(b, d), np.minimum(a, c), np.maximum(b, d), np.maximum(a, c)


def _overlaps(corners: tuple[Any, ...], areas: Any, one: int, others: Any) -> Any:
    """Return the intersection over union of box `one` with each of `others`; 0 for boxes without an area."""
    left, top, right, bottom = corners
    width = np.minimum(right[one], right[others]) - np.maximum(left[one], left[others])
    height = np.minimum(bottom[one], bottom[others]) - np.maximum(top[one], top[others])
    shared = np.maximum(width, 0) * np.maximum(height, 0)
    union = areas[one] + areas[others] - shared
    valid = (shared > 0) & (areas[one] > 0) & (areas[others] > 0) & (union > 0)
    return np.where(valid, shared / np.where(valid, union, 1), 0)


def _kept(boxes: Any, scores: Any, centered: bool, most: int, iou: float, least: float | None) -> list[int]:
    """Return the indices of the kept boxes of one class, best first; the first of equal scores wins."""
    order = np.argsort(-scores, kind="stable")
    if least is not None:
        order = order[scores[order] > least]
    corners = _corners(boxes, centered)
    areas = (corners[2] - corners[0]) * (corners[3] - corners[1])
    kept: list[int] = []
    while len(order) and len(kept) < most:
        best, order = int(order[0]), order[1:]
        kept.append(best)
        order = order[_overlaps(corners, areas, best, order) <= iou]
    return kept


@op(
    "NonMaxSuppression",
    since=10,
    infer=lambda attributes, types: (TensorType("i64", (None, 3)),),
    integers=valid.sizes(2),
    influence=RESIZED,
    contract=contracts.sides,
)
def non_max_suppression(
    xp: Any,
    boxes: Any,
    scores: Any,
    max_output_boxes_per_class: Any = None,
    iou_threshold: Any = None,
    score_threshold: Any = None,
    *,
    center_point_box: int,
) -> Any:
    """(batch, class, box) of every box that no better one of its class overlaps; i64[n, 3].

    `boxes` is f32[batches, boxes, 4], `scores` f32[batches, classes, boxes].  At most
    `max_output_boxes_per_class` (0) boxes are returned per class.  ONNX NonMaxSuppression since 10.
    """
    most, iou = int(_first(max_output_boxes_per_class, 0)), _first(iou_threshold, 0.0)
    least = _first(score_threshold, 0.0) if score_threshold is not None and score_threshold.size else None
    if not 0 <= iou <= 1:
        raise RunError(f"iou_threshold is {iou:g}", hint="use a threshold from 0 to 1")
    found = [
        (batch, number, box)
        for batch in range(boxes.shape[0])
        for number in range(scores.shape[1])
        for box in _kept(boxes[batch], scores[batch, number], bool(center_point_box), most, iou, least)
    ]
    return xp.asarray(np.array(found, np.int64).reshape(-1, 3))
