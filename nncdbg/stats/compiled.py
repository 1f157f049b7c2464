"""The compiled pass over memory: statistics, guards and uninitialized elements in one reading.

Imported late (it imports numba) and only by `preparation`. Three functions serve every dtype of one to
eight bytes; the leading arguments, bound once per dtype by `build`, select the machine types. All
compiled code is in this file, because numba's cache only tracks the file of the function that it loads.

Why it is fast: the four extremes of a float's bits, signed and unsigned, give min, max, the smallest
and the largest magnitude without a branch or a NaN rule, so they vectorise. NaN, infinities, zeros and
sub-normals are counted only in blocks with extremes that indicate them. Moments are computed in f64
about an element of the block. The variance bounds the distance of that element from the block's mean,
so little cancels. Blocks are joined by Chan, Golub and LeVeque, "Updating formulae and a pairwise
algorithm for computing sample variances" (1979).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic, overload

from nncdbg import dtypes
from nncdbg.stats.preparation import MODERATE, Kernel

_BLOCK = 2048
"""Elements per block: few enough that the second loop over them reads from the L1 cache."""

_LONG_BLOCK = 4096
"""Elements between checks for an early exit."""

_NATIVE, _HALF, _BRAIN = 0, 1, 2
"""Conversion of bits to a number: native, from f16, from bf16."""

_PATTERN = 0x7FFF7FFF7FFF7FFF
"""The fill of a fresh buffer, truncated to the element's width."""

_SUM = {"reassoc", "contract"}
"""Sums may be reordered, but NaN, infinities and -0.0 must be respected."""


def _jit(**options: Any) -> Callable[[Any], Any]:
    """Like `njit`, cached on disk if a cache folder is writable."""

    def decorate(function: Any) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # numba: "cannot cache function ...: no locator available"
            return njit(**options)(function)

    return decorate


def _type_pointer(_context: Any, sample: Any, address: Any) -> Any:
    """Return a pointer to elements of `sample`'s type."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[1], context.get_value_type(signature.return_type))

    return types.CPointer(sample)(sample, address), generate


_pointer = intrinsic(_type_pointer)


def _type_reinterpret(_context: Any, sample: Any, bits: Any) -> Any:
    """Reinterpret bits, truncated or zero-extended to the width of the float `sample`, as that float."""
    resize = "trunc" if bits.bitwidth > sample.bitwidth else "zext"

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = getattr(builder, resize)(arguments[1], ir.IntType(sample.bitwidth))
        return builder.bitcast(word, context.get_value_type(sample))

    return sample(sample, bits), generate


_reinterpret = intrinsic(_type_reinterpret)


def _like(sample: Any, number: Any) -> Any:
    """Convert `number` to the type of `sample`: numba widens the results of small integers."""
    raise NotImplementedError("compiled code only")


def _implement_like(sample: Any, number: Any) -> Any:
    kind = sample
    return lambda sample, number: kind(number)


overload(_like, strict=False)(_implement_like)


@_jit()
def _extremes(signed: Any, unsigned: Any) -> Any:
    """Return the extremes of one block's bits: signed min and max, unsigned min and max."""
    low, high, under, over = signed[0], signed[0], unsigned[0], unsigned[0]
    for i in range(signed.size):
        s, u = signed[i], unsigned[i]
        low = s if s < low else low
        high = s if s > high else high
        under = u if u < under else under
        over = u if u > over else over
    return low, high, under, over


@_jit()
def _magnitude(word: Any) -> Any:
    """Return a float's bits shifted left to drop the sign; they are ordered like the magnitudes."""
    return _like(word, word << np.uint64(1))


