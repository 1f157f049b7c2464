"""Activations: pointwise nonlinearities.

Kernels keep NaN: comparisons are arranged so that NaN takes the branch that returns `x`.  Narrow
floats are computed in f32 and rounded once.  Formulas follow the ONNX operator documents.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops import gradient_pointwise as gradients
from nncdbg.engine.ops.declaration import Formula, op
from nncdbg.engine.ops.erf import erf
from nncdbg.engine.ops.formula import formula_text, in_precision, type_at
from nncdbg.engine.ops.influence import POINTWISE, probed
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.scratch import scratch
from nncdbg.engine.ops.types import Attributes, Types, at, broadcast_shapes, same_as, shape_at

CHUNK = 1 << 14
"""Elements per pass over an array; the temporaries of a pass fit in the cache."""


def pointwise(*lines: str) -> Formula:
    """Return a formula from `%x.wide` to `%y.wide`; braces in the lines are replaced by attributes."""

    def formula(attributes: Attributes, inputs: Types) -> str:
        given = type_at(inputs, 0)
        filled = [line.format(**attributes) for line in lines]
        return formula_text(
            "pointwise", [("x", given)], in_precision(given.dtype, ["x"], filled, ["y"]), ["y"]
        )

    return formula


@op(
    "Relu",
    since=6,
    infer=same_as(0),
    accepts_out=True,
    formula=pointwise("%y.wide = Max(%x.wide, 0)"),
    vjp=gradients.relu,
    influence=POINTWISE,
    rectifies=True,
    zeros="zeros.no_positive_input",
)
def relu(xp: ModuleType, x: Any, *, out: Any = None) -> Any:
    """The larger of x and 0."""
    return xp.maximum(x, x.dtype.type(0), out=out)


@op(
    "LeakyRelu",
    since=6,
    infer=same_as(0),
    formula=pointwise(
        "%slope = Mul(%x.wide, {alpha})",
        "%negative = Less(%x.wide, 0)",
        "%y.wide = Where(%negative, %slope, %x.wide)",
    ),
    vjp=gradients.leaky_relu,
    influence=POINTWISE,
    cause="pointwise.sloped",
    zeros="zeros.no_positive_input",
)
def leaky_relu(xp: ModuleType, x: Any, *, alpha: float) -> Any:
    """x, scaled by alpha below 0."""
    wide = widened(xp, x)
    return settled(xp, xp.where(wide < 0, wide * alpha, wide), x.dtype)


def prelu_types(attributes: Attributes, inputs: Types) -> Types:
    """Check that the slope broadcasts to x; x never broadcasts to the slope."""
    x, slope = shape_at(inputs, 0), shape_at(inputs, 1)
    if x is not None and slope is not None and len(slope) > len(x):
        raise GraphError(f"slope has {len(slope)} axes, but x has {len(x)}", operand=1)
    broadcast_shapes([x, slope])
    return [at(inputs, 0)]


def prelu_formula(attributes: Attributes, inputs: Types) -> str:
    x, slope = type_at(inputs, 0), type_at(inputs, 1)
    lines = ["%scaled = Mul(%x.wide, %slope.wide)", "%negative = Less(%x.wide, 0)"]
    lines += ["%y.wide = Where(%negative, %scaled, %x.wide)"]
    return formula_text(
        "PRelu", [("x", x), ("slope", slope)], in_precision(x.dtype, ["x", "slope"], lines, ["y"]), ["y"]
    )


@op(
    "PRelu",
    since=7,
    infer=prelu_types,
    formula=prelu_formula,
    vjp=gradients.prelu,
    influence=POINTWISE.roughly,
    cause="pointwise.sloped",
)
def prelu(xp: ModuleType, x: Any, slope: Any) -> Any:
    """x, scaled by a learned slope below 0; slope broadcasts to x."""
    wide = widened(xp, x)
    return settled(xp, xp.where(wide < 0, wide * widened(xp, slope), wide), x.dtype)


@op("PRelu", since=6, infer=same_as(0), influence=probed(0, 1))
def prelu_by_channel(xp: ModuleType, x: Any, slope: Any) -> Any:
    """x, scaled below 0 by one slope, or by one slope per channel of the second axis (opset 6)."""
    if slope.size > 1:
        slope = slope.reshape((1, slope.size) + (1,) * (x.ndim - 2))
    return prelu(xp, x, slope)


@op(
    "Elu",
    since=6,
    infer=same_as(0),
    formula=pointwise(
        "%below = Min(%x.wide, 0)",
        "%exp = Exp(%below)",
        "%less = Sub(%exp, 1)",
        "%curve = Mul(%less, {alpha})",
        "%positive = Greater(%x.wide, 0)",
        "%y.wide = Where(%positive, %x.wide, %curve)",
    ),
    influence=POINTWISE,
    cause="pointwise.gated",
)
def elu(xp: ModuleType, x: Any, *, alpha: float) -> Any:
    """x above 0, alpha (exp(x) - 1) below."""
    wide = widened(xp, x)
    return settled(xp, xp.where(wide > 0, wide, alpha * xp.expm1(xp.minimum(wide, 0))), x.dtype)


@op(
    "Selu",
    since=6,
    infer=same_as(0),
    formula=pointwise(
        "%below = Min(%x.wide, 0)",
        "%exp = Exp(%below)",
        "%less = Sub(%exp, 1)",
        "%curve = Mul(%less, {alpha})",
        "%positive = Greater(%x.wide, 0)",
        "%unscaled = Where(%positive, %x.wide, %curve)",
        "%y.wide = Mul(%unscaled, {gamma})",
    ),
    influence=POINTWISE,
    cause="pointwise.gated",
)
def selu(xp: ModuleType, x: Any, *, alpha: float, gamma: float) -> Any:
    """gamma times (x above 0, alpha (exp(x) - 1) below)."""
    wide = widened(xp, x)
    return settled(xp, gamma * xp.where(wide > 0, wide, alpha * xp.expm1(xp.minimum(wide, 0))), x.dtype)


@op(
    "Celu",
    since=12,
    infer=same_as(0),
    formula=pointwise(
        "%above = Max(%x.wide, 0)",
        "%below = Min(%x.wide, 0)",
        "%scaled = Div(%below, {alpha})",
        "%exp = Exp(%scaled)",
        "%less = Sub(%exp, 1)",
        "%curve = Mul(%less, {alpha})",
        "%y.wide = Add(%above, %curve)",
    ),
    influence=POINTWISE,
    cause="pointwise.gated",
)
def celu(xp: ModuleType, x: Any, *, alpha: float) -> Any:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1))."""
    wide = widened(xp, x)
    return settled(xp, xp.maximum(wide, 0) + xp.minimum(0, alpha * xp.expm1(wide / alpha)), x.dtype)


