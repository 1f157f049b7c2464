"""Conv, ConvTranspose and DeformConv over any number of spatial axes.

A 1x1 kernel is a matrix product.  Other kernels copy the windows into a matrix (im2col), in strips of rows
that fit in the cache, and multiply; for depthwise kernels, too, this was 1.7 to 2.5 times as fast as one
multiply-add over the whole plane per kernel element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from types import ModuleType
from typing import Any

from nncdbg.engine.ops import remarks
from nncdbg.engine.ops import windows as gradients
from nncdbg.engine.ops.declaration import composite, op
from nncdbg.engine.ops.formula import LARGE, formula_text, in_precision, sizes_at, type_at, wide_formula
from nncdbg.engine.ops.influence import counted, probed
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.scratch import scratch
from nncdbg.engine.ops.types import Attributes, Types, agree, at, need_rank, shape_at, typed
from nncdbg.engine.ops.windows import WindowAxis, axes_of, padded, taps, transposed, window_view
from nncdbg.errors import GraphError
from nncdbg.ir.records import Dim, TensorType

STRIP_ELEMENTS = 1 << 21
"""Size of the im2col matrix of one strip: 8 MB of f32, the fastest of 2**18 ... 2**23 on VGG."""


def kernel_sizes(attributes: Attributes, weight: Sequence[Dim]) -> list[int] | None:
    """Return the kernel's spatial sizes, from the weight or `kernel_shape`; None if a size is unknown."""
    given = attributes["kernel_shape"] or [None] * (len(weight) - 2)
    if len(given) != len(weight) - 2:
        raise GraphError(
            f"kernel_shape has {len(given)} sizes, but the weight has {len(weight) - 2} spatial axes",
            attribute="kernel_shape",
        )
    fact = f"kernel_shape is {list(given)}, the weight has {list(weight[2:])}"
    sizes = [agree(size, wanted, fact) for size, wanted in zip(weight[2:], given, strict=True)]
    numbers = [size for size in sizes if isinstance(size, int)]
    return numbers if len(numbers) == len(sizes) else None


def _known_shapes(inputs: Types, least: int) -> tuple[Sequence[Dim], Sequence[Dim]] | None:
    """Return the shapes of x and weight, of `least` axes or more; None if one is unknown.

    Raises GraphError for ranks that do not match, including that of the bias.
    """
    need_rank(inputs, 0, "input", least)
    need_rank(inputs, 1, "weight", least)
    need_rank(inputs, 2, "bias", 1, 1)
    x, weight = shape_at(inputs, 0), shape_at(inputs, 1)
    if x is None or weight is None:
        return None
    if len(x) != len(weight):
        raise GraphError(f"input has {len(x)} axes, but weight has {len(weight)}", operand=1)
    return x, weight


def _agreed_features(features: Dim, inputs: Types) -> Dim:
    """Return the output channels of the weight, checked against the bias."""
    bias = shape_at(inputs, 2)
    if bias is None:
        return features
    return agree(features, bias[0], f"bias has {bias[0]} elements, weight has {features} output channels", 2)


def conv_types(attributes: Attributes, inputs: Types) -> Types:
    """[N, M, *windows] from x [N, C, *sizes] and weight [M, C / group, *kernel]."""
    known = _known_shapes(inputs, 2)
    if known is None:
        return [typed(at(inputs, 0), None)]
    x, weight = known
    group = attributes["group"]
    if isinstance(weight[1], int) and isinstance(x[1], int) and weight[1] * group != x[1]:
        groups = f" in {group} groups" if group > 1 else ""
        raise GraphError(
            f"weight needs {weight[1] * group} channels{groups}, but input has {x[1]}", operand=1
        )
    features = weight[0]
    if isinstance(features, int) and features % group:
        raise GraphError(
            f"{features} output channels cannot be split evenly into {group} groups", attribute="group"
        )
    features = _agreed_features(features, inputs)
    kernel = kernel_sizes(attributes, weight)
    if kernel is None:
        return [typed(at(inputs, 0), (x[0], features, *[None] * (len(x) - 2)))]
    axes = axes_of(attributes, kernel)
    return [typed(at(inputs, 0), (x[0], features, *[a.output(n) for a, n in zip(axes, x[2:], strict=True)]))]