@_jit()
def _finite_extremes(signed: Any, unsigned: Any, infinite: Any, empty: Any) -> Any:
    """Return `_extremes` of the elements with a magnitude below `infinite`, starting from neutral `empty`."""
    least, most, lowest, topmost = low, high, under, over = empty
    for i in range(signed.size):
        finite = _magnitude(unsigned[i]) < infinite
        # Mask, then compare, as two steps: with both in one condition nothing is vectorised.
        a, b = (signed[i], signed[i]) if finite else (least, most)
        c, d = (unsigned[i], unsigned[i]) if finite else (lowest, topmost)
        low = a if a < low else low
        high = b if b > high else high
        under = c if c < under else under
        over = d if d > over else over
    return low, high, under, over


@_jit()
def _count_special(signed: Any, unsigned: Any, infinity: Any, infinite: Any) -> Any:
    """Count NaN, +inf and -inf in the block."""
    nan = both = posinf = np.int32(0)  # 32 bits suffice for a block, and let more lanes run at once
    for i in range(signed.size):
        magnitude = _magnitude(unsigned[i])
        nan = np.int32(nan + np.int32(magnitude > infinite))
        both = np.int32(both + np.int32(magnitude == infinite))
        posinf = np.int32(posinf + np.int32(signed[i] == infinity))
    return np.int64(nan), np.int64(posinf), np.int64(both - posinf)


@_jit()
def _count_tiny(unsigned: Any, normal: Any) -> Any:
    """Count zeros of either sign, and sub-normals: magnitudes below `normal`."""
    zero = below = np.int32(0)
    for i in range(unsigned.size):
        magnitude = _magnitude(unsigned[i])
        zero = np.int32(zero + np.int32(magnitude == 0))
        below = np.int32(below + np.int32(magnitude < normal))
    return np.int64(zero), np.int64(below - zero)


@_jit()
def _count_equal(values: Any, wanted: Any) -> Any:
    found = np.int32(0)
    for i in range(values.size):
        found = np.int32(found + np.int32(values[i] == wanted))
    return np.int64(found)


@_jit(fastmath=_SUM)
def _moments(values: Any) -> Any:
    """Return mean and sum of squared deviations."""
    shift = np.float64(values[0])
    total = square = 0.0
    for i in range(values.size):
        x = np.float64(values[i]) - shift
        total += x
        square += x * x
    return shift + total / values.size, max(square - total * total / values.size, 0.0)


@_jit(fastmath=_SUM)
def _finite_moments(values: Any, unsigned: Any, infinite: Any, count: Any) -> Any:
    """Return `_moments` of the finite elements; `count` is their number, at least 1."""
    first = 0
    while _magnitude(unsigned[first]) >= infinite:
        first += 1
    shift = np.float64(values[first])
    total = square = 0.0
    for i in range(values.size):
        x = np.float64(values[i]) - shift
        x = x if _magnitude(unsigned[i]) < infinite else np.float64(0.0)
        total += x
        square += x * x
    return shift + total / count, max(square - total * total / count, 0.0)


@_jit()
def _join(count: Any, mean: Any, square: Any, more: Any, its_mean: Any, its_square: Any) -> Any:
    """Combine count, mean and sum of squared deviations of two samples (Chan et al. 1979)."""
    if count == 0:
        return more, its_mean, its_square
    both = count + more
    delta = its_mean - mean
    share = more / both
    return both, mean + delta * share, square + its_square + delta * delta * count * share


@_jit()
def _number(bits: Any, sample: Any, kind: Any) -> Any:
    """Convert the bits of one element; callers ignore f16 NaN and Inf, which become large numbers."""
    if kind == _NATIVE:
        return _reinterpret(sample, bits)
    word = np.uint32(bits)
    if kind == _BRAIN:
        return _reinterpret(sample, word << np.uint32(16))
    # The product rebiases the exponent, and normalizes sub-normals on the way.
    magnitude = _reinterpret(sample, (word & np.uint32(0x7FFF)) << np.uint32(13)) * _like(sample, 2.0**112)
    return magnitude if word < 0x8000 else -magnitude


