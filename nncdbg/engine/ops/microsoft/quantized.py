"""Pointwise ops, selections, pools and Softmax over 8-bit integers with scales and zero points.

Every result is bit-equal to onnxruntime's CPU kernel, so formulas round at exactly the same points.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from nncdbg.engine.ops import contracts
from nncdbg.engine.ops.declaration import composite
from nncdbg.engine.ops.formula import cast, sizes_at
from nncdbg.engine.ops.integer_faults import divides_by_scale
from nncdbg.engine.ops.microsoft.composing import formula
from nncdbg.engine.ops.microsoft.quantizing import (
    dequantized,
    element_of,
    given,
    quantized,
    requantized,
    saturated,
    scalars,
    shifted,
)
from nncdbg.engine.ops.types import (
    Attributes,
    Shape,
    Types,
    at,
    broadcast_shapes,
    normal_axis,
    reduced_shape,
    same_as,
    shape_at,
    shaped,
    total,
    typed,
)
from nncdbg.ir.records import TensorType

# Sums and products ------------------------------------------------------------------------------

_BINARY = ["a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "y_scale", "y_zero"]


def _binary_types(attributes: Attributes, types: Types) -> Types:
    return [typed(at(types, 0), broadcast_shapes([shape_at(types, 0), shape_at(types, 3)]))]


@composite(
    "com.microsoft.QLinearAdd",
    infer=_binary_types,
    integer_fault=divides_by_scale(6),
    contract=contracts.positive_scales(1, 4, 6),
)
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


@composite(
    "com.microsoft.QLinearMul",
    infer=_binary_types,
    integer_fault=divides_by_scale(6),
    contract=contracts.positive_scales(1, 4, 6),
)
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
            "y",
            "product",
            "ratio",
            given(types, 7, "y_zero_one"),
            element_of(types, 0),
            zero_first=True,
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


@composite(
    "com.microsoft.QLinearSigmoid",
    infer=same_as(0),
    integer_fault=divides_by_scale(3),
    contract=contracts.positive_scales(1, 3),
)
def qlinear_sigmoid(attributes: Attributes, types: Types) -> str:
    """Sigmoid, dequantized and quantized around it."""
    return _through_floats("QLinearSigmoid", types, ["%result = Sigmoid(%real)"])


@composite(
    "com.microsoft.QLinearLeakyRelu",
    infer=same_as(0),
    integer_fault=divides_by_scale(3),
    contract=contracts.positive_scales(1, 3),
)
def qlinear_leaky_relu(attributes: Attributes, types: Types) -> str:
    """LeakyRelu, dequantized and quantized around it."""
    line = f"%result = LeakyRelu(%real, alpha={attributes['alpha']})"
    return _through_floats("QLinearLeakyRelu", types, [line])


@composite(
    "com.microsoft.QLinearSoftmax",
    infer=same_as(0),
    integer_fault=divides_by_scale(3),
    contract=contracts.positive_scales(1, 3),
)
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


@composite(
    "com.microsoft.QLinearReduceMean",
    infer=shaped(_reduced),
    integer_fault=divides_by_scale(3),
    contract=contracts.positive_scales(1, 3),
)
def qlinear_reduce_mean(attributes: Attributes, types: Types) -> str:
    """ReduceMean, dequantized and quantized around it."""
    axes, keep = list(attributes["axes"]), attributes["keepdims"]
    return _through_floats(
        "QLinearReduceMean", types, [f"%result = ReduceMean(%real, {axes}, keepdims={keep})"]
    )


# Selection and joining ---------------------------------------------------------------------------


def _where_types(attributes: Attributes, types: Types) -> Types:
    return [typed(at(types, 1), broadcast_shapes([shape_at(types, index) for index in (0, 1, 4)]))]


@composite(
    "com.microsoft.QLinearWhere",
    infer=_where_types,
    integer_fault=divides_by_scale(7),
    contract=contracts.positive_scales(2, 5, 7),
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