def conv_formula(attributes: Attributes, inputs: Types) -> str:
    """Windows, a product with the weight, and a sum over channels and kernel."""
    x, weight = sizes_at(inputs, 0), sizes_at(inputs, 1)
    group, given = attributes["group"], at(inputs, 2)
    axes = axes_of(attributes, weight[2:])
    pads = [axis.padding(size) for axis, size in zip(axes, x[2:], strict=True)]
    counts = [axis.count(size) for axis, size in zip(axes, x[2:], strict=True)]
    many = x[0] * math.prod(counts) * math.prod(weight) > LARGE
    summing = matrix_lines if many else product_lines
    lines = [
        *padding_lines(pads, "0"),
        windows_line(axes),
        *summing(x, weight, group, counts),
        f"%{'sum' if given else 'y.wide'} = Reshape(%sums, {[x[0], weight[0], *counts]})",
    ]
    if given:
        lines.append(f"%offset = Reshape(%bias.wide, {[weight[0], *[1] * len(axes)]})")
        lines.append("%y.wide = Add(%sum, %offset)")
    return wide_formula("Conv", ["x", "weight", "bias"], inputs, lines)


def product_lines(
    x: tuple[int, ...], weight: tuple[int, ...], group: int, counts: Sequence[int]
) -> list[str]:
    """Compute `%sums` [N, G, M / G, *windows] from all products [N, G, M / G, C / G, *windows, *kernel]."""
    rank, ones = len(counts), [1] * len(counts)
    return [
        f"%grouped = Reshape(%windows, {[x[0], group, 1, weight[1], *counts, *weight[2:]]})",
        f"%kernel = Reshape(%weight.wide, {[group, weight[0] // group, weight[1], *ones, *weight[2:]]})",
        "%products = Mul(%grouped, %kernel)",
        f"%sums = ReduceSum(%products, {[3, *range(4 + rank, 4 + 2 * rank)]}, keepdims=0)",
    ]


def matrix_lines(x: tuple[int, ...], weight: tuple[int, ...], group: int, counts: Sequence[int]) -> list[str]:
    """Compute `%sums` [N, G, M / G, windows] as a matrix product, for too many products to hold at once."""
    rank, depth = len(counts), math.prod(weight[1:])
    order = [0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank)]
    return [
        f"%ordered = Transpose(%windows, perm={order})",
        f"%columns = Reshape(%ordered, {[x[0], group, depth, math.prod(counts)]})",
        f"%rows = Reshape(%weight.wide, {[group, weight[0] // group, depth]})",
        "%sums = MatMul(%rows, %columns)",
    ]


def padding_lines(pads: Sequence[tuple[int, int]], value: str) -> list[str]:
    """Compute `%padded` from `%x.wide`; Identity without padding, so that the name always exists."""
    if not any(begin or end for begin, end in pads):
        return ["%padded = Identity(%x.wide)"]
    both = [0, 0, *(begin for begin, _ in pads), 0, 0, *(end for _, end in pads)]
    return [f"%padded = Pad(%x.wide, {both}, {value})"]


def windows_line(axes: Sequence[WindowAxis]) -> str:
    """Compute `%windows` [N, C, *windows, *kernel] from `%padded`."""
    kernel, strides = [axis.kernel for axis in axes], [axis.stride for axis in axes]
    dilations = [axis.dilation for axis in axes]
    return (
        f"%windows = nncdbg.Windows(%padded, kernel_shape={kernel}, strides={strides}, dilations={dilations})"
    )


def _spread(shapes: Sequence[Sequence[int]], result: Sequence[int]) -> int:
    """Bound the number of products per element of a ConvTranspose with weight [C, M / group, *kernel]."""
    return math.prod(shapes[1]) // max(1, shapes[1][1])