@_jit()
def _convert(bits: Any, values: Any, kind: Any, scale: Any) -> None:
    """Convert a block of f16 or bf16, or scale a block of native numbers by a power of two."""
    if kind == _NATIVE:
        for i in range(bits.size):
            values[i] = _number(bits[i], values[i], _NATIVE) * scale
    elif kind == _BRAIN:
        for i in range(bits.size):
            values[i] = _number(bits[i], values[i], _BRAIN)
    else:
        for i in range(bits.size):
            values[i] = _number(bits[i], values[i], _HALF)


@_jit()
def _broken(start: Any, length: Any) -> Any:
    """Count the bytes from address `start` that no longer hold the pattern 0x7FFF."""
    held = carray(_pointer(np.uint8(0), start), (length,))
    wrong = 0
    for i in range(length):
        wrong += held[i] != (np.uint8(0x7F) if (start + i) & 1 else np.uint8(0xFF))
    return wrong


@_jit()
def _guards(address: Any, end: Any, length: Any) -> Any:
    flags = 0
    if length > 0:
        if _broken(address - length, length) != 0:
            flags |= 8
        if _broken(end, length) != 0:
            flags |= 16
    return flags


@_jit()
def _write(row: Any, low: Any, high: Any, mean: Any, std: Any, counts: Any, count: Any) -> None:
    out = carray(_pointer(0.0, row), (10,))
    out[0], out[1], out[2], out[3] = low, high, mean, std
    for i in range(5):
        out[4 + i] = counts[i]
    out[9] = count


@_jit()
def _scan(signed: Any, unsigned: Any, values: Any, kind: Any, limits: Any, scale: Any, wanted: Any) -> Any:
    """Return extremes of the bits, counts and (if `wanted`) moments of a float buffer."""
    infinity, word, normal = limits
    ones = _like(word, -1)
    low = _like(infinity, ones >> np.uint64(1))
    high = _like(infinity, ~np.int64(low))
    under, over = ones, _like(ones, 0)
    minus_zero, empty = _like(ones, high), (low, high, under, over)
    minus_infinity = _like(ones, minus_zero | _like(ones, infinity))
    infinite, tiny = _magnitude(_like(ones, infinity)), _magnitude(_like(ones, normal))
    nan = posinf = neginf = zero = subnormal = unwritten = finite = 0
    mean = square = 0.0
    direct = kind == _NATIVE and scale == 1.0
    scratch = np.empty(0 if direct else _BLOCK, values.dtype)
    for start in range(0, signed.size, _BLOCK):
        s, u = signed[start : start + _BLOCK], unsigned[start : start + _BLOCK]
        least, most, lowest, topmost = _extremes(s, u)
        more, clean = s.size, most < infinity and topmost < minus_infinity
        if not clean:
            least, most, lowest, topmost = _finite_extremes(s, u, infinite, empty)
            a, b, c = _count_special(s, u, infinity, infinite)
            nan, posinf, neginf, more = nan + a, posinf + b, neginf + c, more - a - b - c
            if a > 0:
                unwritten += _count_equal(s, _like(infinity, _PATTERN))
        low, high, under, over = min(low, least), max(high, most), min(under, lowest), max(over, topmost)
        if not wanted or more == 0:
            continue
        if _magnitude(lowest) < tiny or _magnitude(_like(ones, least)) < tiny:
            a, b = _count_tiny(u, tiny)
            zero, subnormal = zero + a, subnormal + b
        if direct:
            block = values[start : start + _BLOCK]
        else:
            block = scratch[: s.size]
            _convert(u, block, kind, scale)
        if clean:
            m, q = _moments(block)
        else:
            m, q = _finite_moments(block, u, infinite, more)
        finite, mean, square = _join(finite, mean, square, more, m, q)
    return (low, high, under, over), (nan, posinf, neginf, zero, subnormal), unwritten, finite, mean, square


