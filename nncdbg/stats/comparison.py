"""Distances between two tensors of one shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nncdbg import dtypes
from nncdbg.errors import UsageError
from nncdbg.stats.blocks import check_same_shape
from nncdbg.stats.histograms import Between
from nncdbg.stats.summary import summarize

_BLOCK = 65536


@dataclass(frozen=True, slots=True)
class Comparison:
    """The distance between tensors `a` and `b`.

    `max_abs`, `mean_abs` (of ``|a - b|``), `max_rel` (of ``|a - b| / max(|a|, |b|)``, 0 where both are
    0) and `cosine` are over the pairs of finite elements, in f64; None without such pairs, and `cosine`
    also if one side is all zero. `max_ulp` counts representable numbers between the two, None unless
    both are floats of one dtype. `mismatched` elements differ (NaN equals NaN, -0.0 equals 0.0);
    `nan_mismatch` of them are NaN on one side only, `inf_mismatch` infinite on one side or with
    different signs. `worst` is the first index of the worst pair, None if all agree: a NaN or infinity
    mismatch precedes any finite distance.
    """

    max_abs: float | None
    max_rel: float | None
    mean_abs: float | None
    cosine: float | None
    max_ulp: int | None
    mismatched: int
    nan_mismatch: int
    inf_mismatch: int
    count: int
    worst: tuple[int, ...] | None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, as JSON values; a distance beyond f64 is null."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["worst"] = None if self.worst is None else list(self.worst)
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in fields.items()}


class _Distance:
    """Accumulated distances of the blocks so far."""

    def __init__(self, exponents: tuple[int, int]) -> None:
        self.exponents = exponents
        self.finite = self.mismatched = self.nan = self.inf = self.max_ulp = 0
        self.max_abs = self.max_rel = self.mean_abs = 0.0
        self.dot = self.square_a = self.square_b = 0.0
        self.worst_abs = 0.0
        self.worst: int | None = None
        self.worst_odd: int | None = None

    def add(self, start: int, a: npt.NDArray[Any], b: npt.NDArray[Any], in_ulps: bool) -> None:
        wide_a, wide_b = _widen(a), _widen(b)
        nan_a, nan_b = np.isnan(wide_a), np.isnan(wide_b)
        finite = np.isfinite(wide_a) & np.isfinite(wide_b)
        odd_nan = nan_a != nan_b
        odd_inf = ~finite & ~nan_a & ~nan_b & (wide_a != wide_b)
        self.nan += int(odd_nan.sum())
        self.inf += int(odd_inf.sum())
        odd = odd_nan | odd_inf
        if self.worst_odd is None and odd.any():
            self.worst_odd = start + int(np.argmax(odd))
        distance = np.where(finite, _distance(a, b, wide_a, wide_b), 0.0)
        self.mismatched += int(odd.sum()) + int(np.count_nonzero(distance))
        self._add_finite(start, wide_a[finite], wide_b[finite], distance, distance[finite])
        if in_ulps and finite.any():
            self.max_ulp = max(self.max_ulp, int(ulps_between(a[finite], b[finite]).max()))

    def _add_finite(
        self,
        start: int,
        a: npt.NDArray[Any],
        b: npt.NDArray[Any],
        everywhere: npt.NDArray[np.float64],
        distance: npt.NDArray[np.float64],
    ) -> None:
        if not a.size:
            return
        worst = int(np.argmax(everywhere))
        if everywhere[worst] > self.worst_abs:
            self.worst_abs, self.worst = float(everywhere[worst]), start + worst
        self.max_abs = max(self.max_abs, float(distance.max()))
        self.finite += a.size
        self.mean_abs += float(np.mean(distance) - self.mean_abs) * (a.size / self.finite)
        size = np.maximum(np.abs(a), np.abs(b))
        relative = np.divide(distance, size, out=np.zeros(a.size), where=size > 0)
        self.max_rel = max(self.max_rel, float(relative.max()))
        a, b = _scaled(a, -self.exponents[0]), _scaled(b, -self.exponents[1])
        self.dot += _dot(b, a)
        self.square_a += _dot(a, a)
        self.square_b += _dot(b, b)

    def cosine(self) -> float | None:
        norms = math.sqrt(self.square_a) * math.sqrt(self.square_b)
        return min(1.0, max(-1.0, self.dot / norms)) if norms else None


def _dot(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Return the real part of the inner product, without BLAS: its threads wait for busy cores."""
    return float(np.add.reduce((a.conj() * b).real if a.dtype.kind == "c" else a * b))


