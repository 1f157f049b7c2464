"""Activations: pointwise nonlinearities.

Kernels keep NaN: comparisons are arranged so that NaN takes the branch that returns `x`.  Narrow
floats are computed in f32 and rounded once.  Formulas follow the ONNX operator documents.

The error function in f64 is W. J. Cody, "Rational Chebyshev approximations for the error function", Math.
Comp. 23 (1969); f32 uses two minimax polynomials fitted to `math.erf` in f64, since the rational form loses
5 ulp to rounding there, and runs compiled on NumPy.  tests/engine/ops/test_erf.py measures both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from nncdbg.engine.ops import gradient as gradients
from nncdbg.engine.ops.declaration import Formula, Kernel, op
from nncdbg.engine.ops.elementwise import where
from nncdbg.engine.ops.formula import wide_formula
from nncdbg.engine.ops.influence import POINTWISE, probed
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.scratch import scratch
from nncdbg.engine.ops.types import Attributes, Types, at, broadcast_shapes, same_as, shape_at
from nncdbg.errors import GraphError

# Cody's n = 4 fit of erf(x) / x in x**2 on [0, 0.46875]; highest power first, denominators monic.
_NEAR = (1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2,
         3.20937758913846947e3)  # fmt: skip
_NEAR_BELOW = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3,
               2.84423683343917062e3)  # fmt: skip
# Cody's n = 8 fit of exp(x**2) * erfc(x) on [0.46875, 4]; beyond 4 it is precise enough for 1 - erfc.
_FAR = (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1,
        2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
        1.23033935479799725e3)  # fmt: skip
_FAR_BELOW = (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
              3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3,
              1.23033935480374942e3)  # fmt: skip

# f32: erf(x) / x - 1 in x**2 on [0, 1], and -log(erfc(x)) / x - 1 in x on [0.9, 4].
NEAR_F32 = (7.889119297033176e-05, -0.0008020841050893068, 0.005189535208046436, -0.026854444295167923,
             0.11283600330352783, -0.3761262595653534, 0.12837916612625122)  # fmt: skip
FAR_F32 = (5.358980615710607e-06, -5.063794014859013e-05, -2.4163180569303222e-05, 0.0028608215507119894,
            -0.02256331406533718, 0.10515882819890976, 0.6356781721115112, 0.12854045629501343)  # fmt: skip

_CHUNK = 1 << 16
"""Elements per pass: the temporaries fit in the second-level cache."""


def _polynomial(xp: Any, x: Any, coefficients: Sequence[float]) -> Any:
    """Evaluate a polynomial by Horner's rule in the dtype of `x`."""
    result = xp.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result *= x
        result += x.dtype.type(coefficient)
    return result


def _erf_f32(xp: Any, x: Any) -> Any:
    near = _polynomial(xp, x * x, NEAR_F32)
    near *= x
    near += x
    size = xp.abs(x)
    xp.minimum(size, x.dtype.type(4), out=size)
    far = _polynomial(xp, size, FAR_F32)
    far *= size
    far += size
    xp.exp(xp.negative(far, far), far)
    xp.copysign(xp.subtract(1, far, far), x, far)
    return where(xp, size < 0.95, near, far, out=near)


def _erf_f64(xp: Any, x: Any) -> Any:
    square = x * x
    near = x * (_polynomial(xp, square, _NEAR) / _polynomial(xp, square, _NEAR_BELOW))
    size = xp.minimum(xp.abs(x), 6.0)
    # exp(-x**2) from a head with an exact square, and a small tail.
    head = xp.trunc(size * 16) / 16
    decay = xp.exp(-head * head) * xp.exp(-(size - head) * (size + head))
    far = 1 - decay * (_polynomial(xp, size, _FAR) / _polynomial(xp, size, _FAR_BELOW))
    return where(xp, size <= 0.46875, near, xp.copysign(far, x))


def erf_plain(xp: Any, x: Any, out: Any) -> Any:
    """Write the error function of `x`, f32 or f64, to `out` in chunks that fit in the cache."""
    compute = _erf_f64 if x.dtype == np.float64 else _erf_f32
    flat, target = x.reshape(-1), out.reshape(-1)
    chunk = _CHUNK if xp is np else max(1, x.size)
    for begin in range(0, x.size, chunk):
        part = slice(begin, begin + chunk)
        target[part] = compute(xp, flat[part])
    return out


