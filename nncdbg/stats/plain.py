"""The statistics pass in NumPy, block by block: the same numbers as `compiled`, without a compiler."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nncdbg.stats.summary import Summary

_BLOCK = 32768
"""Elements per block: a block in f64 and its deviations stay in the L2 cache."""


def summarize_plain(array: npt.NDArray[Any]) -> Summary:
    """Return the summary of an array of any dtype, shape and strides."""
    if array.dtype.kind in "OUST":
        return empty_summary(array.size)
    with np.errstate(all="ignore"):  # a signalling NaN that is widened is data, not a fault of ours
        return combine(_summarize_block(block) for block in blocks_of(array, _BLOCK))


def empty_summary(count: int = 0) -> Summary:
    """Return the summary of an empty tensor, or of `count` strings."""
    return Summary(None, None, None, None, 0, 0, 0, 0, 0, count)


def blocks_of(array: npt.NDArray[Any], size: int) -> Iterator[npt.NDArray[Any]]:
    """Yield the elements, in memory order, as flat contiguous aligned native blocks of at most `size`."""
    if array.dtype.kind == "V" or array.dtype.itemsize == 1:
        dtype = array.dtype
        array = array.view(f"u{dtype.itemsize}")
    else:
        dtype = array.dtype.newbyteorder("=")
    blocks = np.nditer(  # type: ignore[call-overload]  # NumPy's stub spells "contig" as "config"
        array,
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=[["readonly", "aligned", "nbo", "contig"]],
        order="K",
        buffersize=size,
    )
    for block in blocks:
        if block.size:
            yield block.view(dtype)


def combine(summaries: Iterable[Summary]) -> Summary:
    """Combine the summaries of several tensors (Chan et al. 1979, pairwise formula)."""
    joined = empty_summary()
    for summary in summaries:
        joined = _join(joined, summary) if joined.count else summary
    return joined


def _join(a: Summary, b: Summary) -> Summary:
    if a.min is None or b.min is None:
        known = b if a.min is None else a
        ends = (known.min, known.max, known.mean, known.std)
    else:
        ends = (min(a.min, b.min), max(a.max, b.max), *_join_moments(a, b))  # type: ignore[type-var]
    return Summary(
        *ends,
        nan=a.nan + b.nan,
        posinf=a.posinf + b.posinf,
        neginf=a.neginf + b.neginf,
        zero=a.zero + b.zero,
        subnormal=a.subnormal + b.subnormal,
        count=a.count + b.count,
    )


def _join_moments(a: Summary, b: Summary) -> tuple[float, float]:
    """Return mean and std; `hypot` and shares of the count keep squares of large numbers in f64."""
    (mean, std), (other_mean, other_std) = _moments_of(a), _moments_of(b)
    share = b.finite / (a.finite + b.finite)
    halved = other_mean / 2 - mean / 2  # the difference itself may be beyond f64
    between = 2 * halved * math.sqrt(share * (1 - share))
    within = math.hypot(std * math.sqrt(1 - share), other_std * math.sqrt(share))
    return mean + 2 * (halved * share), math.hypot(within, between)


def _moments_of(summary: Summary) -> tuple[float, float]:
    """Return mean and std of a summary with at least one finite element."""
    return cast(float, summary.mean), cast(float, summary.std)


def _summarize_block(block: npt.NDArray[Any]) -> Summary:
    """Summarize one flat block, two-pass in f64."""
    wide, exact, normal = _widen(block)
    finite = np.isfinite(wide)
    nan = int(np.count_nonzero(np.isnan(wide)))
    posinf = int(np.count_nonzero(wide == np.inf))
    neginf = wide.size - int(np.count_nonzero(finite)) - nan - posinf
    zero = int(np.count_nonzero(wide == 0))
    subnormal = int(np.count_nonzero(np.abs(wide) < normal)) - zero if normal else 0
    if neginf + nan + posinf:
        wide = wide[finite]
    counts = (nan, posinf, neginf, zero, subnormal, block.size)
    if not wide.size:
        return Summary(None, None, None, None, *counts)
    mean, std = _moments(wide)
    if exact is not None:
        return Summary(int(exact.min()), int(exact.max()), mean, std, *counts)
    return Summary(float(wide.min()) + 0.0, float(wide.max()) + 0.0, mean, std, *counts)


def _widen(block: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any] | None, float]:
    """Return the numbers in f64, the exact integers if any, and the smallest normal number."""
    if block.dtype.kind == "c":
        return absolute(block), None, float(np.finfo(block.dtype).smallest_normal)
    if block.dtype.kind in "iu":
        return block.astype(np.float64), block, 0.0
    if block.dtype.kind == "b":
        bits = (block.view(np.uint8) != 0).view(np.uint8)
        return bits.astype(np.float64), bits, 0.0
    if block.dtype.name in ("int4", "uint4", "int2", "uint2"):
        small = block.astype(np.int8)
        return small.astype(np.float64), small, 0.0
    return block.astype(np.float64), None, float(ml_dtypes.finfo(block.dtype).smallest_normal)


def absolute(block: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return absolute values; NaN if either part is, although C's hypot(inf, nan) is inf."""
    absolute = np.abs(block.astype(np.complex128))
    absolute[np.isnan(block)] = np.nan
    return absolute


def _moments(wide: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return mean and population std, about the first element and scaled to avoid overflow."""
    top = float(np.max(np.abs(wide)))
    exponent = math.frexp(top)[1]
    scaled = np.ldexp(wide, -exponent) if abs(exponent) > 200 else wide
    exponent = exponent if scaled is not wide else 0
    shift = float(scaled[0])
    moved = scaled - shift
    mean = float(np.mean(moved))
    moved -= mean
    std = math.sqrt(float(np.mean(np.square(moved, out=moved))))
    return math.ldexp(shift + mean, exponent), math.ldexp(std, exponent)
