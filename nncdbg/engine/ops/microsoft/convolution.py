"""Conv fused with a residual and an activation."""

from __future__ import annotations

from nncdbg.engine.ops.convolution import conv_types
from nncdbg.engine.ops.declaration import composite
from nncdbg.engine.ops.microsoft.composing import activation_lines, activation_of, formula, stated
from nncdbg.engine.ops.types import Attributes, Types, at

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