def _erf_compiled(x: Any, out: Any) -> Any:
    from nncdbg.engine.ops.erf_compiled import erf_f32

    # A weight mapped from a file may be at any address.
    target = out if out.flags.carray else np.empty(out.shape, out.dtype)
    erf_f32(np.require(x, requirements="A").reshape(-1), target.reshape(-1))
    return settled(np, target, out.dtype, out)


@op("Erf", since=9, infer=same_as(0), accepts_out=True, vjp=gradients.erf, influence=POINTWISE)
def erf(xp: Any, x: Any, *, out: Any = None) -> Any:
    """The error function, element by element: within 1 f32 step of the rounded truth, 1e-15 in f64.

    f16 and bf16 are computed in f32, integers in f64.  ONNX Erf since 9.
    """
    wide = widened(xp, x) if x.dtype.kind not in "iu" else x.astype(np.float64)
    wide = xp.ascontiguousarray(wide).reshape(x.shape)
    direct = out is not None and out.dtype == wide.dtype and out.flags.c_contiguous
    result = out if direct else xp.empty(x.shape, wide.dtype)
    if xp is np and wide.dtype == np.float32:
        return settled(xp, _erf_compiled(wide, result), x.dtype, out)
    return settled(xp, erf_plain(xp, wide, result), x.dtype, out)


CHUNK = 1 << 14
"""Elements per pass over an array; the temporaries of a pass fit in the cache."""


def pointwise(*lines: str) -> Formula:
    """Return a formula from `%x.wide` to `%y.wide`; braces in the lines are replaced by attributes."""

    def formula(attributes: Attributes, inputs: Types) -> str:
        return wide_formula("pointwise", ["x"], inputs, [line.format(**attributes) for line in lines])

    return formula


def _activation(name: str, since: int, *lines: str, **facts: Any) -> Callable[[Kernel], Kernel]:
    """Declare the decorated kernel of an activation, which has the formula `lines`, if there are any."""
    formula = pointwise(*lines) if lines else facts.pop("formula", None)
    return op(name, since=since, infer=same_as(0), formula=formula, influence=POINTWISE, **facts)


@_activation(
    "Relu",
    6,
    "%y.wide = Max(%x.wide, 0)",
    accepts_out=True,
    vjp=gradients.relu,
    rectifies=True,
    zeros="pointwise.no_positive_input",
)
def relu(xp: ModuleType, x: Any, *, out: Any = None) -> Any:
    """The larger of x and 0."""
    return xp.maximum(x, x.dtype.type(0), out=out)


