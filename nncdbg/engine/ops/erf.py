"""The error function, which NumPy lacks, over the array namespace; f32 on NumPy runs compiled.

f64 is W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969); f32 uses
two minimax polynomials fitted to `math.erf` in f64, since the rational form loses 5 ulp to rounding there.
tests/engine/ops/test_erf.py measures both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.ops import gradient_pointwise as gradients
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.elementwise import where
from nncdbg.engine.ops.influence import POINTWISE
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.types import same_as

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
