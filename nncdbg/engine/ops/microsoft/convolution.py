"""Conv fused with a residual and an activation; Conv and MaxPool with the channels in the last axis."""

from __future__ import annotations

from nncdbg.engine.ops.convolution import conv_types
from nncdbg.engine.ops.declaration import composite
from nncdbg.engine.ops.formula import sizes_at
from nncdbg.engine.ops.gates import activation_lines
from nncdbg.engine.ops.microsoft.composing import (
    activation_of,
    channels_first,
    channels_last,
    formula,
    stated,
)
from nncdbg.engine.ops.pooling import pool_shape
from nncdbg.engine.ops.types import Attributes, Shape, Types, at, shape_at, shaped, typed

WINDOWS = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
"""The attributes of Conv."""


@composite("com.microsoft.FusedConv", infer=conv_types)
def fused_conv(attributes: Attributes, types: Types) -> str:
    """Conv of x, plus z of the shape of the result, then an activation."""
    given = "%x, %weight, %bias" if at(types, 2) is not None else "%x, %weight"
    lines = [f"%conv = Conv({given}{stated(attributes, WINDOWS)})"]
    summed = "%conv"
    if at(types, 3) is not None:
        lines.append("%sum = Add(%conv, %z)")
        summed = "%sum"
    name, parameters = activation_of(attributes)
    lines += activation_lines(name, summed, "%y", parameters)
    return formula("FusedConv", ["x", "weight", "bias", "z"], types, lines)


# With channels last -----------------------------------------------------------------------------


def _turned(types: Types, *, weight: bool) -> Types:
    """Return the types of the operands with channels first."""
    x, filters = shape_at(types, 0), shape_at(types, 1)
    if x is None or filters is None:
        return [typed(at(types, 0), None), *types[1:]]
    image = tuple(x[axis] for axis in channels_first(len(x)))
    ordered = tuple(filters[axis] for axis in channels_first(len(filters))) if weight else filters
    return [typed(at(types, 0), image), typed(at(types, 1), ordered), *types[2:]]


def _last_types(attributes: Attributes, types: Types, *, weight: bool) -> Types:
    found = conv_types(attributes, _turned(types, weight=weight))[0]
    if found is None or found.shape is None:
        return [found]
    return [typed(found, tuple(found.shape[axis] for axis in channels_last(len(found.shape))))]


@composite("com.microsoft.NhwcFusedConv", infer=lambda a, types: _last_types(a, types, weight=False))
def nhwc_fused_conv(attributes: Attributes, types: Types) -> str:
    """FusedConv of x and z [N, H, W, C], with a weight [M, C / group, H, W]."""
    rank = len(sizes_at(types, 0))
    given = "%planes, %weight, %bias" if at(types, 2) is not None else "%planes, %weight"
    lines = [
        f"%planes = Transpose(%x, perm={channels_first(rank)})",
        f"%conv = Conv({given}{stated(attributes, WINDOWS)})",
        f"%turned = Transpose(%conv, perm={channels_last(rank)})",
    ]
    summed = "%turned"
    if at(types, 3) is not None:
        lines.append("%sum = Add(%turned, %z)")
        summed = "%sum"
    name, parameters = activation_of(attributes)
    lines += activation_lines(name, summed, "%y", parameters)
    return formula("NhwcFusedConv", ["x", "weight", "bias", "z"], types, lines)


@composite("com.microsoft.NhwcConv", infer=lambda a, types: _last_types(a, types, weight=True))
def nhwc_conv(attributes: Attributes, types: Types) -> str:
    """Conv of x [N, H, W, C] with a weight [M, H, W, C / group]."""
    rank = len(sizes_at(types, 0))
    given = "%planes, %filters, %bias" if at(types, 2) is not None else "%planes, %filters"
    lines = [
        f"%planes = Transpose(%x, perm={channels_first(rank)})",
        f"%filters = Transpose(%weight, perm={channels_first(rank)})",
        f"%conv = Conv({given}{stated(attributes, WINDOWS)})",
        f"%y = Transpose(%conv, perm={channels_last(rank)})",
    ]
    return formula("NhwcConv", ["x", "weight", "bias"], types, lines)


def _pool_shape(attributes: Attributes, types: Types) -> Shape | None:
    x = shape_at(types, 0)
    if x is None:
        return None
    moved = typed(at(types, 0), tuple(x[axis] for axis in channels_first(len(x))))
    found = pool_shape(attributes, [moved])
    return None if found is None else tuple(found[axis] for axis in channels_last(len(x)))


@composite("com.microsoft.NhwcMaxPool", infer=shaped(_pool_shape))
def nhwc_max_pool(attributes: Attributes, types: Types) -> str:
    """MaxPool of x [N, H, W, C] in 8 bits."""
    rank = len(sizes_at(types, 0))
    windows = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")
    lines = [
        f"%planes = Transpose(%x, perm={channels_first(rank)})",
        f"%pooled = MaxPool(%planes{stated(attributes, windows)})",
        f"%y = Transpose(%pooled, perm={channels_last(rank)})",
    ]
    return formula("NhwcMaxPool", ["x"], types, lines)
