"""The tolerance within which two values agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nncdbg.dtypes import COMPLEX, FLOATS, name_of
from nncdbg.errors import UsageError
from nncdbg.ir.records import Array
from nncdbg.stats.comparison import ulps_between

_BLOCK = 65536

DEFAULTS = {
    "f64": (1e-7, 1e-9),
    "f32": (1e-4, 1e-5),
    "f16": (2e-2, 5e-3),
    "bf16": (1e-1, 3e-2),
    "c128": (1e-7, 1e-9),
    "c64": (1e-4, 1e-5),
}
"""dtype to (relative, absolute) tolerance; for two dtypes, the looser one applies."""

_COARSE = (0.25, 0.1)
"""The tolerance of floats of 8 bits or fewer."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two elements agree if ``|a - b| <= atol + rtol * max(|a|, |b|)`` or they are at most `ulp` apart.

    Fields that are None follow from the dtypes; such an `atol` is scaled by the largest element of the
    tensor and by the length of the op's sums (see `excess`).  With `ulp` alone, `rtol` and `atol` are 0.
    Integers, bools and strings agree if they are equal.  NaN agrees with NaN, and an infinity with
    itself.  `coarse` is a dtype in which a side computes, although its values may have another.
    """

    rtol: float | None = None
    atol: float | None = None
    ulp: int | None = None
    coarse: str | None = None

    def __post_init__(self) -> None:
        for name in ("rtol", "atol", "ulp"):
            given = getattr(self, name)
            if given is not None and not (0 <= given < float("inf")):
                raise UsageError(f"{name} cannot be {given}", hint="use 0 or more")

    @property
    def explicit(self) -> bool:
        """Return True if the user set a tolerance; then a single element beyond it makes values differ."""
        return (self.rtol, self.atol, self.ulp) != (None, None, None)

    def between(self, a: np.dtype[Any], b: np.dtype[Any]) -> tuple[float, float]:
        """Return the relative and the unscaled absolute tolerance for elements of two dtypes."""
        names = [name_of(dtype) for dtype in (a, b)]
        if not all(name in FLOATS or name in COMPLEX for name in names):
            return 0.0, 0.0
        if self.ulp is not None and self.rtol is None and self.atol is None:
            return 0.0, 0.0
        computed = names if self.coarse is None else [*names, self.coarse]
        known = [DEFAULTS.get(name, _COARSE) for name in computed]
        rtol, atol = max(pair[0] for pair in known), max(pair[1] for pair in known)
        return rtol if self.rtol is None else self.rtol, atol if self.atol is None else self.atol


@dataclass(frozen=True, slots=True)
class Excess:
    """`count` elements are beyond the tolerance; the worst, at `where`, is off by `factor` tolerances.

    `factor` is infinite for a tolerance of 0, and for a NaN or infinity on only one side; if all elements
    are within the tolerance, it is at most 1.  `marginal` is True if so few elements are beyond it, by so
    little, that rounding explains them.
    """

    count: int
    factor: float
    where: tuple[int, ...] | None
    marginal: bool = False

    @property
    def significant(self) -> bool:
        """Return whether the values count as different."""
        return self.factor > 1 and not self.marginal


SAME = Excess(0, 0.0, None)

_FEW, _LITTLE = 0.005, 4.0
"""An excess is marginal if less than `_FEW` of the elements are off, by under `_LITTLE` tolerances."""

_LONG = 1024
"""Number of terms of a sum beyond which the absolute tolerance grows with their square root."""


def excess(a: Array, b: Array, tolerance: Tolerance, terms: int = 1) -> Excess:
    """Return the distance of `a` and `b`, of equal shape, in units of the tolerance.

    An absolute tolerance that follows from the dtypes is multiplied by the largest finite element,
    if that is above 1, and by ``sqrt(terms / 1024)``, if that is above 1: `terms` is how many
    numbers the op sums per element.
    """
    if a.dtype.hasobject or b.dtype.hasobject:
        differ = np.asarray(a != b).reshape(-1)
        count = int(np.count_nonzero(differ))
        return Excess(count, float("inf"), _index(int(np.argmax(differ)), a.shape)) if count else SAME
    if a.dtype == b.dtype and bool(np.all(a == b)):
        return SAME
    rtol, atol = tolerance.between(a.dtype, b.dtype)
    if tolerance.atol is None and atol:
        atol *= max(1.0, min(_largest(a), _largest(b))) * max(1.0, terms / _LONG) ** 0.5
    counted = tolerance.ulp if a.dtype == b.dtype and name_of(a.dtype) in FLOATS else None
    count, worst, where = 0, 0.0, None
    with np.errstate(all="ignore"):
        for start, x, y in _blocks(a, b):
            factors = _factors(x, y, rtol, atol, counted)
            count += int(np.count_nonzero(factors > 1))
            place = int(np.argmax(factors))
            if factors[place] > worst:
                worst, where = float(factors[place]), start + place
    marginal = not tolerance.explicit and 1 < worst < _LITTLE and count < _FEW * a.size
    return Excess(count, worst, _index(where, a.shape), marginal)


def _largest(array: Array) -> float:
    """Return the largest magnitude of the finite elements; 0 if there are none."""
    largest = 0.0
    with np.errstate(all="ignore"):
        for start in range(0, array.size, _BLOCK):
            block = array.reshape(-1)[start : start + _BLOCK]
            sizes = np.abs(block.astype(np.complex128 if block.dtype.kind == "c" else np.float64))
            largest = max(largest, float(sizes.max(initial=0.0, where=np.isfinite(sizes))))
    return largest


def _index(flat: int | None, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if flat is None else tuple(int(i) for i in np.unravel_index(flat, shape))


def _blocks(a: Array, b: Array) -> Iterator[tuple[int, Array, Array]]:
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    for start in range(0, a.size, _BLOCK):
        yield start, flat_a[start : start + _BLOCK], flat_b[start : start + _BLOCK]


def _factors(a: Array, b: Array, rtol: float, atol: float, counted: int | None) -> npt.NDArray[np.float64]:
    """Return per element the distance in tolerances; 0 if equal, infinite if no tolerance applies."""
    wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    x, y = a.astype(wide), b.astype(wide)
    # Different integers beyond 2**53 can be equal in f64.
    exact = a.dtype == b.dtype and a.dtype.kind in "iub"
    same = (a == b) if exact else (x == y)
    same |= np.isnan(x) & np.isnan(y)
    allowed = atol + rtol * np.maximum(np.abs(x), np.abs(y))
    factors = np.abs(x - y) / allowed
    if counted is not None:
        steps = ulps_between(a, b).astype(np.float64)
        factors = np.minimum(factors, steps / counted if counted else np.where(steps > 0, np.inf, 0.0))
    factors[~(np.isfinite(x) & np.isfinite(y)) | np.isnan(factors)] = np.inf
    factors[same] = 0.0
    return np.asarray(factors, np.float64)
