"""Conv, MatMul and Gemm over 8-bit integers: an exact sum in i32, then one factor and one rounding."""

from __future__ import annotations

import math

from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops import contracts
from nncdbg.engine.ops.convolution import conv_types
from nncdbg.engine.ops.declaration import composite
from nncdbg.engine.ops.formula import cast, sizes_at, type_at
from nncdbg.engine.ops.gradient import nothing
from nncdbg.engine.ops.integer_faults import divides_by_scale
from nncdbg.engine.ops.matrix import gemm_types, matmul_shape
from nncdbg.engine.ops.microsoft.composing import channels_first, channels_last, formula, stated
from nncdbg.engine.ops.microsoft.convolution import WINDOWS
from nncdbg.engine.ops.microsoft.quantized_pools import in_channels_first
from nncdbg.engine.ops.microsoft.quantizing import element_of, given, requantized, scalar
from nncdbg.engine.ops.types import Attributes, Shape, Types, at, shape_at, typed
from nncdbg.ir.records import TensorType


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


@composite(
    "QLinearConv",
    since=10,
    infer=lambda a, types: _like_zero(7, _conv_shape(a, types), types),
    integer_fault=divides_by_scale(6),
    contract=contracts.positive_scales(1, 4, 6),
)
def qlinear_conv(attributes: Attributes, types: Types) -> str:
    """Conv of 8-bit integers with a scale and a zero point for x, weight (also per channel) and result."""
    return formula("QLinearConv", _CONV, types, _conv_lines(attributes, types, "x", "y"))


_placed = in_channels_first(_conv_shape)


@composite(
    "com.microsoft.QLinearConv",
    infer=lambda a, types: _like_zero(7, _placed(a, types), types),
    integer_fault=divides_by_scale(6),
    contract=contracts.positive_scales(1, 4, 6),
)
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


def _matmul_types(attributes: Attributes, types: Types) -> Types:
    return _like_zero(7, matmul_shape(shape_at(types, 0), shape_at(types, 3)), types)


@composite(
    "QLinearMatMul",
    since=10,
    infer=_matmul_types,
    vjp=nothing,
    integer_fault=divides_by_scale(6),
    contract=contracts.positive_scales(1, 4, 6),
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


@composite(
    "com.microsoft.QGemm",
    infer=_qgemm_types,
    integer_fault=divides_by_scale(7),
    contract=contracts.positive_scales(1, 4, 7),
)
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


def _to_float_types(attributes: Attributes, types: Types) -> Types:
    return [typed(at(types, 2), matmul_shape(shape_at(types, 0), shape_at(types, 1)))]


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
    "com.microsoft.MatMulIntegerToFloat", infer=_to_float_types, contract=contracts.positive_scales(2, 3)
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


def _dynamic_types(attributes: Attributes, types: Types) -> Types:
    return [typed(at(types, 0), matmul_shape(shape_at(types, 0), shape_at(types, 1)))]


@composite("com.microsoft.DynamicQuantizeMatMul", infer=_dynamic_types, contract=contracts.positive_scales(2))
def dynamic_quantize_matmul(attributes: Attributes, types: Types) -> str:
    """A quantized to u8 by its own range, times b, in f32; plus a bias."""
    names = ["a", "b", "b_scale", "b_zero", "bias"]
    lines = [
        "%codes, %a_factor, %a_zero = DynamicQuantizeLinear(%a)",
        f"%sums = MatMulInteger(%codes, %b, %a_zero, {given(types, 3, '%b_zero') or '_'})",
        *_factor_lines(types, 2, 4),
    ]
    return formula("DynamicQuantizeMatMul", names, types, lines)


@composite(
    "com.microsoft.MatMulInteger16",
    infer=lambda attributes, types: [TensorType("i32", matmul_shape(shape_at(types, 0), shape_at(types, 1)))],
)
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


@composite(
    "com.microsoft.QuantizeLinear",
    infer=_quantize_types,
    integer_fault=divides_by_scale(1),
    contract=contracts.positive_scales(1),
)
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