@op(
    "Sigmoid",
    since=6,
    infer=same_as(0),
    accepts_out=True,
    formula=pointwise("%n = Neg(%x.wide)", "%e = Exp(%n)", "%d = Add(%e, 1)", "%y.wide = Reciprocal(%d)"),
    vjp=gradients.sigmoid,
    influence=POINTWISE,
    bounds=(0.0, 1.0),
    zeros="zeros.exponential_underflow",
)
def sigmoid(xp: ModuleType, x: Any, *, out: Any = None) -> Any:
    """1 / (1 + exp(-x)), without overflow on either side."""
    wide = widened(xp, x)
    fits = out is not None and out.dtype == wide.dtype and out.flags.c_contiguous
    result = out if fits else xp.empty(wide.shape, wide.dtype)
    given, target = wide.reshape(-1), result.reshape(-1)
    step = CHUNK if xp is np else max(wide.size, 1)
    for begin in range(0, wide.size, step):
        part = slice(begin, begin + step)
        _sigmoid_of(xp, given[part], target[part])
    return settled(xp, result, x.dtype, out)


def _sigmoid_of(xp: ModuleType, x: Any, target: Any) -> None:
    """Write exp(min(x, 0)) / (1 + exp(-|x|)) to `target`; neither exponent is positive."""
    below = scratch(xp, "sigmoid", x.shape, x.dtype)
    xp.abs(x, out=below)
    xp.negative(below, out=below)
    xp.exp(below, out=below)
    below += 1
    xp.minimum(x, 0, out=target)
    xp.exp(target, out=target)
    target /= below