@_jit(nogil=True)
def all_below(limit: Any, address: Any, count: Any) -> Any:
    """Return 1 if all floats at `address` have a `_magnitude` below `limit`, else 0."""
    unsigned = carray(_pointer(limit, address), (count,))
    for start in range(0, count, _LONG_BLOCK):
        block = unsigned[start : start + _LONG_BLOCK]
        most = _like(limit, 0)
        for i in range(block.size):
            magnitude = _magnitude(block[i])
            most = magnitude if magnitude > most else most
        if most >= limit:
            return 0
    return 1


@_jit(nogil=True)
def each_below(limit: Any, addresses: Any, counts: Any, arrays: Any) -> Any:
    """Return 1 if `all_below` is 1 for each of several arrays, else 0.

    `addresses` and `counts` are themselves addresses, of as many i64 as there are arrays.
    """
    starts, lengths = (
        carray(_pointer(arrays, addresses), (arrays,)),
        carray(_pointer(arrays, counts), (arrays,)),
    )
    for i in range(arrays):
        if not all_below(limit, starts[i], lengths[i]):
            return 0
    return 1


@_jit()
def _scale_for(top: Any) -> Any:
    """Return a power of two that keeps squares of numbers up to `top` in f64; 1 if none is needed."""
    if top == 0.0 or (top >= 2.0**-400 and top <= 2.0**480):
        return 1.0
    return math.ldexp(1.0, -min(max(math.frexp(top)[1], -1000), 1000))


@_jit(nogil=True)
def floats(
    infinity: Any,
    word: Any,
    value: Any,
    normal: Any,
    kind: Any,
    address: Any,
    count: Any,
    guard: Any,
    row: Any,
) -> Any:
    """Inspect `count` floats at `address`; see `inspection` for the row and the flags."""
    signed = carray(_pointer(infinity, address), (count,))
    unsigned = carray(_pointer(word, address), (count,))
    values = carray(_pointer(value, address), (count,))
    wanted, limits = row != 0, (infinity, word, normal)
    extremes, counts, unwritten, finite, mean, square = _scan(
        signed, unsigned, values, kind, limits, 1.0, wanted
    )
    if wanted:
        low = high = mean_out = std = math.nan
        if finite > 0:
            least, most, under, over = extremes
            low = _number(over if least < 0 else under, value, kind) + 0.0
            high = _number(_like(word, most if most >= 0 else least), value, kind) + 0.0
            scale = _scale_for(max(-low, high))
            if scale != 1.0:
                mean, square = _scan(signed, unsigned, values, kind, limits, scale, wanted)[4:]
            mean_out, std = mean / scale, math.sqrt(square / finite) / scale
        _write(row, low, high, mean_out, std, counts, count)
    flags = _guards(address, address + count * signed.itemsize, guard)
    flags |= (1 if counts[0] > 0 else 0) | (2 if counts[1] + counts[2] > 0 else 0)
    return flags | (4 if unwritten > 0 else 0)


@_jit(nogil=True)
def integers(
    signed_zero: Any, word: Any, value: Any, exact: Any, address: Any, count: Any, guard: Any, row: Any
) -> Any:
    """Inspect `count` integers; write their exact extremes to the two i64 at `exact` unless that is 0."""
    signed = carray(_pointer(signed_zero, address), (count,))
    unsigned = carray(_pointer(word, address), (count,))
    values = carray(_pointer(value, address), (count,))
    pattern = _like(signed_zero, _PATTERN)
    unwritten = zero = finite = 0
    mean = square = 0.0
    ones = _like(word, -1)
    low = _like(signed_zero, ones >> np.uint64(1))
    high, under, over = _like(signed_zero, ~np.int64(low)), ones, _like(word, 0)
    for start in range(0, count, _BLOCK):
        s, u = signed[start : start + _BLOCK], unsigned[start : start + _BLOCK]
        least, most, lowest, topmost = _extremes(s, u)
        low, high, under, over = min(low, least), max(high, most), min(under, lowest), max(over, topmost)
        if least <= pattern and pattern <= most:
            unwritten += _count_equal(s, pattern)
        if row != 0:
            if lowest == 0:
                zero += _count_equal(u, word)
            m, q = _moments(values[start : start + _BLOCK])
            finite, mean, square = _join(finite, mean, square, s.size, m, q)
    negative = _like(value, -1) < 0
    if row != 0:
        counts = (0, 0, 0, zero, 0)
        if count == 0:
            _write(row, math.nan, math.nan, math.nan, math.nan, counts, count)
        elif negative:
            _write(row, np.float64(low), np.float64(high), mean, math.sqrt(square / count), counts, count)
        else:
            _write(row, np.float64(under), np.float64(over), mean, math.sqrt(square / count), counts, count)
    if exact != 0:
        ends = carray(_pointer(np.int64(0), exact), (2,))
        ends[0] = np.int64(low) if negative else np.int64(under)
        ends[1] = np.int64(high) if negative else np.int64(over)
    return _guards(address, address + count * signed.itemsize, guard) | (4 if unwritten > 0 else 0)


