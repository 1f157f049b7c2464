"""Conv, MatMul and Gemm over 8-bit integers: an exact sum in i32, then one factor and one rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nncdbg.engine.ops import contracts
from nncdbg.engine.ops.convolution import conv_types
from nncdbg.engine.ops.declaration import composite
from nncdbg.engine.ops.formula import (
    cast,
    channels_first,
    channels_last,
    formula,
    sizes_at,
    stated,
    type_at,
    wide_formula,
)
from nncdbg.engine.ops.gradient import nothing
from nncdbg.engine.ops.matrix import gemm_types, matmul_shape, matmul_types, product_shape
from nncdbg.engine.ops.microsoft.convolution import WINDOWS
from nncdbg.engine.ops.microsoft.quantized import (
    element_of,
    given,
    in_channels_first,
    quantized_op,
    requantized,
    scalar,
)
from nncdbg.engine.ops.types import Attributes, Shape, Types, at, fixed, normal_axis, shape_at, typed
from nncdbg.errors import GraphError
from nncdbg.ir.records import Dim, TensorType


def _spread(target: str, types: Types, index: int, source: str, shape: list[int]) -> list[str]:
    """Compute `%target` in f32: one scale, or one per channel in `shape`."""
    known = type_at(types, index)
    count = math.prod(sizes_at(types, index))
    real = source if known.dtype == "f32" else f"{source}_real"
    lines = [] if known.dtype == "f32" else [cast(real, source, "f32")]
    if count == 1:
        return [*lines, f"%{target} = Squeeze(%{real})" if known.shape else f"%{target} = Identity(%{real})"]
    return [*lines, f"%{target} = Reshape(%{real}, {shape})"]


# Conv -------------------------------------------------------------------------------------------

_CONV = ["x", "x_scale", "x_zero", "weight", "weight_scale", "weight_zero", "y_scale", "y_zero", "bias"]


def _conv_shape(attributes: Attributes, types: Types) -> Shape | None:
    found = conv_types(attributes, [at(types, 0), at(types, 3), at(types, 8)])[0]
    return None if found is None else found.shape


def _like_zero(index: int, shape: Shape | None, types: Types) -> Types:
    zero = at(types, index)
    return [None if zero is None else TensorType(zero.dtype, shape)]


def _conv_lines(attributes: Attributes, types: Types, x: str, y: str) -> list[str]:
    """Compute `%y` from `%x` [N, C, ...]."""
    rank = len(sizes_at(types, 3))
    ones = [-1, *[1] * (rank - 2)]
    lines = [
        scalar("x_zero_one", types, 2, "x_zero"),
        scalar("y_zero_one", types, 7, "y_zero"),
        f"%sums = ConvInteger(%{x}, %weight, %x_zero_one, %weight_zero{stated(attributes, WINDOWS)})",
        *_spread("x_factor", types, 1, "x_scale", ones),
        *_spread("weight_factor", types, 4, "weight_scale", ones),
        *_spread("y_factor", types, 6, "y_scale", ones),
        "%factors = Mul(%x_factor, %weight_factor)",
        "%ratio = Div(%factors, %y_factor)",
    ]
    product = "sums"
    if at(types, 8) is not None:
        lines += [f"%offset = Reshape(%bias, {ones})", "%whole_sums = Add(%sums, %offset)"]
        product = "whole_sums"
    return [*lines, *requantized(y, product, "ratio", "y_zero_one", element_of(types, 7))]


@quantized_op("QLinearConv", lambda a, types: _like_zero(7, _conv_shape(a, types), types), 1, 4, 6, since=10)
def qlinear_conv(attributes: Attributes, types: Types) -> str:
    """Conv of 8-bit integers with a scale and a zero point for x, weight (also per channel) and result."""
    return formula("QLinearConv", _CONV, types, _conv_lines(attributes, types, "x", "y"))


_placed = in_channels_first(_conv_shape)


@quantized_op("com.microsoft.QLinearConv", lambda a, types: _like_zero(7, _placed(a, types), types), 1, 4, 6)
def qlinear_conv_placed(attributes: Attributes, types: Types) -> str:
    """QLinearConv of ONNX, with the channels in the last axis of x and result if `channels_last` is set."""
    if not attributes["channels_last"]:
        return qlinear_conv(attributes, types)
    rank = len(sizes_at(types, 0))
    lines = [
        f"%planes = Transpose(%x, perm={channels_first(rank)})",
        *_conv_lines(attributes, types, "planes", "result"),
        f"%y = Transpose(%result, perm={channels_last(rank)})",
    ]
    return formula("QLinearConv", _CONV, types, lines)


# MatMul and Gemm --------------------------------------------------------------------------------

_MATMUL = ["a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "y_scale", "y_zero"]


@quantized_op(
    "QLinearMatMul",
    lambda attributes, types: _like_zero(7, matmul_shape(shape_at(types, 0), shape_at(types, 3)), types),
    1,
    4,
    6,
    since=10,
    vjp=nothing,
)
def qlinear_matmul(attributes: Attributes, types: Types) -> str:
    """MatMul of 8-bit integers with a scale and a zero point for a (also per row), b (per column), result."""
    lines = [
        "%sums = MatMulInteger(%a, %b, %a_zero, %b_zero)",
        *_spread("a_factor", types, 1, "a_scale", [-1, 1]),
        *_spread("b_factor", types, 4, "b_scale", [-1]),
        *_spread("y_factor", types, 6, "y_scale", [-1]),
        "%factors = Mul(%a_factor, %b_factor)",
        "%ratio = Div(%factors, %y_factor)",
        scalar("y_zero_one", types, 7, "y_zero"),
        *requantized("y", "sums", "ratio", "y_zero_one", element_of(types, 7)),
    ]
    return formula("QLinearMatMul", _MATMUL, types, lines)


def _qgemm_types(attributes: Attributes, types: Types) -> Types:
    """In f32 without a scale of the result, else in the type of its zero point."""
    found = gemm_types({**attributes, "beta": 1.0}, [at(types, 0), at(types, 3), at(types, 6)])[0]
    shape = None if found is None else found.shape
    return _like_zero(8, shape, types) if at(types, 8) is not None else [TensorType("f32", shape)]


@quantized_op("com.microsoft.QGemm", _qgemm_types, 1, 4, 7)
def qgemm(attributes: Attributes, types: Types) -> str:
    """alpha A B + C of 8-bit integers; C in i32 with the scale of the product.

    Without a scale of the result, the result is in f32.
    """
    names = ["a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "c", "y_scale", "y_zero"]
    left, right = ("%rows" if attributes["transA"] else "%a"), ("%columns" if attributes["transB"] else "%b")
    lines = ["%rows = Transpose(%a, perm=[1, 0])"] if attributes["transA"] else []
    lines += ["%columns = Transpose(%b, perm=[1, 0])"] if attributes["transB"] else []
    lines += [
        f"%sums = MatMulInteger({left}, {right}, %a_zero, %b_zero)",
        *_spread("a_factor", types, 1, "a_scale", [-1]),
        *_spread("b_factor", types, 4, "b_scale", [-1]),
        f"%scaled_factor = Mul(%a_factor, {attributes['alpha']})",
        "%factors = Mul(%scaled_factor, %b_factor)",
    ]
    product = "sums"
    if at(types, 6) is not None:
        lines.append("%whole_sums = Add(%sums, %c)")
        product = "whole_sums"
    if at(types, 7) is None:
        lines += [cast("real", product, "f32"), "%y = Mul(%real, %factors)"]
        return formula("QGemm", names, types, lines)
    lines += [
        *_spread("y_factor", types, 7, "y_scale", [-1]),
        "%ratio = Div(%factors, %y_factor)",
        scalar("y_zero_one", types, 8, "y_zero"),
        *requantized("y", product, "ratio", "y_zero_one", element_of(types, 8)),
    ]
    return formula("QGemm", names, types, lines)


# To floats --------------------------------------------------------------------------------------


def _factor_lines(types: Types, b_index: int, bias: int) -> list[str]:
    """Compute `%y` from `%sums`, `%a_factor`, the scale of b and the bias."""
    lines = [
        *_spread("b_factor", types, b_index, "b_scale", [-1]),
        "%factors = Mul(%a_factor, %b_factor)",
        cast("real", "sums", "f32"),
    ]
    if at(types, bias) is None:
        return [*lines, "%y = Mul(%real, %factors)"]
    return [*lines, "%product = Mul(%real, %factors)", "%y = Add(%product, %bias)"]


@composite(
    "com.microsoft.MatMulIntegerToFloat",
    infer=lambda attributes, types: [typed(at(types, 2), product_shape(attributes, types))],
    contract=contracts.positive_scales(2, 3),
)
def matmul_integer_to_float(attributes: Attributes, types: Types) -> str:
    """MatMulInteger, times both scales (of b also per column), plus a bias."""
    names = ["a", "b", "a_scale", "b_scale", "a_zero", "b_zero", "bias"]
    zeros = [given(types, index, f"%{names[index]}") or "_" for index in (4, 5)]
    lines = [
        f"%sums = MatMulInteger(%a, %b, {', '.join(zeros)})",
        *_spread("a_factor", types, 2, "a_scale", [-1, 1]),
        *_factor_lines(types, 3, 6),
    ]
    return formula("MatMulIntegerToFloat", names, types, lines)


@composite("com.microsoft.DynamicQuantizeMatMul", infer=matmul_types, contract=contracts.positive_scales(2))
def dynamic_quantize_matmul(attributes: Attributes, types: Types) -> str:
    """A quantized to u8 by its own range, times b, in f32; plus a bias."""
    names = ["a", "b", "b_scale", "b_zero", "bias"]
    lines = [
        "%codes, %a_factor, %a_zero = DynamicQuantizeLinear(%a)",
        f"%sums = MatMulInteger(%codes, %b, %a_zero, {given(types, 3, '%b_zero') or '_'})",
        *_factor_lines(types, 2, 4),
    ]
    return formula("DynamicQuantizeMatMul", names, types, lines)


@composite("com.microsoft.MatMulInteger16", infer=fixed("i32", product_shape))
def matmul_integer_16(attributes: Attributes, types: Types) -> str:
    """MatMul of 16-bit integers in i32."""
    lines = [cast("left", "a", "i32"), cast("right", "b", "i32"), "%y = MatMul(%left, %right)"]
    return formula("MatMulInteger16", ["a", "b"], types, lines)


# Quantization of single tensors -----------------------------------------------------------------


def _axis(attributes: Attributes, types: Types) -> str:
    """Return the axis of vector scales; onnxruntime's ops have no default for it."""
    if len(sizes_at(types, 1)) == 0:
        return ""
    if attributes["axis"] is None and math.prod(sizes_at(types, 1)) != 1:
        raise GraphError("per-axis scales need the attribute 'axis'", hint="write axis=... in the call")
    return f", axis={attributes['axis'] or 0}"