@op(
    "HardSigmoid",
    since=6,
    infer=same_as(0),
    formula=pointwise(
        "%scaled = Mul(%x.wide, {alpha})",
        "%line = Add(%scaled, {beta})",
        "%below = Min(%line, 1)",
        "%y.wide = Max(%below, 0)",
    ),
    influence=POINTWISE,
    rectifies=True,
    bounds=(0.0, 1.0),
    cause="pointwise.gated",
    zeros="zeros.no_positive_input",
)
def hard_sigmoid(xp: ModuleType, x: Any, *, alpha: float, beta: float) -> Any:
    """alpha x + beta, clamped to [0, 1]."""
    return settled(xp, xp.maximum(xp.minimum(widened(xp, x) * alpha + beta, 1), 0), x.dtype)


@op(
    "HardSwish",
    since=14,
    infer=same_as(0),
    formula=pointwise(
        "%scaled = Div(%x.wide, 6)",
        "%line = Add(%scaled, 0.5)",
        "%below = Min(%line, 1)",
        "%gate = Max(%below, 0)",
        "%y.wide = Mul(%x.wide, %gate)",
    ),
    influence=POINTWISE,
    rectifies=True,
    cause="pointwise.gated",
)
def hard_swish(xp: ModuleType, x: Any) -> Any:
    """x times HardSigmoid(x) with slope 1/6 and offset 1/2."""
    wide = widened(xp, x)
    return settled(xp, wide * xp.maximum(xp.minimum(wide / 6 + 0.5, 1), 0), x.dtype)


def softplus_wide(xp: ModuleType, wide: Any) -> Any:
    """log(1 + exp(x)) without overflow."""
    return xp.maximum(wide, 0) + xp.log1p(xp.exp(-xp.abs(wide)))


SOFTPLUS = (
    "%size = Abs(%x.wide)",
    "%negative = Neg(%size)",
    "%decay = Exp(%negative)",
    "%one = Add(%decay, 1)",
    "%log = Log(%one)",
    "%above = Max(%x.wide, 0)",
)


@op(
    "Softplus",
    since=1,
    infer=same_as(0),
    formula=pointwise(*SOFTPLUS, "%y.wide = Add(%above, %log)"),
    influence=POINTWISE,
)
def softplus(xp: ModuleType, x: Any) -> Any:
    """log(1 + exp(x))."""
    return settled(xp, softplus_wide(xp, widened(xp, x)), x.dtype)


@op(
    "Softsign",
    since=1,
    infer=same_as(0),
    formula=pointwise("%size = Abs(%x.wide)", "%one = Add(%size, 1)", "%y.wide = Div(%x.wide, %one)"),
    influence=POINTWISE,
    cause="pointwise.gated",
)
def softsign(xp: ModuleType, x: Any) -> Any:
    """x / (1 + |x|)."""
    wide = widened(xp, x)
    return settled(xp, wide / (1 + xp.abs(wide)), x.dtype)


@op(
    "Mish",
    since=18,
    infer=same_as(0),
    formula=pointwise(
        *SOFTPLUS, "%soft = Add(%above, %log)", "%gate = Tanh(%soft)", "%y.wide = Mul(%x.wide, %gate)"
    ),
    influence=POINTWISE,
    cause="pointwise.gated",
)
def mish(xp: ModuleType, x: Any) -> Any:
    """x tanh(Softplus(x))."""
    wide = widened(xp, x)
    return settled(xp, wide * xp.tanh(softplus_wide(xp, wide)), x.dtype)