def compare(a: npt.ArrayLike, b: npt.ArrayLike, between: Between = lambda: None) -> Comparison:
    """Compare two tensors of one shape, of any dtypes and strides, block by block.

    `between` is called before each block; an exception from it ends the comparison. Raises UsageError
    if the shapes differ, or if only one of the two contains strings.
    """
    left, right = np.asarray(a), np.asarray(b)
    check_same_shape(left, right)
    strings = [array.dtype.kind in "OUST" for array in (left, right)]
    if any(strings):
        if not all(strings):
            raise UsageError("a tensor of strings cannot be compared with a tensor of numbers")
        differ = np.asarray(left != right)
        worst = _index(int(np.argmax(differ)), left.shape) if differ.any() else None
        return Comparison(None, None, None, None, None, int(differ.sum()), 0, 0, left.size, worst)
    ulps = left.dtype == right.dtype and dtypes.name_of(left.dtype) in dtypes.FLOATS
    distance = _Distance((_exponent(left), _exponent(right)))
    with np.errstate(over="ignore", invalid="ignore"):
        # In C order.
        flat_left, flat_right = left.reshape(-1), right.reshape(-1)
        for start in range(0, left.size, _BLOCK):
            between()
            end = start + _BLOCK
            distance.add(start, flat_left[start:end], flat_right[start:end], ulps)
    place = distance.worst if distance.worst_odd is None else distance.worst_odd
    known = distance.finite > 0
    return Comparison(
        max_abs=distance.max_abs if known else None,
        max_rel=distance.max_rel if known else None,
        mean_abs=distance.mean_abs if known else None,
        cosine=distance.cosine(),
        max_ulp=distance.max_ulp if ulps and known else None,
        mismatched=distance.mismatched,
        nan_mismatch=distance.nan,
        inf_mismatch=distance.inf,
        count=left.size,
        worst=_index(place, left.shape),
    )


def _index(place: int | None, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if place is None else tuple(int(i) for i in np.unravel_index(place, shape))


def _widen(block: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return block.astype(np.complex128 if block.dtype.kind == "c" else np.float64)


def _distance(
    a: npt.NDArray[Any], b: npt.NDArray[Any], wide_a: npt.NDArray[Any], wide_b: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Return ``|a - b|`` in f64; integers are subtracted exactly, so that those beyond 2**53 differ."""
    if a.dtype.kind in "iu" and a.dtype == b.dtype:
        gap = np.where(
            a > b, a.astype(np.uint64) - b.astype(np.uint64), b.astype(np.uint64) - a.astype(np.uint64)
        )
        return gap.astype(np.float64)
    return np.asarray(np.abs(wide_a - wide_b))


def ulps_between(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Count the steps between adjacent representable numbers from `a` to `b`."""
    x, y = _rank(a), _rank(b)
    return np.where(x > y, x - y, y - x)


def _rank(block: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return the rank of each float among the numbers of its dtype; both zeros have one rank."""
    native = block.astype(block.dtype.newbyteorder("=")) if block.dtype.kind == "f" else block
    bits = np.ascontiguousarray(native).view(f"u{block.dtype.itemsize}").astype(np.uint64)
    if dtypes.name_of(block.dtype) == "f8e8m0fnu":  # it has no sign
        return bits
    sign = np.uint64(1 << (ml_dtypes.finfo(block.dtype).bits - 1))
    magnitude = bits & (sign - np.uint64(1))
    return np.where(bits & sign, sign - magnitude, sign + magnitude)


def _exponent(array: npt.NDArray[Any]) -> int:
    summary = summarize(array)
    if summary.min is None or summary.max is None:
        return 0
    return math.frexp(float(max(abs(summary.min), abs(summary.max))))[1]


def _scaled(block: npt.NDArray[Any], exponent: int) -> npt.NDArray[Any]:
    """Return ``block * 2**exponent``, so that squares of extreme numbers stay in the range of f64."""
    if block.dtype.kind != "c":
        return np.asarray(np.ldexp(block, exponent))
    return np.asarray(np.ldexp(block.real, exponent) + 1j * np.ldexp(block.imag, exponent))
