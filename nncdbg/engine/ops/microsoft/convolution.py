"""Conv fused with a residual and an activation; Conv and pools with other orders of the channels.

The layout optimization of onnxruntime keeps channels in blocks (NCHWc): a tensor [N, C, H, W] is stored in
memory as [N, C / b, H, W, b]; C is a multiple of the block size b, which depends on the machine that saved
the model.  The formulas restore the order of the axes, compute, and convert the result back.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from nncdbg.engine.ops.convolution import conv_types
from nncdbg.engine.ops.declaration import Formula, composite
from nncdbg.engine.ops.formula import activation_of, channels_first, channels_last, formula, sizes_at, stated
from nncdbg.engine.ops.microsoft.quantized import in_channels_first
from nncdbg.engine.ops.pooling import pool_shape
from nncdbg.engine.ops.recurrent import activation_lines
from nncdbg.engine.ops.types import Attributes, Shape, Types, at, one_per_plane, shape_at, shaped, typed
from nncdbg.errors import GraphError

WINDOWS = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
"""The attributes of Conv."""

_POOL = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")


def _conv_line(attributes: Attributes, types: Types, x: str, weight: str = "%weight") -> str:
    bias = ", %bias" if at(types, 2) is not None else ""
    return f"%conv = Conv({x}, {weight}{bias}{stated(attributes, WINDOWS)})"


def _finished(attributes: Attributes, types: Types, conv: str, residual: str, target: str) -> list[str]:
    """Compute `target` from `conv`: plus the residual, if operand 3 is given, then the activation."""
    summed = at(types, 3) is not None
    name, parameters = activation_of(attributes)
    lines = activation_lines(name, "%sum" if summed else conv, target, parameters)
    return [f"%sum = Add({conv}, {residual})", *lines] if summed else lines


@composite("com.microsoft.FusedConv", infer=conv_types)
def fused_conv(attributes: Attributes, types: Types) -> str:
    """Conv of x, plus z of the shape of the result, then an activation."""
    lines = [_conv_line(attributes, types, "%x"), *_finished(attributes, types, "%conv", "%z", "%y")]
    return formula("FusedConv", ["x", "weight", "bias", "z"], types, lines)


# With channels last -----------------------------------------------------------------------------


def _conv_shape(attributes: Attributes, types: Types) -> Shape | None:
    return shape_at(conv_types(attributes, types), 0)


_channels_last_shape = in_channels_first(_conv_shape, always=True)


def _all_last_shape(attributes: Attributes, types: Types) -> Shape | None:
    """The shape of a Conv with a weight [M, H, W, C / group]."""
    weight = shape_at(types, 1)
    ordered = None if weight is None else tuple(weight[axis] for axis in channels_first(len(weight)))
    return _channels_last_shape(attributes, [at(types, 0), typed(at(types, 1), ordered), *types[2:]])


@composite("com.microsoft.NhwcFusedConv", infer=shaped(_channels_last_shape))
def nhwc_fused_conv(attributes: Attributes, types: Types) -> str:
    """FusedConv of x and z [N, H, W, C], with a weight [M, C / group, H, W]."""
    rank = len(sizes_at(types, 0))
    lines = [
        f"%planes = Transpose(%x, perm={channels_first(rank)})",
        _conv_line(attributes, types, "%planes"),
        f"%turned = Transpose(%conv, perm={channels_last(rank)})",
        *_finished(attributes, types, "%turned", "%z", "%y"),
    ]
    return formula("NhwcFusedConv", ["x", "weight", "bias", "z"], types, lines)


@composite("com.microsoft.NhwcConv", infer=shaped(_all_last_shape))
def nhwc_conv(attributes: Attributes, types: Types) -> str:
    """Conv of x [N, H, W, C] with a weight [M, H, W, C / group]."""
    rank = len(sizes_at(types, 0))
    lines = [
        f"%planes = Transpose(%x, perm={channels_first(rank)})",
        f"%filters = Transpose(%weight, perm={channels_first(rank)})",
        _conv_line(attributes, types, "%planes", "%filters"),
        f"%y = Transpose(%conv, perm={channels_last(rank)})",
    ]
    return formula("NhwcConv", ["x", "weight", "bias"], types, lines)


@composite("com.microsoft.NhwcMaxPool", infer=shaped(in_channels_first(pool_shape, always=True)))
def nhwc_max_pool(attributes: Attributes, types: Types) -> str:
    """MaxPool of x [N, H, W, C] in 8 bits."""
    rank = len(sizes_at(types, 0))
    lines = [
        f"%planes = Transpose(%x, perm={channels_first(rank)})",
        f"%pooled = MaxPool(%planes{stated(attributes, _POOL)})",
        f"%y = Transpose(%pooled, perm={channels_last(rank)})",
    ]
    return formula("NhwcMaxPool", ["x"], types, lines)


_NCHW = [0, 1, 4, 2, 3]
"""From [N, C / b, H, W, b] to [N, C / b, b, H, W]."""

_NCHWC = [0, 1, 3, 4, 2]
"""From [N, C / b, b, H, W] to [N, C / b, H, W, b]."""


@cache
def _machine_block() -> int:
    """Return the block size that onnxruntime chooses on this machine."""
    if platform.machine().lower() in ("arm64", "aarch64"):
        return 16
    found = np.show_config(mode="dicts")["SIMD Extensions"]
    return 16 if {"AVX512F", "X86_V4"} & {*found.get("found", ()), *found.get("baseline", ())} else 8


def block_of(channels: int) -> int:
    """Return the block size of a tensor with this number of channels; GraphError if none fits."""
    for size in (_machine_block(), 8):
        if channels % size == 0:
            return size
    raise GraphError(f"cannot split {channels} channels into blocks: {channels} is not a multiple of 8")


def _ordered(target: str, source: str, shape: Sequence[int]) -> list[str]:
    """Compute `%target` in axis order from `%source` in blocks."""
    batch, channels, *sizes = shape
    block = block_of(channels)
    return [
        f"%{target}_blocks = Reshape(%{source}, {[batch, channels // block, *sizes, block]})",
        f"%{target}_turned = Transpose(%{target}_blocks, perm={_NCHW})",
        f"%{target} = Reshape(%{target}_turned, {list(shape)})",
    ]


def _in_blocks(target: str, source: str, shape: Sequence[int], block: int) -> list[str]:
    """Compute `%target` in blocks from `%source` in axis order; a size of `shape` may be -1."""
    batch, channels, *sizes = shape
    return [
        f"%{target}_parts = Reshape(%{source}, {[batch, channels // block, block, *sizes]})",
        f"%{target}_mixed = Transpose(%{target}_parts, perm={_NCHWC})",
        f"%{target} = Reshape(%{target}_mixed, {[batch, channels, *sizes]})",
    ]


def _concrete(shape: Shape | None) -> list[int]:
    return [size for size in shape or () if isinstance(size, int)]


# Into blocks and out of them --------------------------------------------------------------------


def _input_shape(attributes: Attributes, types: Types) -> Shape | None:
    x = shape_at(types, 0)
    if x is None:
        return None
    batch, *rest = x
    *sizes, channels = rest if attributes["channels_last"] else [*rest[1:], rest[0]]
    block = _machine_block()
    return (batch, -(-channels // block) * block if isinstance(channels, int) else None, *sizes)


@composite("com.microsoft.nchwc.ReorderInput", infer=shaped(_input_shape))
def reorder_input(attributes: Attributes, types: Types) -> str:
    """x [N, C, H, W] (or [N, H, W, C]) with its channels in blocks, padded with zeros."""
    result = _concrete(_input_shape(attributes, types))
    source, lines = "x", []
    if attributes["channels_last"]:
        source, lines = "planes", ["%planes = Transpose(%x, perm=[0, 3, 1, 2])"]
    missing = result[1] - sizes_at(types, 0)[3 if attributes["channels_last"] else 1]
    lines.append(f"%padded = Pad(%{source}, [0, 0, 0, 0, 0, {missing}, 0, 0], 0.0)")
    return formula(
        "ReorderInput", ["x"], types, [*lines, *_in_blocks("y", "padded", result, _machine_block())]
    )


def _output_shape(attributes: Attributes, types: Types) -> Shape | None:
    x = shape_at(types, 0)
    if x is None:
        return None
    channels = attributes["channels"]
    return (x[0], *x[2:], channels) if attributes["channels_last"] else (x[0], channels, *x[2:])


@composite("com.microsoft.nchwc.ReorderOutput", infer=shaped(_output_shape))
def reorder_output(attributes: Attributes, types: Types) -> str:
    """The first `channels` channels of x, out of their blocks: [N, C, H, W] or [N, H, W, C]."""
    lines = [
        *_ordered("planes", "x", sizes_at(types, 0)),
        f"%first = Slice(%planes, [0], [{attributes['channels']}], [1])",
        "%y = Transpose(%first, perm=[0, 2, 3, 1])"
        if attributes["channels_last"]
        else "%y = Identity(%first)",
    ]
    return formula("ReorderOutput", ["x"], types, lines)


# Conv -------------------------------------------------------------------------------------------


@composite("com.microsoft.nchwc.Conv", infer=conv_types)
def conv(attributes: Attributes, types: Types) -> str:
    """Conv, plus a residual, then an activation, over channels in blocks.

    An x with fewer channels than a block is in axis order.  The weight is stored in memory as [M / b, C / b,
    kernel, b of C, b of M]; as [M / b, C, kernel, b of M] for such an x and depthwise.
    """
    x, weight = sizes_at(types, 0), sizes_at(types, 1)
    block = block_of(weight[0])
    whole = weight[1] >= block and attributes["group"] in (1, x[1] // weight[1])
    lines = _ordered("image", "x", x) if whole or attributes["group"] > 1 else ["%image = Identity(%x)"]
    features, kernel = weight[0] // block, list(weight[2:])
    if whole:
        blocks = [features, weight[1] // block, *kernel, block, block]
        lines += [
            f"%weight_blocks = Reshape(%weight, {blocks})",
            "%weight_turned = Transpose(%weight_blocks, perm=[0, 5, 1, 4, 2, 3])",
        ]
    else:
        lines += [
            f"%weight_blocks = Reshape(%weight, {[features, weight[1], *kernel, block]})",
            "%weight_turned = Transpose(%weight_blocks, perm=[0, 4, 1, 2, 3])",
        ]
    lines += [
        f"%filters = Reshape(%weight_turned, {list(weight)})",
        _conv_line(attributes, types, "%image", "%filters"),
    ]
    result = _concrete(shape_at(conv_types(attributes, types), 0))
    lines += _ordered("residual", "residual_blocks_of", result) if at(types, 3) is not None else []
    lines += _finished(attributes, types, "%conv", "%residual", "%planes")
    lines += _in_blocks("y", "planes", result, block)
    return formula("Conv", ["x", "weight", "bias", "residual_blocks_of"], types, lines)


# Pools ------------------------------------------------------------------------------------------


def _pooled(name: str, attributes: Attributes, types: Types, line: str, result: Shape | None) -> str:
    """Return the formula of a pool; `line` computes `%planes` from `%image`."""
    shape = sizes_at(types, 0)
    lines = [
        *_ordered("image", "x", shape),
        line,
        *_in_blocks("y", "planes", _concrete(result), block_of(shape[1])),
    ]
    return formula(name, ["x"], types, lines)


def _pool(name: str, shape: Callable[[Attributes, Types], Shape | None], names: Sequence[str]) -> Formula:
    """Return the formula of a pool over channels in blocks, with these attributes of the pool of ONNX."""

    def build(attributes: Attributes, types: Types) -> str:
        line = f"%planes = {name}(%image{stated(attributes, names)})"
        return _pooled(name, attributes, types, line, shape(attributes, types))

    build.__doc__ = f"{name} over channels in blocks."
    return build


for _name, _shape, _names in (
    ("MaxPool", pool_shape, _POOL),
    ("AveragePool", pool_shape, (*_POOL, "count_include_pad")),
    ("GlobalAveragePool", one_per_plane, ()),
    ("GlobalMaxPool", one_per_plane, ()),
):
    composite(f"com.microsoft.nchwc.{_name}", infer=shaped(_shape))(_pool(_name, _shape, _names))


def _upsampled(attributes: Attributes, types: Types) -> Shape | None:
    x = shape_at(types, 0)
    if x is None:
        return None
    scales = attributes["scales"] or (1,) * len(x)
    return tuple(
        size * scale if isinstance(size, int) else None for size, scale in zip(x, scales, strict=True)
    )


@composite("com.microsoft.nchwc.Upsample", infer=shaped(_upsampled))
def upsample(attributes: Attributes, types: Types) -> str:
    """Resize by whole factors over channels in blocks."""
    scales = [float(scale) for scale in attributes["scales"] or (1,) * len(sizes_at(types, 0))]
    mode = stated(attributes, ("mode", "coordinate_transformation_mode"))
    rounding = ', nearest_mode="floor"' if attributes["mode"] == "nearest" else ""
    line = f"%planes = Resize(%image, _, {scales}{mode}{rounding})"
    return _pooled("Upsample", attributes, types, line, _upsampled(attributes, types))