@_jit()
def _tally(held: Any) -> Any:
    """Count each byte, in four tallies to avoid stalls on equal neighbors."""
    tally = np.zeros((4, 256), np.int64)
    whole = held.size - held.size % 4
    for i in range(0, whole, 4):
        tally[0, held[i]] += 1
        tally[1, held[i + 1]] += 1
        tally[2, held[i + 2]] += 1
        tally[3, held[i + 3]] += 1
    for i in range(whole, held.size):
        tally[0, held[i]] += 1
    return tally[0] + tally[1] + tally[2] + tally[3]


@_jit()
def _tally_moments(tally: Any, number: Any) -> Any:
    """Return finite count, mean and standard deviation, two-pass over the 256 possible numbers."""
    finite, total, square = 0, 0.0, 0.0
    for i in range(256):
        if tally[i] > 0 and math.isfinite(number[i]):
            finite += tally[i]
            total += tally[i] * number[i]
    if finite == 0:
        return 0, math.nan, math.nan
    mean = total / finite
    for i in range(256):
        if tally[i] > 0 and math.isfinite(number[i]):
            square += tally[i] * (number[i] - mean) ** 2
    return finite, mean, math.sqrt(square / finite)


@_jit()
def _classify(tally: Any, number: Any, normal: Any) -> Any:
    """Return min and max of the finite numbers, and the counts in the row's order."""
    low, high = math.inf, -math.inf
    nan = posinf = neginf = zero = subnormal = 0
    for i in range(256):
        x, times = number[i], tally[i]
        if times == 0:
            continue
        if math.isnan(x):
            nan += times
        elif math.isinf(x):
            posinf += times if x > 0 else 0
            neginf += times if x < 0 else 0
        else:
            low, high = min(low, x), max(high, x)
            zero += times if x == 0.0 else 0
            subnormal += times if 0.0 < abs(x) < normal else 0
    return low, high, (nan, posinf, neginf, zero, subnormal)


@_jit(nogil=True)
def single_bytes(table: Any, fill: Any, address: Any, count: Any, guard: Any, row: Any) -> Any:
    """Inspect one-byte elements: `table` holds the 256 numbers, then the smallest normal one.

    `fill` is the value of an uninitialized byte: -2 the pattern's byte at that address, -1 anything but
    0 and 1 (bool), else that byte.
    """
    held = carray(_pointer(np.uint8(0), address), (count,))
    numbers = carray(_pointer(0.0, table), (257,))
    tally = _tally(held)
    low, high, counts = _classify(tally, numbers, numbers[256])
    if row != 0:
        finite, mean, std = _tally_moments(tally, numbers)
        if finite == 0:
            low = high = math.nan
        elif low == high:
            mean, std = low, 0.0
        _write(row, low + 0.0, high + 0.0, mean, std, counts, count)
    unwritten = False
    if fill == -2:
        if tally[0x7F] + tally[0xFF] > 0:
            unwritten = _broken(address, count) < count
    elif fill == -1:
        unwritten = tally[0] + tally[1] < count
    else:
        unwritten = tally[fill] > 0
    flags = _guards(address, address + count, guard)
    flags |= (1 if counts[0] > 0 else 0) | (2 if counts[1] + counts[2] > 0 else 0)
    return flags | (4 if unwritten else 0)


