"""Pools over 8-bit integers with a scale and a zero point, bit-equal to onnxruntime's CPU kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from nncdbg.engine.ops import contracts
from nncdbg.engine.ops.declaration import composite
from nncdbg.engine.ops.formula import cast, sizes_at
from nncdbg.engine.ops.integer_faults import divides_by_scale
from nncdbg.engine.ops.microsoft.composing import channels_first, channels_last, formula
from nncdbg.engine.ops.microsoft.quantizing import (
    dequantized,
    element_of,
    given,
    requantized,
    saturated,
    scalars,
    shifted,
)
from nncdbg.engine.ops.pooling import divisors, paddings, pool_shape, window_numbers
from nncdbg.engine.ops.types import Attributes, Shape, Types, at, one_per_plane, shape_at, shaped, typed
from nncdbg.engine.ops.windows import axes_of

_OPERANDS = ["x", "x_scale", "x_zero", "y_scale", "y_zero"]


def in_channels_first(
    infer: Callable[[Attributes, Types], Shape | None],
) -> Callable[[Attributes, Types], Shape | None]:
    """Adapt a rule for [N, C, ...] to an op that takes [N, ..., C] if `channels_last` is set."""

    def shape(attributes: Attributes, types: Types) -> Shape | None:
        x = shape_at(types, 0)
        if x is None or not attributes["channels_last"]:
            return infer(attributes, types)
        moved = typed(at(types, 0), tuple(x[axis] for axis in channels_first(len(x))))
        result = infer(attributes, [moved, *types[1:]])
        return None if result is None else tuple(result[axis] for axis in channels_last(len(x)))

    return shape


@composite(
    "com.microsoft.QLinearGlobalAveragePool",
    infer=shaped(in_channels_first(one_per_plane)),
    integer_fault=divides_by_scale(3),
    contract=contracts.positive_scales(1, 3),
)
def qlinear_global_average_pool(attributes: Attributes, types: Types) -> str:
    """The mean of each plane: an exact integer sum, scaled once."""
    shape = sizes_at(types, 0)
    axes = list(range(1, len(shape) - 1)) if attributes["channels_last"] else list(range(2, len(shape)))
    count = 1
    for axis in axes:
        count *= shape[axis]
    lines = [
        *scalars(types, 1, _OPERANDS[1:]),
        *shifted("centred", "x", "i32", "x_zero_one"),
        f"%sum = ReduceSum(%centred, {axes})",
        f"%divisor = Mul(%y_scale_one, {count}.0)",
        "%ratio = Div(%x_scale_one, %divisor)",
        *requantized("y", "sum", "ratio", "y_zero_one", element_of(types, 0)),
    ]
    return formula("QLinearGlobalAveragePool", _OPERANDS, types, lines)


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


@composite(
    "com.microsoft.QLinearAveragePool",
    infer=shaped(in_channels_first(pool_shape)),
    integer_fault=divides_by_scale(3),
    contract=contracts.positive_scales(1, 3),
)
def qlinear_average_pool(attributes: Attributes, types: Types) -> str:
    """AveragePool in f32 between a dequantization and a quantization that adds the zero point first."""
    shape = sizes_at(types, 0)
    last, rank = bool(attributes["channels_last"]), len(shape)
    planes = [shape[axis] for axis in channels_first(rank)] if last else list(shape)
    lines = [
        *scalars(types, 1, _OPERANDS[1:]),
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
    return formula("QLinearAveragePool", _OPERANDS, types, lines)
