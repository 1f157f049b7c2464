"""RoiAlign and MaxRoiPool as graph text: the regions of an image on a grid of bins."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from nncdbg.engine.ops.formula import formula_text, in_precision, sizes_at, type_at
from nncdbg.engine.ops.types import Attributes, Types


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
    lines += _mean_lines() if attributes["mode"] == "avg" else _maximum_lines()
    body = in_precision(type_at(inputs, 0).dtype, ["X", "rois"], lines, ["Y"])
    return formula_text("RoiAlign", zip(("X", "rois", "batch_indices"), inputs, strict=True), body, ["Y"])


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


def _mean_lines() -> list[str]:
    return [
        f"%values = Sum({_SHARES})",
        "%sums = ReduceSum(%values, [3, 5], keepdims=0)",
        "%area = Mul(%points_y, %points_x)",
        "%number = Max(%area, 1)",
        "%numbers = Unsqueeze(%number, [2, 3])",
        "%Y.wide = Div(%sums, %numbers)",
    ]


def _maximum_lines() -> list[str]:
    """The largest weighted corner, as in ONNX's reference; a point outside the image has the value 0."""
    return [
        f"%values = Max({_SHARES})",
        "%candidates = Where(%used, %values, -inf)",
        "%largest = ReduceMax(%candidates, [3, 5], keepdims=0)",
        "%any_y = Greater(%points_y, 0)",
        "%any_x = Greater(%points_x, 0)",
        "%any_point = And(%any_y, %any_x)",
        "%any = Unsqueeze(%any_point, [2, 3])",
        "%Y.wide = Where(%any, %largest, 0)",
    ]


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
    body = in_precision(type_at(inputs, 0).dtype, ["X", "rois"], lines, ["Y"])
    return formula_text("MaxRoiPool", zip(("X", "rois"), inputs, strict=True), body, ["Y"])


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