def _quantize_types(attributes: Attributes, types: Types) -> Types:
    zero = at(types, 2)
    if len(types) > 2 and zero is None:
        return [None]
    return [TensorType(zero.dtype if zero is not None else "u8", shape_at(types, 0))]


@quantized_op("com.microsoft.QuantizeLinear", _quantize_types, 1)
def quantize_linear(attributes: Attributes, types: Types) -> str:
    """QuantizeLinear of ONNX, including 16-bit and 4-bit results before ONNX had them."""
    operands = "%x, %scale, %zero" if at(types, 2) is not None else "%x, %scale"
    line = f"%y = QuantizeLinear({operands}{_axis(attributes, types)})"
    return formula("QuantizeLinear", ["x", "scale", "zero"], types, [line])


@composite(
    "com.microsoft.DequantizeLinear",
    infer=lambda attributes, types: [typed(at(types, 1), shape_at(types, 0))],
    contract=contracts.quantized_zero,
)
def dequantize_linear(attributes: Attributes, types: Types) -> str:
    """DequantizeLinear of ONNX, including 16-bit and 4-bit operands before ONNX had them."""
    operands = "%x, %scale, %zero" if at(types, 2) is not None else "%x, %scale"
    line = f"%y = DequantizeLinear({operands}{_axis(attributes, types)})"
    return formula("DequantizeLinear", ["x", "scale", "zero"], types, [line])