_KIND = {"f16": _HALF, "bf16": _BRAIN}
_TABLES: dict[str, np.ndarray[Any, Any]] = {}


def _table(name: str) -> int:
    """Return the address of the 256 numbers of a one-byte dtype, then its smallest normal number."""
    dtype = dtypes.NUMPY[name]
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes != 0 if name == "bool" else codes.view(dtype)
    normal = float(ml_dtypes.finfo(dtype).smallest_normal) if name in dtypes.FLOATS else 0.0
    _TABLES[name] = np.append(numbers.astype(np.float64), normal)
    return int(_TABLES[name].ctypes.data)


def build(name: str) -> Kernel:
    """Compile (or load from numba's cache) the pass for one dtype of `preparation.NAMES`."""
    bits = dtypes.NUMPY[name].itemsize * 8
    signed, word = getattr(types, f"int{bits}"), getattr(types, f"uint{bits}")
    function: Any
    machine: tuple[Any, ...]
    leading: tuple[int | float, ...]
    # A function, the machine types of its leading arguments, and those arguments.
    if bits == 8:
        fill = -1 if name == "bool" else 0x80 if name.endswith("fnuz") else -2
        function, machine, leading = single_bytes, (types.intp, types.intp), (_table(name), fill)
    elif name in dtypes.FLOATS:
        limits = ml_dtypes.finfo(dtypes.NUMPY[name])
        first = 1 << limits.nmant  # The smallest normal number: exponent bits not all zero.
        infinity = ((1 << (bits - 1 - limits.nmant)) - 1) * first
        value = types.float64 if name == "f64" else types.float32
        function, machine = floats, (signed, word, value, signed, types.intp)
        leading = (infinity, 0, 0.0, first, _KIND.get(name, _NATIVE))
    else:
        function, machine = integers, (signed, word, word if name[0] == "u" else signed, types.intp)
        leading = (0, 0, 0)
    signature = (*machine, *(types.intp,) * 4)
    function.compile(signature)
    # The entry point bypasses the dispatcher, which inspects argument types.
    entry = function.overloads[signature].entry_point
    checks = _limit_kernels(name) if function is floats else {}
    return Kernel(entry, leading, exact=function is integers, **checks)


def _limit_kernels(name: str) -> dict[str, Callable[..., bool]]:
    """Return `all_finite`, `squares_finite` and `moderate` of one dtype."""
    limits = ml_dtypes.finfo(dtypes.NUMPY[name])
    word = getattr(types, f"uint{limits.bits}")
    infinite = (1 << (limits.bits - 1 - limits.nmant)) - 1
    # The exponent of the square root of the first power of two that is not finite.
    root = infinite // 2 + (infinite + 1) // 4
    moderate = min(infinite // 2 + MODERATE, infinite)
    one, several = (word, *(types.intp,) * 2), (word, *(types.intp,) * 3)
    all_below.compile(one)
    each_below.compile(several)
    each = each_below.overloads[several].entry_point
    return {
        "all_finite": partial(all_below.overloads[one].entry_point, infinite << limits.nmant + 1),
        "squares_finite": partial(each, root << limits.nmant + 1),
        "moderate": partial(each, moderate << limits.nmant + 1),
    }


@_jit()
def _address(held: Any) -> Any:
    return held.ctypes.data


def build_address() -> Callable[[np.ndarray[Any, Any]], int]:
    """Return a function that gives the address of a one-dimensional contiguous u8 array.

    The array may be read-only.
    """
    signature = (types.Array(types.uint8, 1, "C", readonly=True),)
    _address.compile(signature)
    address: Callable[[np.ndarray[Any, Any]], int] = _address.overloads[signature].entry_point
    return address
