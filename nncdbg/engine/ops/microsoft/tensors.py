"""Ops of onnxruntime over shapes, indices and matrices, mostly older forms of ONNX's ops."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import composite, op
from nncdbg.engine.ops.formula import cast, formula, sizes_at, wide_formula
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.types import (
    Attributes,
    Shape,
    Types,
    at,
    broadcast_shapes,
    fixed,
    need_rank,
    normal_axis,
    same_as,
    same_rank,
    shape_at,
    shaped,
    typed,
)
from nncdbg.errors import GraphError, RunError
from nncdbg.ir.records import TensorType


@composite("com.microsoft.ExpandDims", infer=lambda attributes, types: [typed(at(types, 0), None)])
def expand_dims(attributes: Attributes, types: Types) -> str:
    """x with an axis of size 1 at the position in `axis`."""
    lines = [cast("wide", "axis", "i64"), "%axes = Reshape(%wide, [1])", "%y = Unsqueeze(%x, %axes)"]
    return formula("ExpandDims", ["x", "axis"], types, lines)


def _gathered(attributes: Attributes, types: Types) -> Types:
    data, indices = shape_at(types, 0), shape_at(types, 1)
    if data is None or indices is None or not isinstance(indices[-1], int):
        return [typed(at(types, 0), None)]
    return [typed(at(types, 0), (*indices[:-1], *data[indices[-1] :]))]


@composite("com.microsoft.GatherND", infer=_gathered)
def gather_nd(attributes: Attributes, types: Types) -> str:
    """GatherND of ONNX, also with indices in i32."""
    lines = [cast("wide", "indices", "i64"), "%y = GatherND(%x, %wide)"]
    return formula("GatherND", ["x", "indices"], types, lines)


@composite("com.microsoft.Pad", infer=shaped(same_rank))
def pad(attributes: Attributes, types: Types) -> str:
    """Pad of ONNX; `pads` may be a row, `value` a vector of one element."""
    lines, value = ["%flat = Reshape(%pads, [-1])"], "_"
    if at(types, 2) is not None:
        lines.append("%fill = Reshape(%value, [1])")
        lines.append("%one = Squeeze(%fill)")
        value = "%one"
    lines.append(f'%y = Pad(%x, %flat, {value}, mode="{attributes["mode"]}")')
    return formula("Pad", ["x", "pads", "value"], types, lines)


@composite("com.microsoft.Range", infer=lambda attributes, types: [typed(at(types, 0), (None,))])
def range_(attributes: Attributes, types: Types) -> str:
    """From start to limit, without it, in steps of delta (1)."""
    names = ["start", "limit", "delta"]
    given = [name for index, name in enumerate(names) if at(types, index) is not None]
    lines = [f"%{name}_one = Reshape(%{name}, [1])" for name in given]
    lines += [f"%{name}_item = Squeeze(%{name}_one)" for name in given]
    if len(given) < 3:
        lines.append("%delta_item = CastLike(1, %start_item)")
    lines.append("%y = Range(%start_item, %limit_item, %delta_item)")
    return formula("Range", names, types, lines)


@composite("com.microsoft.Trilu", infer=same_as(0))
def trilu(attributes: Attributes, types: Types) -> str:
    """The upper or lower triangle of the matrices in the last two axes, zeros elsewhere."""
    given = "%x, %k" if at(types, 1) is not None else "%x"
    return formula("Trilu", ["x", "k"], types, [f"%y = Trilu({given}, upper={attributes['upper']})"])


def _unique_types(attributes: Attributes, types: Types) -> Types:
    return [typed(at(types, 0), (None,)), TensorType("i64", shape_at(types, 0)), TensorType("i64", (None,))]


@composite("com.microsoft.Unique", infer=_unique_types)
def unique(attributes: Attributes, types: Types) -> str:
    """The values of a vector in order of first occurrence; the value index of each element; their counts."""
    line = "%y, %first, %which, %counts = Unique(%x, sorted=0)"
    return formula("Unique", ["x"], types, [line], ["y", "which", "counts"])


@op("com.microsoft.Inverse", infer=same_as(0))
def inverse(xp: ModuleType, x: Any) -> Any:
    """The inverses of the matrices in the last two axes.  Raises RunError for a singular one."""
    try:
        return settled(xp, xp.linalg.inv(widened(xp, x)), x.dtype)
    except xp.linalg.LinAlgError as error:
        raise RunError(f"the input contains a singular matrix: {error}") from None


def _distances(attributes: Attributes, types: Types) -> Shape | None:
    a, b = shape_at(types, 0), shape_at(types, 1)
    return None if a is None or b is None else (a[0], b[0])


@composite("com.microsoft.CDist", infer=shaped(_distances))
def distances(attributes: Attributes, types: Types) -> str:
    """The distance of each row of a to each row of b: euclidean, or its square (`sqeuclidean`)."""
    metric = attributes["metric"]
    if metric not in ("euclidean", "sqeuclidean"):
        raise GraphError(
            f"unknown metric {metric!r}", hint="use euclidean or sqeuclidean", attribute="metric"
        )
    root = metric == "euclidean"
    lines = [
        "%rows = Unsqueeze(%a.wide, [1])",
        "%columns = Unsqueeze(%b.wide, [0])",
        "%apart = Sub(%rows, %columns)",
        "%squares = Mul(%apart, %apart)",
        f"%{'sum' if root else 'y.wide'} = ReduceSum(%squares, [2], keepdims=0)",
        *(["%y.wide = Sqrt(%sum)"] if root else []),
    ]
    return wide_formula("CDist", ["a", "b"], types, lines)


def _unfolded(attributes: Attributes, types: Types) -> Types:
    x = shape_at(types, 0)
    if x is None:
        return [typed(at(types, 0), None)]
    axis, size = normal_axis(attributes["dim"], len(x)), attributes["size"]
    length = x[axis]
    count = (length - size) // attributes["step"] + 1 if isinstance(length, int) else None
    return [typed(at(types, 0), (*x[:axis], count, *x[axis + 1 :], size))]


@composite("com.microsoft.UnfoldTensor", infer=_unfolded)
def unfold(attributes: Attributes, types: Types) -> str:
    """Windows of `size` elements along the axis `dim`, every `step`; the elements of each in a last axis."""
    shape = sizes_at(types, 0)
    axis, size, step = normal_axis(attributes["dim"], len(shape)), attributes["size"], attributes["step"]
    starts = range(0, shape[axis] - size + 1, step)
    indices = [[start + offset for offset in range(size)] for start in starts]
    order = [*range(axis + 1), *range(axis + 2, len(shape) + 1), axis + 1]
    lines = [
        f"%indices: i64{[len(indices), size]} = {indices}",
        f"%windows = Gather(%x, %indices, axis={axis})",
        f"%y = Transpose(%windows, perm={order})",
    ]
    return formula("UnfoldTensor", ["x"], types, lines)


@composite("DynamicSlice", infer=shaped(same_rank))
def dynamic_slice(attributes: Attributes, types: Types) -> str:
    """Slice of ONNX with the starts, ends and axes as operands."""
    names = ["x", "starts", "ends", "axes"]
    given = [f"%{name}" for index, name in enumerate(names) if at(types, index) is not None]
    return formula("DynamicSlice", names, types, [f"%y = Slice({', '.join(given)})"])


# Numbers ----------------------------------------------------------------------------------------


@composite(
    "com.microsoft.MulInteger",
    infer=fixed("i32", lambda attributes, types: broadcast_shapes([shape_at(types, 0), shape_at(types, 2)])),
)
def mul_integer(attributes: Attributes, types: Types) -> str:
    """(a - a_zero) (b - b_zero) in i32."""
    names, lines = ["a", "a_zero", "b", "b_zero"], []
    for index, name in ((0, "a"), (2, "b")):
        zero = at(types, index + 1) is not None
        lines.append(cast(f"{name}_wide" if zero else f"{name}_shifted", name, "i32"))
        if zero:
            lines.append(cast(f"{name}_zero_wide", f"{name}_zero", "i32"))
            lines.append(f"%{name}_shifted = Sub(%{name}_wide, %{name}_zero_wide)")
    return formula("MulInteger", names, types, [*lines, "%y = Mul(%a_shifted, %b_shifted)"])


def _sampled_shape(attributes: Attributes, types: Types) -> Shape | None:
    image, grid = shape_at(types, 0), shape_at(types, 1)
    return None if image is None or grid is None else (*image[:2], *grid[1:-1])


@composite("com.microsoft.GridSample", infer=shaped(_sampled_shape))
def grid_sample(attributes: Attributes, types: Types) -> str:
    """GridSample of ONNX over images [N, C, H, W]."""
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(attributes["mode"], attributes["mode"])
    stated = f'align_corners={attributes["align_corners"]}, padding_mode="{attributes["padding_mode"]}"'
    line = f'%y = GridSample(%x, %grid, mode="{mode}", {stated})'
    return formula("GridSample", ["x", "grid"], types, [line])


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
    xp: ModuleType, x: Any, rois: Any, images: Any, crop_size: Any, *, mode: str, extrapolation_value: float
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