_BITS = (2, 4, 8)


def unpacked(target: str, source: str, bits: int, shape: Sequence[int]) -> list[str]:
    """Compute `%target` in f32, of `shape`, from the bytes of `%source`; low bits of a byte first."""
    if bits not in _BITS:
        raise GraphError(f"{bits}-bit weights are not supported", hint="use bits=2, 4 or 8")
    whole = f"{target}_bytes"
    lines, parts = [f"%{whole} = Unsqueeze(%{source}, [-1])"], []
    for number in range(8 // bits):
        part = f"{target}_part{number}"
        shifted = whole
        if number:
            shifted = f"{part}_shifted"
            lines.append(f'%{shifted} = BitShift(%{whole}, {number * bits}, direction="RIGHT")')
        lines.append(f"%{part} = BitwiseAnd(%{shifted}, {2**bits - 1})")
        parts.append(f"%{part}")
    return [
        *lines,
        f"%{target}_codes = Concat({', '.join(parts)}, axis=-1)",
        f"%{target}_floats = Cast(%{target}_codes, to=1)",
        f"%{target} = Reshape(%{target}_floats, {list(shape)})",
    ]


def _product_types(attributes: Attributes, types: Types) -> Types:
    a, columns = shape_at(types, 0), attributes["N"]
    return [typed(at(types, 0), None if a is None else (*a[:-1], columns))]


@composite("com.microsoft.MatMulNBits", infer=_product_types)
def matmul_nbits(attributes: Attributes, types: Types) -> str:
    """A times the transpose of a weight [N, K] in blocks along K: (code - zero point) scale; plus a bias.

    Without zero points, the middle code is zero.  `g_idx` gives the block of each of the K columns.
    """
    names = ["a", "b", "scales", "zero_points", "g_idx", "bias"]
    if attributes["weight_prepacked"]:
        raise GraphError(
            "weight_prepacked=1 is not supported", hint="save the model without prepacked weights"
        )
    rows, depth, block, bits = (attributes[key] for key in ("N", "K", "block_size", "bits"))
    blocks = -(-depth // block)
    lines = [
        *unpacked("codes", "b", bits, [rows, blocks, -1]),
        *_zero_lines(types, bits, rows, blocks),
        f"%factors = Reshape(%scales.wide, {[rows, blocks, 1]})",
    ]
    if at(types, 4) is not None:
        lines += [
            f"%flat = Reshape(%codes, {[rows, -1]})",
            f"%columns = Slice(%flat, [0], [{depth}], [1])",
            "%zero_rows = Squeeze(%zeros, [2])",
            "%factor_rows = Squeeze(%factors, [2])",
            "%column_zeros = Gather(%zero_rows, %g_idx, axis=1)",
            "%column_factors = Gather(%factor_rows, %g_idx, axis=1)",
            "%centred = Sub(%columns, %column_zeros)",
            "%weight = Mul(%centred, %column_factors)",
        ]
    else:
        lines += [
            "%centred = Sub(%codes, %zeros)",
            "%scaled = Mul(%centred, %factors)",
            f"%flat = Reshape(%scaled, {[rows, -1]})",
            f"%weight = Slice(%flat, [0], [{depth}], [1])",
        ]
    return wide_formula("MatMulNBits", names, types, [*lines, *_weighted_lines(types, 5)])


def _weighted_lines(types: Types, bias: int) -> list[str]:
    """Compute `%y.wide` = a times the transpose of `%weight`, plus the bias."""
    summed = at(types, bias) is not None
    lines = [
        "%turned = Transpose(%weight, perm=[1, 0])",
        f"%{'product' if summed else 'y.wide'} = MatMul(%a.wide, %turned)",
    ]
    return [*lines, "%y.wide = Add(%product, %bias.wide)"] if summed else lines


def _zero_lines(types: Types, bits: int, rows: int, blocks: int) -> list[str]:
    """Compute `%zeros` [rows, blocks, 1], or broadcastable to it."""
    if at(types, 3) is None:
        return [f"%zeros: f32[1,1,1] = [[[{float(2 ** (bits - 1))}]]]"]
    if element_of(types, 3) != "u8":
        name = "zero_points.wide" if element_of(types, 3) == element_of(types, 0) else "zero_points"
        return [f"%zeros = Reshape(%{name}, {[rows, blocks, 1]})"]
    lines = unpacked("zero_codes", "zero_points", bits, [rows, -1])
    return [
        *lines,
        f"%zero_columns = Slice(%zero_codes, [0], [{blocks}], [1])",
        f"%zeros = Reshape(%zero_columns, {[rows, blocks, 1]})",
    ]


_FP4 = [0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25]
_NF4 = [
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
]


@composite("com.microsoft.MatMulBnb4", infer=_product_types)
def matmul_bnb4(attributes: Attributes, types: Types) -> str:
    """A times the transpose of a weight [N, K] of 4-bit floats (`quant_type` 0: FP4, 1: NF4).

    The weight is flat, in blocks with the largest magnitude of each; the high bits of a byte come first.
    """
    if not attributes["transB"]:
        raise GraphError("transB=0 is not supported", hint="export the model with transB=1")
    rows, depth, block = (attributes[key] for key in ("N", "K", "block_size"))
    table = _NF4 if attributes["quant_type"] == 1 else [*_FP4, *(-number for number in _FP4)]
    lines = [
        f"%table: f32[16] = {table}",
        '%high = BitShift(%b, 4, direction="RIGHT")',
        "%low = BitwiseAnd(%b, 15)",
        "%high_column = Unsqueeze(%high, [-1])",
        "%low_column = Unsqueeze(%low, [-1])",
        "%pairs = Concat(%high_column, %low_column, axis=-1)",
        f"%codes = Reshape(%pairs, {[-1]})",
        "%indices = Cast(%codes, to=7)",
        f"%used = Slice(%indices, [0], [{rows * depth}], [0])",
        "%values = Gather(%table, %used)",
        f"%factor_column = Reshape(%absmax.wide, {[-1, 1]})",
        f"%factor_rows = Expand(%factor_column, {[1, block]})",
        f"%factor_flat = Reshape(%factor_rows, {[-1]})",
        f"%factors = Slice(%factor_flat, [0], [{rows * depth}], [0])",
        "%scaled = Mul(%values, %factors)",
        f"%weight = Reshape(%scaled, {[rows, depth]})",
        *_weighted_lines(types, 3),
    ]
    return wide_formula("MatMulBnb4", ["a", "b", "absmax"], types, lines)


def _gathered_types(attributes: Attributes, types: Types) -> Types:
    data, indices, element = shape_at(types, 0), shape_at(types, 1), at(types, 2)
    if data is None or indices is None:
        return [typed(element, None)]
    axis = normal_axis(attributes["gather_axis"], len(data))
    whole: list[Dim] = list(data)
    if at(types, 0) is not None and element_of(types, 0) == "u8" and isinstance(whole[-1], int):
        whole[-1] *= 8 // attributes["bits"]
    return [typed(element, (*whole[:axis], *indices, *whole[axis + 1 :]))]


@composite("com.microsoft.GatherBlockQuantized", infer=_gathered_types)
def gather_block_quantized(attributes: Attributes, types: Types) -> str:
    """Gather from a table quantized in blocks along `quantize_axis`, dequantized.

    The table is in i4 or u4, or packed into u8 along its last axis, the low bits of a byte first.
    """
    names = ["data", "indices", "scales", "zero_points"]
    shape, scales = list(sizes_at(types, 0)), sizes_at(types, 2)
    bits, block, kind = attributes["bits"], attributes["block_size"], type_at(types, 0).dtype
    if kind not in ("u8", "i4", "u4"):
        raise GraphError(
            f"a table of type {kind} is not supported", hint="run the model with --backend onnxruntime"
        )
    packed = kind == "u8"
    if packed:
        shape[-1] *= 8 // bits
    axis = normal_axis(attributes["quantize_axis"], len(shape))
    lines = unpacked("codes", "data", bits, shape) if packed else ["%codes = Cast(%data, to=1)"]
    spread = [*shape[:axis], scales[axis] * block, *shape[axis + 1 :]]
    lines += _repeated("factors", "scales.wide", scales, axis, block, shape, spread)
    centred = "codes"
    if at(types, 3) is not None:
        lines += (
            unpacked("zero_codes", "zero_points", bits, [*sizes_at(types, 3)[:-1], -1])
            if packed
            else ["%zero_codes = Cast(%zero_points, to=1)"]
        )
        lines.append(f"%zero_used = Slice(%zero_codes, [0], [{scales[-1]}], [-1])")
        lines += _repeated("zeros", "zero_used", scales, axis, block, shape, spread)
        lines.append("%centred = Sub(%codes, %zeros)")
        centred = "centred"
    elif packed:
        lines.append(f"%centred = Sub(%codes, {float(2 ** (bits - 1))})")
        centred = "centred"
    lines += [
        f"%table = Mul(%{centred}, %factors)",
        f"%y.wide = Gather(%table, %indices, axis={attributes['gather_axis']})",
    ]
    return wide_formula("GatherBlockQuantized", names, types, lines, like=2)


def _repeated(
    target: str,
    source: str,
    sizes: Sequence[int],
    axis: int,
    block: int,
    shape: Sequence[int],
    spread: Sequence[int],
) -> list[str]:
    """Compute `%target` of `shape`: repeat each element of `%source` `block` times along `axis`."""
    inner = [*sizes[: axis + 1], block, *sizes[axis + 1 :]]
    return [
        f"%{target}_column = Unsqueeze(%{source}, [{axis + 1}])",
        f"%{target}_rows = Expand(%{target}_column, {inner})",
        f"%{target}_flat = Reshape(%{target}_rows, {list(spread)})",
        f"%{target} = Slice(%{target}_flat, [0], [{shape[axis]}], [{axis}])",
    ]
