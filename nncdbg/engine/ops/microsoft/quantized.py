"""Pointwise ops, selections, pools and Softmax over 8-bit integers with scales and zero points.

Every result is bit-equal to onnxruntime's CPU kernel, so formulas round at exactly the same points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from nncdbg.dtypes import NUMPY, ONNX
from nncdbg.engine.ops import contracts
from nncdbg.engine.ops.contracts import divides_by_scale
from nncdbg.engine.ops.declaration import Formula, composite
from nncdbg.engine.ops.formula import cast, channels_first, channels_last, formula, sizes_at, type_at
from nncdbg.engine.ops.pooling import divisors, paddings, pool_shape, window_numbers
from nncdbg.engine.ops.types import (
    Attributes,
    Infer,
    Shape,
    Types,
    at,
    broadcast_shapes,
    normal_axis,
    one_per_plane,
    reduced_shape,
    same_as,
    shape_at,
    shaped,
    total,
    typed,
)
from nncdbg.engine.ops.windows import axes_of
from nncdbg.errors import GraphError
from nncdbg.ir.records import TensorType


def scalar(target: str, types: Types, index: int, source: str) -> str:
    """Compute `%target`: the single element of operand `index`, without axes."""
    if math.prod(sizes_at(types, index)) != 1:
        raise GraphError(f"{source} has shape {list(sizes_at(types, index))}, expected one element")
    return f"%{target} = Squeeze(%{source})" if sizes_at(types, index) else f"%{target} = Identity(%{source})"


def scalars(types: Types, first: int, names: Sequence[str]) -> list[str]:
    """Compute `%name_one` for each given operand from `first` on."""
    present = [(index, name) for index, name in enumerate(names, first) if name and at(types, index)]
    return [scalar(f"{name}_one", types, index, name) for index, name in present]


def shifted(target: str, source: str, dtype: str, zero: str | None) -> list[str]:
    """Compute `%target` = source - zero, in `dtype`, which can represent both."""
    if zero is None:
        return [cast(target, source, dtype)]
    return [
        cast(f"{target}_from", source, dtype),
        cast(f"{target}_zero", zero, dtype),
        f"%{target} = Sub(%{target}_from, %{target}_zero)",
    ]


def dequantized(target: str, source: str, scale: str, zero: str | None) -> str:
    """Compute `%target` = (source - zero) scale."""
    operands = [source, scale, *([zero] if zero is not None else [])]
    return f"%{target} = DequantizeLinear({', '.join(f'%{name}' for name in operands)})"


def quantized(target: str, source: str, scale: str, zero: str | None, dtype: str) -> str:
    """Compute `%target` = round(source / scale) + zero, saturated to `dtype`."""
    if zero is not None:
        return f"%{target} = QuantizeLinear(%{source}, %{scale}, %{zero})"
    return f"%{target} = QuantizeLinear(%{source}, %{scale}, output_dtype={ONNX[dtype]})"


def limits(dtype: str) -> tuple[int, int]:
    """Return the least and the greatest value of an 8-bit or 16-bit integer type."""
    info = np.iinfo(NUMPY[dtype])
    return int(info.min), int(info.max)


def saturated(target: str, source: str, dtype: str) -> list[str]:
    """Compute `%target` in `dtype` from an integral f32."""
    low, high = limits(dtype)
    return [f"%{target}_cut = Clip(%{source}, {low}.0, {high}.0)", cast(target, f"{target}_cut", dtype)]


def requantized(
    target: str, product: str, ratio: str, zero: str | None, dtype: str, *, zero_first: bool = False
) -> list[str]:
    """Compute `%target` = round(product ratio) + zero, saturated.

    `product` is an i32, `ratio` an f32; `zero_first` adds the zero before rounding.
    """
    real, scaled, whole = f"{target}_real", f"{target}_scaled", f"{target}_whole"
    lines = [cast(real, product, "f32"), f"%{scaled} = Mul(%{real}, %{ratio})"]
    if zero is None:
        return [*lines, f"%{whole} = Round(%{scaled})", *saturated(target, whole, dtype)]
    shift, moved = f"{target}_shift", f"{target}_moved"
    lines.append(cast(shift, zero, "f32"))
    if zero_first:
        lines += [f"%{moved} = Add(%{scaled}, %{shift})", f"%{whole} = Round(%{moved})"]
        return [*lines, *saturated(target, whole, dtype)]
    lines += [f"%{whole} = Round(%{scaled})", f"%{moved} = Add(%{whole}, %{shift})"]
    return [*lines, *saturated(target, moved, dtype)]


def given(types: Types, index: int, name: str) -> str | None:
    """Return `name`, or None if operand `index` is not given."""
    return name if at(types, index) is not None else None


def element_of(types: Types, index: int) -> str:
    """Return the element type of an operand."""
    known: TensorType = type_at(types, index)
    return known.dtype


def quantized_op(name: str, infer: Infer, *scales: int, **fields: Any) -> Callable[[Formula], Formula]:
    """Declare an op with `scales` among its operands; it divides by the last one, that of the result."""
    fault, contract = divides_by_scale(scales[-1]), contracts.positive_scales(*scales)
    return composite(name, infer=infer, integer_fault=fault, contract=contract, **fields)


# Sums and products ------------------------------------------------------------------------------

_BINARY = ["a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "y_scale", "y_zero"]


def _binary_types(attributes: Attributes, types: Types) -> Types:
    return [typed(at(types, 0), broadcast_shapes([shape_at(types, 0), shape_at(types, 3)]))]


@quantized_op("com.microsoft.QLinearAdd", _binary_types, 1, 4, 6)
def qlinear_add(attributes: Attributes, types: Types) -> str:
    """a + b, each quantized: the fixed part, then b and a by one fused multiply-add each."""
    lines = [
        *scalars(types, 1, ["a_scale", "a_zero"]),
        *scalars(types, 4, ["b_scale", "b_zero", "y_scale", "y_zero"]),
        "%a_ratio = Div(%a_scale_one, %y_scale_one)",
        "%b_ratio = Div(%b_scale_one, %y_scale_one)",
        *(cast(f"{name}_wide", f"{name}_ratio", "f64") for name in "ab"),
        *_fixed_lines(types),
        cast("b_real", "b", "f64"),
        cast("a_real", "a", "f64"),
        *_fused("first", "b", "fixed"),
        *_fused("second", "a", "first"),
        "%whole = Round(%second)",
        *saturated("y", "whole", element_of(types, 0)),
    ]
    return formula("QLinearAdd", _BINARY, types, lines)


def _fused(target: str, factor: str, addend: str) -> list[str]:
    """Compute `%target` = ratio factor + addend, rounded to f32 once: the product is exact in f64."""
    return [
        f"%{target}_product = Mul(%{factor}_wide, %{factor}_real)",
        cast(f"{addend}_real", addend, "f64"),
        f"%{target}_sum = Add(%{target}_product, %{addend}_real)",
        cast(target, f"{target}_sum", "f32"),
    ]


def _fixed_lines(types: Types) -> list[str]:
    """Compute `%fixed`: the contribution of the zero points to the result, in f32."""
    shifts = [
        cast(f"{name}_shift", f"{name}_zero_one", "f32")
        if at(types, index)
        else f"%{name}_shift: f32[] = 0.0"
        for name, index in (("a", 2), ("b", 5), ("y", 7))
    ]
    return [
        *shifts,
        "%b_offset = Mul(%b_ratio, %b_shift)",
        cast("a_shift_wide", "a_shift", "f64"),
        "%a_offset = Mul(%a_wide, %a_shift_wide)",
        cast("b_offset_wide", "b_offset", "f64"),
        "%offset_sum = Add(%a_offset, %b_offset_wide)",
        cast("offset", "offset_sum", "f32"),
        "%fixed = Sub(%y_shift, %offset)",
    ]


@quantized_op("com.microsoft.QLinearMul", _binary_types, 1, 4, 6)
def qlinear_mul(attributes: Attributes, types: Types) -> str:
    """a b, each quantized: an exact integer product, scaled once."""
    lines = [
        *scalars(types, 1, ["a_scale", "a_zero"]),
        *scalars(types, 4, ["b_scale", "b_zero", "y_scale", "y_zero"]),
        *shifted("left", "a", "i32", given(types, 2, "a_zero_one")),
        *shifted("right", "b", "i32", given(types, 5, "b_zero_one")),
        "%product = Mul(%left, %right)",
        "%scales = Mul(%a_scale_one, %b_scale_one)",
        "%ratio = Div(%scales, %y_scale_one)",
        *requantized(
            "y", "product", "ratio", given(types, 7, "y_zero_one"), element_of(types, 0), zero_first=True
        ),
    ]
    return formula("QLinearMul", _BINARY, types, lines)


# By a table of 256 values -----------------------------------------------------------------------

_UNARY = ["x", "x_scale", "x_zero", "y_scale", "y_zero"]


def _through_floats(name: str, types: Types, lines: Sequence[str]) -> str:
    """Dequantize to `%real`, apply `lines` to get `%result`, and quantize."""
    body = [
        *scalars(types, 1, _UNARY[1:]),
        dequantized("real", "x", "x_scale_one", given(types, 2, "x_zero_one")),
        *lines,
        quantized("y", "result", "y_scale_one", given(types, 4, "y_zero_one"), element_of(types, 0)),
    ]
    return formula(name, _UNARY, types, body)


@quantized_op("com.microsoft.QLinearSigmoid", same_as(0), 1, 3)
def qlinear_sigmoid(attributes: Attributes, types: Types) -> str:
    """Sigmoid, dequantized and quantized around it."""
    return _through_floats("QLinearSigmoid", types, ["%result = Sigmoid(%real)"])


@quantized_op("com.microsoft.QLinearLeakyRelu", same_as(0), 1, 3)
def qlinear_leaky_relu(attributes: Attributes, types: Types) -> str:
    """LeakyRelu, dequantized and quantized around it."""
    line = f"%result = LeakyRelu(%real, alpha={attributes['alpha']})"
    return _through_floats("QLinearLeakyRelu", types, [line])


@quantized_op("com.microsoft.QLinearSoftmax", same_as(0), 1, 3)
def qlinear_softmax(attributes: Attributes, types: Types) -> str:
    """Softmax with integer exponentials; before opset 13 over all axes from `axis` on.

    The inverse of the result's scale is truncated to an integer, as in onnxruntime: a scale of 1 / 256 is
    exact, others shift the result.
    """
    shape = sizes_at(types, 0)
    first = normal_axis(attributes["axis"], len(shape))
    axes = [first] if attributes["opset"] >= 13 else list(range(first, len(shape)))
    length = prod(shape[axis] for axis in axes)
    units = min((2**32 - 1) / max(length, 1), float(2**23 - 1))
    lines = [
        *scalars(types, 1, _UNARY[1:]),
        cast("wide", "x", "f64"),
        cast("step", "x_scale_one", "f64"),
        f"%top = ReduceMax(%wide, {axes})",
        "%below = Sub(%wide, %top)",
        "%power = Mul(%below, %step)",
        "%exp = Exp(%power)",
        f"%scaled_exp = Mul(%exp, {units})",
        "%units = Round(%scaled_exp)",
        f"%sum = ReduceSum(%units, {axes})",
        cast("part", "units", "f32"),
        cast("total", "sum", "f32"),
        "%inverse = Reciprocal(%y_scale_one)",
        "%levels = Floor(%inverse)",
        "%product = Mul(%part, %levels)",
        "%ratio = Div(%product, %total)",
        "%whole = Round(%ratio)",
        cast("y_shift", "y_zero_one", "f32"),
        "%moved = Add(%whole, %y_shift)",
        *saturated("y", "moved", element_of(types, 0)),
    ]
    return formula("QLinearSoftmax", _UNARY, types, lines)


def _reduced(attributes: Attributes, types: Types) -> Shape | None:
    return reduced_shape(shape_at(types, 0), attributes["axes"], bool(attributes["keepdims"]))


@quantized_op("com.microsoft.QLinearReduceMean", shaped(_reduced), 1, 3)
def qlinear_reduce_mean(attributes: Attributes, types: Types) -> str:
    """ReduceMean, dequantized and quantized around it."""
    axes, keep = list(attributes["axes"]), attributes["keepdims"]
    return _through_floats(
        "QLinearReduceMean", types, [f"%result = ReduceMean(%real, {axes}, keepdims={keep})"]
    )


# Selection and joining ---------------------------------------------------------------------------


@quantized_op(
    "com.microsoft.QLinearWhere",
    lambda attributes, types: [
        typed(at(types, 1), broadcast_shapes([shape_at(types, index) for index in (0, 1, 4)]))
    ],
    2,
    5,
    7,
)
def qlinear_where(attributes: Attributes, types: Types) -> str:
    """x where the condition is true, else y, both requantized to the scale of the result."""
    names = ["condition", "x", "x_scale", "x_zero", "y", "y_scale", "y_zero", "z_scale", "z_zero"]
    lines = [
        *scalars(types, 2, names[2:4]),
        *scalars(types, 5, names[5:]),
        dequantized("left", "x", "x_scale_one", "x_zero_one"),
        dequantized("right", "y", "y_scale_one", "y_zero_one"),
        "%chosen = Where(%condition, %left, %right)",
        quantized("z", "chosen", "z_scale_one", "z_zero_one", element_of(types, 1)),
    ]
    return formula("QLinearWhere", names, types, lines, ["z"])


def _concat_types(attributes: Attributes, types: Types) -> Types:
    """The tensors are every third operand from the third on."""
    shapes = [shape_at(types, index) for index in range(2, len(types), 3)]
    known = [shape for shape in shapes if shape is not None]
    zero = at(types, 1)
    if zero is None or not known or len(known) < len(shapes):
        return [typed(zero, None)]
    axis = normal_axis(attributes["axis"], len(known[0]))
    joined = total(shape[axis] for shape in known)
    return [TensorType(zero.dtype, (*known[0][:axis], joined, *known[0][axis + 1 :]))]


@composite(
    "com.microsoft.QLinearConcat",
    infer=_concat_types,
    integer_fault=divides_by_scale(0),
    contract=contracts.joined_scales,
)
def qlinear_concat(attributes: Attributes, types: Types) -> str:
    """Tensors with a scale and a zero point each, requantized to those of the result and joined."""
    count = (len(types) - 2) // 3
    names = ["y_scale", "y_zero"]
    names += [f"x{part}{kind}" for part in range(count) for kind in ("", "_scale", "_zero")]
    lines = scalars(types, 0, names[:2])
    parts = []
    for part in range(count):
        x = f"x{part}"
        lines += scalars(types, 3 + 3 * part, [f"{x}_scale", f"{x}_zero"])
        lines.append(dequantized(f"{x}_real", x, f"{x}_scale_one", f"{x}_zero_one"))
        lines.append(quantized(f"{x}_new", f"{x}_real", "y_scale_one", "y_zero_one", element_of(types, 1)))
        parts.append(f"%{x}_new")
    lines.append(f"%y = Concat({', '.join(parts)}, axis={attributes['axis']})")
    return formula("QLinearConcat", names, types, lines)


def in_channels_first(
    infer: Callable[[Attributes, Types], Shape | None], *, always: bool = False
) -> Callable[[Attributes, Types], Shape | None]:
    """Adapt a rule for [N, C, ...] to an op that takes [N, ..., C], if `channels_last` is set or `always`."""

    def shape(attributes: Attributes, types: Types) -> Shape | None:
        x = shape_at(types, 0)
        if x is None or not (always or attributes["channels_last"]):
            return infer(attributes, types)
        moved = typed(at(types, 0), tuple(x[axis] for axis in channels_first(len(x))))
        result = infer(attributes, [moved, *types[1:]])
        return None if result is None else tuple(result[axis] for axis in channels_last(len(x)))

    return shape


@quantized_op("com.microsoft.QLinearGlobalAveragePool", shaped(in_channels_first(one_per_plane)), 1, 3)
def qlinear_global_average_pool(attributes: Attributes, types: Types) -> str:
    """The mean of each plane: an exact integer sum, scaled once."""
    shape = sizes_at(types, 0)
    axes = list(range(1, len(shape) - 1)) if attributes["channels_last"] else list(range(2, len(shape)))
    count = prod(shape[axis] for axis in axes)
    lines = [
        *scalars(types, 1, _UNARY[1:]),
        *shifted("centred", "x", "i32", "x_zero_one"),
        f"%sum = ReduceSum(%centred, {axes})",
        f"%divisor = Mul(%y_scale_one, {count}.0)",
        "%ratio = Div(%x_scale_one, %divisor)",
        *requantized("y", "sum", "ratio", "y_zero_one", element_of(types, 0)),
    ]
    return formula("QLinearGlobalAveragePool", _UNARY, types, lines)


def _average_lines(attributes: Attributes, shape: Sequence[int]) -> list[str]:
    """Compute `%average` of `%planes` [N, C, ...]; elements of a window are added in row order."""
    axes = axes_of(attributes, attributes["kernel_shape"])
    pads, counts = paddings(axes, shape[2:]), window_numbers(axes, shape[2:])
    both = [0, 0, *(begin for begin, _ in pads), 0, 0, *(end for _, end in pads)]
    spatial = list(range(2, len(shape)))
    lines = [f"%padded = Pad(%planes, {both}, 0.0)"]
    places = list(product(*(range(axis.kernel) for axis in axes)))
    for number, place in enumerate(places):
        taps = [axis.tap(index, windows) for axis, index, windows in zip(axes, place, counts, strict=True)]
        starts, ends, steps = ([getattr(tap, key) for tap in taps] for key in ("start", "stop", "step"))
        lines.append(f"%tap{number} = Slice(%padded, {starts}, {ends}, {spatial}, {steps})")
        if number:
            lines.append(f"%sum{number} = Add(%{'sum' if number > 1 else 'tap'}{number - 1}, %tap{number})")
    last = len(places) - 1
    numbers = divisors(attributes, axes, shape[2:]).tolist()
    return [
        *lines,
        f"%divisors: f32{counts} = {numbers}",
        f"%average = Div(%{'sum' if last else 'tap'}{last}, %divisors)",
    ]


@quantized_op("com.microsoft.QLinearAveragePool", shaped(in_channels_first(pool_shape)), 1, 3)
def qlinear_average_pool(attributes: Attributes, types: Types) -> str:
    """AveragePool in f32 between a dequantization and a quantization that adds the zero point first."""
    shape = sizes_at(types, 0)
    last, rank = bool(attributes["channels_last"]), len(shape)
    planes = [shape[axis] for axis in channels_first(rank)] if last else list(shape)
    lines = [
        *scalars(types, 1, _UNARY[1:]),
        dequantized("real", "x", "x_scale_one", given(types, 2, "x_zero_one")),
        f"%planes = Transpose(%real, perm={channels_first(rank)})" if last else "%planes = Identity(%real)",
        *_average_lines(attributes, planes),
        "%scaled = Div(%average, %y_scale_one)",
    ]
    moved = "scaled"
    if at(types, 4) is not None:
        lines += [cast("y_shift", "y_zero_one", "f32"), "%moved = Add(%scaled, %y_shift)"]
        moved = "moved"
    lines += [f"%whole = Round(%{moved})", *saturated("cut", "whole", element_of(types, 0))]
    lines.append(f"%y = Transpose(%cut, perm={channels_last(rank)})" if last else "%y = Identity(%cut)")
    return formula("QLinearAveragePool", _UNARY, types, lines)
