"""DeformConv: a convolution over points that an operand moves, from its formula."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from nncdbg.engine.ops.declaration import composite
from nncdbg.engine.ops.formula import formula_text, in_precision, sizes_at, type_at
from nncdbg.engine.ops.types import Attributes, Types, at, need_rank, shape_at, typed
from nncdbg.ir.records import TensorType

_OPERANDS = ("X", "W", "offset", "B", "mask")

_WIDE = "f64"
"""The element type of the coordinates: GridSample rounds them to and from the range -1 to 1."""


def _types(attributes: Attributes, types: Types) -> Types:
    """[N, M, *results] from X [N, C, *sizes], W [M, C / group, *kernel] and offset [N, moves, *results]."""
    need_rank(types, 0, "X", 3)
    image, weight, offset = (shape_at(types, index) for index in range(3))
    if image is None or weight is None or offset is None:
        return (typed(at(types, 0), None),)
    return (typed(at(types, 0), (image[0], weight[0], *offset[2:])),)


@composite("DeformConv", since=19, infer=_types, unit_axis=1)
def deform_conv(attributes: Attributes, inputs: Types) -> str:
    """Conv with each point of its windows moved by `offset`, between the elements of X, and times `mask`.

    GridSample takes the values at the points, 0 outside X; their product with the weight W [M, C / group,
    *kernel] follows.  X is [N, C, *sizes], `offset` [N, offset_group * taps * axes, *results], and `mask`
    [N, offset_group * taps, *results].  ONNX DeformConv since 19.
    """
    (batch, channels, *sizes), (results, _, *kernel) = sizes_at(inputs, 0), sizes_at(inputs, 1)
    places = sizes_at(inputs, 2)[2:]
    axes, taps, outer = len(sizes), prod(kernel), attributes["offset_group"]
    rows = [taps * places[0], *places[1:]]
    group, parts = attributes["group"], channels // attributes["group"] * taps
    points = TensorType(_WIDE, (batch * outer, *rows, axes))
    image = TensorType(_WIDE, (batch * outer, channels // outer, *sizes))
    lines = [
        f"%offsets = Reshape(%offset.wide, {[batch, outer, *kernel, axes, *places]})",
        *(line for axis in range(axes) for line in _tap_lines(axis, attributes, sizes, kernel, places)),
        # GridSample has the last axis first.
        f"%stacked = Concat({', '.join(f'%column{axis}' for axis in reversed(range(axes)))}, axis=-1)",
        # GridSample has a formula for known sizes.
        f"%grid: {points} = Reshape(%stacked, {[*(points.shape or ())]})",
        f"%image: {image} = Reshape(%X.wide, {[*(image.shape or ())]})",
        '%sampled = GridSample(%image, %grid, mode="linear", padding_mode="zeros", align_corners=0)',
        *_mask_lines(inputs, [batch * outer, 1, *rows]),
        f"%windows = Reshape(%columns, {[batch, group, parts, prod(places)]})",
        f"%weights = Reshape(%W.wide, {[group, results // group, parts]})",
        "%products = MatMul(%weights, %windows)",
        *_bias_lines(inputs, [batch, results, *places]),
    ]
    floats = [key for index, key in enumerate(_OPERANDS) if at(inputs, index) is not None]
    body = in_precision(type_at(inputs, 0).dtype, floats, lines, ["Y"], _WIDE)
    return formula_text("DeformConv", zip(_OPERANDS, inputs, strict=False), body, ["Y"])


def _tap_lines(
    axis: int, attributes: Attributes, sizes: Sequence[int], kernel: Sequence[int], places: Sequence[int]
) -> list[str]:
    """Compute `%column`: the coordinates of the moved points along one axis, from -1 to 1."""
    axes = len(sizes)
    stride, dilation = ((attributes[key] or (1,) * axes)[axis] for key in ("strides", "dilations"))
    begin = (attributes["pads"] or (0,) * axes)[axis]
    behind = axes - 1 - axis
    taps = _column([float(dilation * tap - begin) for tap in range(kernel[axis])], behind + axes)
    starts = _column([float(stride * place) for place in range(places[axis])], behind)
    return [
        f"%off{axis} = Gather(%offsets, {axis}, axis={2 + axes})",
        f"%moved{axis} = Add(%off{axis}, {taps})",
        f"%element{axis} = Add(%moved{axis}, {starts})",
        f"%middle{axis} = Add(%element{axis}, 0.5)",
        f"%twice{axis} = Mul(%middle{axis}, 2)",
        f"%share{axis} = Div(%twice{axis}, {float(sizes[axis])})",
        f"%coordinate{axis} = Sub(%share{axis}, 1)",
        f"%column{axis} = Unsqueeze(%coordinate{axis}, [-1])",
    ]


def _column(numbers: Sequence[float], behind: int) -> object:
    """Return a literal of the numbers with `behind` axes of size 1 after theirs."""
    rows: list[object] = list(numbers)
    for _ in range(behind):
        rows = _nested(rows)
    return rows


def _nested(rows: list[object]) -> list[object]:
    return [_nested(row) if isinstance(row, list) else [row] for row in rows]


def _mask_lines(inputs: Types, shape: Sequence[int]) -> list[str]:
    if at(inputs, 4) is None:
        return ["%columns = Identity(%sampled)"]
    return [f"%masks = Reshape(%mask.wide, {[*shape]})", "%columns = Mul(%sampled, %masks)"]


def _bias_lines(inputs: Types, shape: Sequence[int]) -> list[str]:
    if at(inputs, 3) is None:
        return [f"%Y.wide = Reshape(%products, {[*shape]})"]
    return [
        f"%unbiased = Reshape(%products, {[*shape]})",
        f"%bias = Reshape(%B.wide, {[-1, *(1 for _ in shape[2:])]})",
        "%Y.wide = Add(%unbiased, %bias)",
    ]