@op(
    "Conv",
    since=1,
    infer=conv_types,
    formula=conv_formula,
    vjp=gradients.conv,
    accepts_out=True,
    influence=probed(0, 1, 2),
    terms=lambda shapes, result: math.prod(shapes[1][1:]),
    unit_axis=1,
    cause="sums.conv",
    remark=remarks.terms,
    zeros="pointwise.underflow",
)
def conv(
    xp: ModuleType, x: Any, weight: Any, bias: Any = None, *, group: int, out: Any = None, **attributes: Any
) -> Any:
    """The sums of products of each window of x [N, C, *sizes] with weight [M, C / group, *kernel]."""
    image, filters, offset = widened(xp, x), widened(xp, weight), widened(xp, bias)
    axes = axes_of(attributes, weight.shape[2:])
    counts = [axis.count(size) for axis, size in zip(axes, x.shape[2:], strict=True)]
    shape = (x.shape[0], weight.shape[0], *counts)
    fits = out is not None and out.dtype == image.dtype and out.flags.c_contiguous
    target = out if fits else xp.empty(shape, image.dtype)
    image = padded(xp, image, [a.padding(n) for a, n in zip(axes, x.shape[2:], strict=True)], 0)
    if all(axis.kernel == 1 for axis in axes):
        seen = image[(..., *(axis.tap(0, n) for axis, n in zip(axes, counts, strict=True)))]
        columns = xp.ascontiguousarray(seen).reshape(x.shape[0], group, weight.shape[1], math.prod(counts))
        rows = filters.reshape(group, weight.shape[0] // group, weight.shape[1])
        xp.matmul(rows, columns, out=target.reshape(x.shape[0], *rows.shape[:2], math.prod(counts)))
    else:
        _by_strips(xp, image, filters, group, axes, counts, target)
    if offset is not None:
        target += offset.reshape(-1, *[1] * len(axes))
    return settled(xp, target, x.dtype, out)


def _by_strips(
    xp: ModuleType,
    x: Any,
    weight: Any,
    group: int,
    axes: Sequence[WindowAxis],
    counts: Sequence[int],
    target: Any,
) -> None:
    """Apply im2col and one matrix product to each strip of the first spatial axis."""
    view = window_view(xp, x, axes, counts, taps_first=True)
    features, depth = weight.shape[0], x.shape[1] * math.prod(weight.shape[2:])
    rest = math.prod(counts[1:])
    filters = weight.reshape(group, features // group, depth // group)
    sums = target.reshape(x.shape[0], group, features // group, counts[0] * rest)
    strips = -(-depth * rest * counts[0] // STRIP_ELEMENTS)
    height = -(-counts[0] // max(min(strips, counts[0]), 1))
    columns = scratch(xp, "columns", (depth * height * rest,), x.dtype)
    before = (slice(None),) * (1 + len(axes))
    for sample in range(x.shape[0]):
        for top in range(0, counts[0], height):
            bottom = min(top + height, counts[0])
            strip = view[sample][(*before, slice(top, bottom))]
            filled = columns[: strip.size]
            xp.copyto(filled.reshape(strip.shape), strip)
            block = sums[sample, :, :, top * rest : bottom * rest]
            xp.matmul(filters, filled.reshape(group, depth // group, -1), out=block)


# ConvTranspose --------------------------------------------------------------------------------


def conv_transpose_types(attributes: Attributes, inputs: Types) -> Types:
    """[N, M, *outputs] from x [N, C, *sizes] and weight [C, M / group, *kernel]."""
    known = _known_shapes(inputs, 3)
    if known is None:
        return [typed(at(inputs, 0), None)]
    x, weight = known
    agree(x[1], weight[0], f"weight needs {weight[0]} channels, but input has {x[1]}", 1)
    features = weight[1] * attributes["group"] if isinstance(weight[1], int) else None
    features = _agreed_features(features, inputs)
    kernel = kernel_sizes(attributes, weight)
    outputs: list[Dim] = [None] * (len(x) - 2)
    if kernel is not None:
        for place, (axis, size) in enumerate(zip(axes_of(attributes, kernel), x[2:], strict=True)):
            if isinstance(size, int):
                given = {key: attributes[key] for key in ("output_padding", "output_shape")}
                only = {key: [value[place]] if value else None for key, value in given.items()}
                outputs[place] = transposed(only, [axis], [size])[0][0]
    return [typed(at(inputs, 0), (x[0], features, *outputs))]


@op(
    "ConvTranspose",
    since=1,
    infer=conv_transpose_types,
    vjp=gradients.conv_transpose,
    influence=probed(0, 1, 2),
    terms=_spread,
    unit_axis=1,
    cause="sums.conv_transpose",
    remark=remarks.terms,
)
def conv_transpose(
    xp: ModuleType, x: Any, weight: Any, bias: Any = None, *, group: int, **attributes: Any
) -> Any:
    """The gradient of Conv as a layer: each element of x spreads weight [C, M / group, *kernel] around it."""
    image, filters, offset = widened(xp, x), widened(xp, weight), widened(xp, bias)
    batch, channels, *sizes = x.shape
    axes = axes_of(attributes, weight.shape[2:])
    each = weight.shape[1]
    rows = filters.reshape(group, channels // group, -1).swapaxes(1, 2)
    spread = xp.matmul(rows, image.reshape(batch, group, channels // group, math.prod(sizes)))
    spread = spread.reshape(batch, group * each, *weight.shape[2:], *sizes)
    places = transposed(attributes, axes, sizes)
    reach = [(n - 1) * axis.stride + axis.extent for axis, n in zip(axes, sizes, strict=True)]
    whole = [max(most, cut + output) for most, (output, cut) in zip(reach, places, strict=True)]
    sums = xp.zeros((batch, group * each, *whole), image.dtype)
    for index, place in taps(axes, sizes):
        sums[place] += spread[(slice(None), slice(None), *index)]
    result = sums[(..., *(slice(cut, cut + output) for output, cut in places))]
    if offset is not None:
        result = result + offset.reshape(-1, *[1] * len(axes))
    return xp.ascontiguousarray(settled(xp, result, x.dtype))


def conv_integer_types(attributes: Attributes, inputs: Types) -> Types:
    """The types of Conv, in i32."""
    found = conv_types(attributes, [at(inputs, 0), at(inputs, 1)])[0]
    return [TensorType("i32", found.shape if found else None)]


@op("ConvInteger", since=10, infer=conv_integer_types, influence=counted(0, 1), unit_axis=1)
def conv_integer(
    xp: ModuleType, x: Any, weight: Any, x_zero: Any = None, weight_zero: Any = None, **attributes: Any
) -> Any:
    """Conv of 8-bit integers, less their zero points, in i32.

    Computed in f64, which represents every such sum exactly.
    """
    image, filters = x.astype(xp.float64), weight.astype(xp.float64)
    if x_zero is not None:
        image -= x_zero
    if weight_zero is not None:
        filters -= weight_zero.reshape(-1, *[1] * (weight.ndim - 1))
    return conv(xp, image, filters, **attributes).astype(xp.int32)


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
    shape, biased = [batch, results, *places], at(inputs, 3) is not None
    mask, bias = ["%columns = Identity(%sampled)"], list[str]()
    if at(inputs, 4) is not None:
        mask = [f"%masks = Reshape(%mask.wide, {[batch * outer, 1, *rows]})"]
        mask.append("%columns = Mul(%sampled, %masks)")
    if biased:
        bias = [f"%bias = Reshape(%B.wide, {[-1, *[1] * axes]})", "%Y.wide = Add(%unbiased, %bias)"]
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
        *mask,
        f"%windows = Reshape(%columns, {[batch, group, parts, prod(places)]})",
        f"%weights = Reshape(%W.wide, {[group, results // group, parts]})",
        "%products = MatMul(%weights, %windows)",
        f"%{'unbiased' if biased else 'Y.wide'} = Reshape(%products, {shape})",
        *bias,
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