@_activation(
    "LeakyRelu",
    6,
    "%slope = Mul(%x.wide, {alpha})",
    "%negative = Less(%x.wide, 0)",
    "%y.wide = Where(%negative, %slope, %x.wide)",
    vjp=gradients.leaky_relu,
    cause="pointwise.sloped",
    zeros="pointwise.no_positive_input",
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
    lines = ["%scaled = Mul(%x.wide, %slope.wide)", "%negative = Less(%x.wide, 0)"]
    lines += ["%y.wide = Where(%negative, %scaled, %x.wide)"]
    return wide_formula("PRelu", ["x", "slope"], inputs, lines)


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


_CURVE = (
    "%below = Min(%x.wide, 0)",
    "%exp = Exp(%below)",
    "%less = Sub(%exp, 1)",
    "%curve = Mul(%less, {alpha})",
    "%positive = Greater(%x.wide, 0)",
)


@_activation("Elu", 6, *_CURVE, "%y.wide = Where(%positive, %x.wide, %curve)", cause="pointwise.gated")
def elu(xp: ModuleType, x: Any, *, alpha: float) -> Any:
    """x above 0, alpha (exp(x) - 1) below."""
    wide = widened(xp, x)
    return settled(xp, xp.where(wide > 0, wide, alpha * xp.expm1(xp.minimum(wide, 0))), x.dtype)


@_activation(
    "Selu",
    6,
    *_CURVE,
    "%unscaled = Where(%positive, %x.wide, %curve)",
    "%y.wide = Mul(%unscaled, {gamma})",
    cause="pointwise.gated",
)
def selu(xp: ModuleType, x: Any, *, alpha: float, gamma: float) -> Any:
    """gamma times (x above 0, alpha (exp(x) - 1) below)."""
    wide = widened(xp, x)
    return settled(xp, gamma * xp.where(wide > 0, wide, alpha * xp.expm1(xp.minimum(wide, 0))), x.dtype)


@_activation(
    "Celu",
    12,
    "%above = Max(%x.wide, 0)",
    "%below = Min(%x.wide, 0)",
    "%scaled = Div(%below, {alpha})",
    "%exp = Exp(%scaled)",
    "%less = Sub(%exp, 1)",
    "%curve = Mul(%less, {alpha})",
    "%y.wide = Add(%above, %curve)",
    cause="pointwise.gated",
)
def celu(xp: ModuleType, x: Any, *, alpha: float) -> Any:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1))."""
    wide = widened(xp, x)
    return settled(xp, xp.maximum(wide, 0) + xp.minimum(0, alpha * xp.expm1(wide / alpha)), x.dtype)


@_activation(
    "Sigmoid",
    6,
    "%n = Neg(%x.wide)",
    "%e = Exp(%n)",
    "%d = Add(%e, 1)",
    "%y.wide = Reciprocal(%d)",
    accepts_out=True,
    vjp=gradients.sigmoid,
    bounds=(0.0, 1.0),
    zeros="pointwise.exponential_underflow",
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


@_activation(
    "HardSigmoid",
    6,
    "%scaled = Mul(%x.wide, {alpha})",
    "%line = Add(%scaled, {beta})",
    "%below = Min(%line, 1)",
    "%y.wide = Max(%below, 0)",
    rectifies=True,
    bounds=(0.0, 1.0),
    cause="pointwise.gated",
    zeros="pointwise.no_positive_input",
)
def hard_sigmoid(xp: ModuleType, x: Any, *, alpha: float, beta: float) -> Any:
    """alpha x + beta, clamped to [0, 1]."""
    return settled(xp, xp.maximum(xp.minimum(widened(xp, x) * alpha + beta, 1), 0), x.dtype)


@_activation(
    "HardSwish",
    14,
    "%scaled = Div(%x.wide, 6)",
    "%line = Add(%scaled, 0.5)",
    "%below = Min(%line, 1)",
    "%gate = Max(%below, 0)",
    "%y.wide = Mul(%x.wide, %gate)",
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


@_activation("Softplus", 1, *SOFTPLUS, "%y.wide = Add(%above, %log)")
def softplus(xp: ModuleType, x: Any) -> Any:
    """log(1 + exp(x))."""
    return settled(xp, softplus_wide(xp, widened(xp, x)), x.dtype)


@_activation(
    "Softsign",
    1,
    "%size = Abs(%x.wide)",
    "%one = Add(%size, 1)",
    "%y.wide = Div(%x.wide, %one)",
    cause="pointwise.gated",
)
def softsign(xp: ModuleType, x: Any) -> Any:
    """x / (1 + |x|)."""
    wide = widened(xp, x)
    return settled(xp, wide / (1 + xp.abs(wide)), x.dtype)


@_activation(
    "Mish",
    18,
    *SOFTPLUS,
    "%soft = Add(%above, %log)",
    "%gate = Tanh(%soft)",
    "%y.wide = Mul(%x.wide, %gate)",
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


@_activation("Gelu", 20, accepts_out=True, formula=gelu_formula, cause="pointwise.gated")
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


@_activation(
    "Swish",
    24,
    "%scaled = Mul(%x.wide, {alpha})",
    "%gate = Sigmoid(%scaled)",
    "%y.wide = Mul(%x.wide, %gate)",
    cause="pointwise.gated",
)
def swish(xp: ModuleType, x: Any, *, alpha: float) -> Any:
    """x Sigmoid(alpha x)."""
    wide = widened(xp, x)
    return settled(xp, wide * sigmoid(xp, wide * alpha), x.dtype)


@_activation(
    "ThresholdedRelu",
    10,
    "%low = LessOrEqual(%x.wide, {alpha})",
    "%y.wide = Where(%low, 0, %x.wide)",
    vjp=gradients.thresholded_relu,
    rectifies=True,
    zeros="pointwise.no_positive_input",
)
def thresholded_relu(xp: ModuleType, x: Any, *, alpha: float) -> Any:
    """x above alpha, else 0."""
    wide = widened(xp, x)
    return settled(xp, xp.where(wide <= alpha, 0, wide), x.dtype)


@_activation("Shrink", 9, rectifies=True, cause="pointwise.gated")
def shrink(xp: ModuleType, x: Any, *, bias: float, lambd: float) -> Any:
    """x + bias below -lambd, x - bias above lambd, 0 between."""
    wide = widened(xp, x)
    # The middle branch keeps NaN: x differs from itself there.
    middle = xp.where(wide == wide, wide.dtype.type(0), wide)
    return settled(
        xp, xp.where(wide < -lambd, wide + bias, xp.where(wide > lambd, wide - bias, middle)), x.dtype
    )