GELU_EXACT = pointwise(
    f"%scaled = Div(%x.wide, {math.sqrt(2)})",
    "%erf = Erf(%scaled)",
    "%one = Add(%erf, 1)",
    "%half = Mul(%one, 0.5)",
    "%y.wide = Mul(%x.wide, %half)",
)

GELU_TANH = pointwise(
    "%cube = Pow(%x.wide, 3)",
    "%bend = Mul(%cube, 0.044715)",
    "%sum = Add(%x.wide, %bend)",
    f"%scaled = Mul(%sum, {math.sqrt(2 / math.pi)})",
    "%tanh = Tanh(%scaled)",
    "%one = Add(%tanh, 1)",
    "%half = Mul(%one, 0.5)",
    "%y.wide = Mul(%x.wide, %half)",
)


def gelu_formula(attributes: Attributes, inputs: Types) -> str:
    chosen = GELU_TANH if attributes["approximate"] == "tanh" else GELU_EXACT
    return chosen(attributes, inputs)


@op(
    "Gelu",
    since=20,
    infer=same_as(0),
    accepts_out=True,
    formula=gelu_formula,
    influence=POINTWISE,
    cause="pointwise.gated",
)
def gelu(xp: ModuleType, x: Any, *, approximate: str, out: Any = None) -> Any:
    """x times the normal distribution function of x, exact or in the tanh approximation."""
    wide = widened(xp, x)
    fits = out is not None and out.dtype == wide.dtype and out.flags.c_contiguous
    result = out if fits else xp.empty(wide.shape, wide.dtype)
    if approximate == "tanh":
        # x (1 + 0.044715 x x), in place.
        xp.multiply(wide, wide, out=result)
        result *= 0.044715
        result += 1
        result *= wide
        result *= math.sqrt(2 / math.pi)
        xp.tanh(result, out=result)
    else:
        erf(xp, wide * (1 / math.sqrt(2)), out=result)
    result += 1
    result *= 0.5
    result *= wide
    return settled(xp, result, x.dtype, out)


@op(
    "Swish",
    since=24,
    infer=same_as(0),
    formula=pointwise(
        "%scaled = Mul(%x.wide, {alpha})", "%gate = Sigmoid(%scaled)", "%y.wide = Mul(%x.wide, %gate)"
    ),
    influence=POINTWISE,
    cause="pointwise.gated",
)
def swish(xp: ModuleType, x: Any, *, alpha: float) -> Any:
    """x Sigmoid(alpha x)."""
    wide = widened(xp, x)
    return settled(xp, wide * sigmoid(xp, wide * alpha), x.dtype)


@op(
    "ThresholdedRelu",
    since=10,
    infer=same_as(0),
    formula=pointwise("%low = LessOrEqual(%x.wide, {alpha})", "%y.wide = Where(%low, 0, %x.wide)"),
    vjp=gradients.thresholded_relu,
    influence=POINTWISE,
    rectifies=True,
    zeros="zeros.no_positive_input",
)
def thresholded_relu(xp: ModuleType, x: Any, *, alpha: float) -> Any:
    """x above alpha, else 0."""
    wide = widened(xp, x)
    return settled(xp, xp.where(wide <= alpha, 0, wide), x.dtype)


@op("Shrink", since=9, infer=same_as(0), influence=POINTWISE, rectifies=True, cause="pointwise.gated")
def shrink(xp: ModuleType, x: Any, *, bias: float, lambd: float) -> Any:
    """x + bias below -lambd, x - bias above lambd, 0 between."""
    wide = widened(xp, x)
    # The middle branch keeps NaN: x differs from itself there.
    middle = xp.where(wide == wide, wide.dtype.type(0), wide)
    return settled(
        xp, xp.where(wide < -lambd, wide + bias, xp.where(wide > lambd, wide - bias, middle)), x.dtype
    )
