"""The interface of the compiled pass, in a file that does not import numba."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MODERATE = 20
"""The exponent of the power of two below which the numbers of a usual training are."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled pass for one dtype.

    ``entry(*leading, address, count, guard_bytes, row_address) -> flags``; with `exact`, the address of
    two i64 for the exact extremes (0 for none) follows `leading`.
    """

    entry: Callable[..., int]
    leading: tuple[int | float, ...]
    exact: bool
    all_finite: Callable[[int, int], bool] | None = None
    """``all_finite(address, count)``: whether there is no NaN or Inf; for floats of 16 bits and more."""
    squares_finite: Callable[[int, int, int], bool] | None = None
    """``squares_finite(addresses, counts, arrays)``: whether the square of each element of several arrays is.

    The first two arguments are addresses of one i64 per array."""
    moderate: Callable[[int, int, int], bool] | None = None
    """The same: whether the magnitude of each element is below ``2**MODERATE``."""
