"""Block reductions of a tensor, so that an image with few cells shows every anomaly.

Sampling can miss a single NaN among millions of elements; a block reduction reports it. The reductions
cover the finite elements, and flags report NaN and infinities separately.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nncdbg import dtypes
from nncdbg.errors import UsageError
from nncdbg.stats.histograms import Between
from nncdbg.stats.summary import absolute

Reduction: TypeAlias = Literal["mean", "min", "max", "absmax", "range"]
"""`absmax` is the element farthest from zero, with its sign; `range` is the minimum and the maximum."""

NAN, POSITIVE_INFINITY, NEGATIVE_INFINITY = 1, 2, 4
"""Bits of `BlockReduction.flags`."""

_PIECE = 1 << 20
"""Elements reduced at a time, so that intermediate results stay in the cache."""

_STRINGS = "OUST"

_SHORT = 128
"""Elements up to which a row is short."""

_Part: TypeAlias = "tuple[slice, ...]"


@dataclass(frozen=True, slots=True, eq=False)
class BlockReduction:
    """One cell per block in `data`, NaN without a finite element; `range` has two along a last axis.

    `flags` (u8, one cell per block) has the bits of the non-finite elements in the block. `nan`,
    `posinf` and `neginf` count over the whole tensor.
    """

    data: npt.NDArray[Any]
    flags: npt.NDArray[np.uint8]
    nan: int
    posinf: int
    neginf: int


def reduce_blocks(
    array: npt.NDArray[Any],
    steps: Sequence[int],
    reduction: Reduction,
    between: Between,
    minus: npt.NDArray[Any] | None = None,
) -> BlockReduction:
    """Reduce each block of `steps[i]` elements along axis i to a cell; the last blocks may be shorter.

    Complex elements are reduced by their absolute values. With `minus`, a tensor of the same shape, the
    difference is reduced, in f64; equal elements differ by 0, including NaN and infinities. `between`
    is called before each piece. Raises UsageError for strings.
    """
    if array.dtype.kind in _STRINGS:
        raise UsageError("strings cannot be reduced", hint="take every n-th element")

    def read(part: _Part) -> npt.NDArray[Any]:
        return numbers(array[part]) if minus is None else difference(array[part], minus[part])

    cells = tuple(-(-size // step) for size, step in zip(array.shape, steps, strict=True))
    first = read((slice(0, 0),) * array.ndim)
    kind = np.dtype(np.float64) if reduction == "mean" else first.dtype
    data = np.empty((*cells, 2) if reduction == "range" else cells, kind)
    flags = np.zeros(cells, np.uint8)
    counts = [0, 0, 0]
    with np.errstate(all="ignore"):
        for part, place in _pieces(array.shape, steps):
            between()
            piece = read(part)
            done, odd = _reduced(piece, steps, reduction)
            data[place] = done
            if odd is not None:
                flags[place] = _blockwise(np.bitwise_or, odd, steps)
                for number, bit in enumerate((NAN, POSITIVE_INFINITY, NEGATIVE_INFINITY)):
                    counts[number] += int(np.count_nonzero(odd & bit))
    return BlockReduction(data, flags, *counts)


def numbers(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert to types that NumPy compares fast: narrow floats to f32, complex to absolute values."""
    kind, dtype = array.dtype.kind, array.dtype
    if kind == "b":
        return array.view(np.uint8)
    if kind == "c":
        return absolute(array)
    if kind == "V":
        return array.astype(np.int8 if dtypes.name_of(dtype) in dtypes.INTEGERS else np.float32)
    if kind == "f" and dtype.itemsize < 4:
        return array.astype(np.float32)
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="))


def difference(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return ``a - b`` in f64, or ``|a - b|`` of complex numbers; 0 for equal elements, also NaN and Inf.

    Raises UsageError for strings.
    """
    if a.dtype.kind in _STRINGS or b.dtype.kind in _STRINGS:
        raise UsageError("strings have no difference", hint="compare them as text")
    wide = [each.astype(np.complex128 if each.dtype.kind == "c" else np.float64) for each in (a, b)]
    with np.errstate(all="ignore"):
        same = (wide[0] == wide[1]) | (np.isnan(wide[0]) & np.isnan(wide[1]))
        apart = wide[0] - wide[1]
    found = np.where(same, 0, apart)
    return np.asarray(absolute(found) if found.dtype.kind == "c" else found)


def next_nonfinite(array: npt.NDArray[Any], start: int, between: Between) -> int | None:
    """Find the next NaN or infinity from `start` on, in C order; None if all elements are finite.

    The search wraps around to the first element, so the position may be before `start`. `between` is
    called before each piece. Complex elements count by their absolute values; strings are finite.
    """
    if array.dtype.kind not in "fcV":
        return None
    # A view if the tensor is contiguous.
    flat = array.reshape(-1)
    for first, end in ((start, flat.size), (0, min(start, flat.size))):
        for low in range(first, end, _PIECE):
            between()
            odd = ~np.isfinite(numbers(flat[low : min(low + _PIECE, end)]))
            if odd.any():
                return low + int(odd.argmax())
    return None


def _pieces(shape: Sequence[int], steps: Sequence[int]) -> Iterator[tuple[_Part, _Part]]:
    """Split a tensor along its first axis longer than 1; yield parts of whole blocks and their cells."""
    everything = (slice(None),) * len(shape)
    axis = next((axis for axis, size in enumerate(shape) if size > 1), None)
    if axis is None:
        yield everything, everything
        return
    across = max(1, math.prod(shape) // shape[axis])
    blocks = max(1, _PIECE // (across * steps[axis]))
    for start in range(0, -(-shape[axis] // steps[axis]), blocks):
        cells = slice(start, start + blocks)
        part = slice(start * steps[axis], (start + blocks) * steps[axis])
        yield ((*everything[:axis], part), (*everything[:axis], cells))


def _reduced(
    piece: npt.NDArray[Any], steps: Sequence[int], reduction: Reduction
) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8] | None]:
    """Reduce a piece to cells; also return the flags of each element, None if all are finite.

    The first passes take all elements. Non-finite elements make their results non-finite, and only then
    are the elements checked one by one.
    """
    floats = piece.dtype.kind == "f"
    if reduction == "mean":
        total = _blockwise(np.add, piece, steps, dtype=np.float64)
        if not floats or np.isfinite(total).all():
            return total / _lengths(piece.shape, steps), None
        finite, odd = _classified(piece)
        # A sum beyond f64 stays infinite: it is not an infinity among the elements.
        total = _blockwise(np.add, np.where(finite, piece, 0), steps, dtype=np.float64)
        return total / _blockwise(np.add, finite, steps, dtype=np.int64), odd
    low, high = (_blockwise(each, piece, steps) for each in (np.minimum, np.maximum))
    strange: npt.NDArray[np.uint8] | None = None
    if floats and not (np.isfinite(low).all() and np.isfinite(high).all()):
        finite, strange = _classified(piece)
        if not finite.any():
            return _chosen(np.full_like(low, np.nan), np.full_like(high, np.nan), reduction), strange
        low = _blockwise(np.minimum, np.where(finite, piece, np.inf), steps)
        high = _blockwise(np.maximum, np.where(finite, piece, -np.inf), steps)
        low[np.isinf(low)] = high[np.isinf(high)] = np.nan
    return _chosen(low, high, reduction), strange


def _chosen(low: npt.NDArray[Any], high: npt.NDArray[Any], reduction: Reduction) -> npt.NDArray[Any]:
    if reduction == "min":
        return low
    if reduction == "max":
        return high
    if reduction == "range":
        return np.stack((low, high), axis=-1)
    # Not by abs(): the least integer has none.
    return np.where((low < 0) & ((high <= 0) | (-low.astype(np.float64) > high)), low, high)


def _classified(piece: npt.NDArray[Any]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint8]]:
    """Return which elements are finite, and the flags of each."""
    odd = np.isnan(piece).view(np.uint8) * np.uint8(NAN)
    odd |= (piece == np.inf).view(np.uint8) * np.uint8(POSITIVE_INFINITY)
    odd |= (piece == -np.inf).view(np.uint8) * np.uint8(NEGATIVE_INFINITY)
    return odd == 0, odd


def _blockwise(
    reduce: np.ufunc, array: npt.NDArray[Any], steps: Sequence[int], dtype: Any = None
) -> npt.NDArray[Any]:
    """Reduce each block, one axis after the other, so that the outer ones read memory in order."""
    for axis in sorted(range(array.ndim), key=lambda each: -abs(array.strides[each])):
        step, size = steps[axis], array.shape[axis]
        if step == 1 or size == 0:
            continue
        whole = size // step * step
        before = (slice(None),) * axis
        done = _along(reduce, array[(*before, slice(0, whole))], axis, step, dtype)
        if whole < size:
            rest = reduce.reduce(array[(*before, slice(whole, None))], axis=axis, dtype=dtype, keepdims=True)
            done = np.concatenate((done, rest), axis=axis)
        array = done
    return array if dtype is None else array.astype(dtype, copy=False)


def _along(reduce: np.ufunc, array: npt.NDArray[Any], axis: int, step: int, dtype: Any) -> npt.NDArray[Any]:
    """Reduce each `step` elements along an axis to one; its length is a multiple of `step`.

    NumPy reduces short rows slowly, so the halves of a step are combined first.
    """
    split = array.reshape(*array.shape[:axis], array.shape[axis] // step, step, *array.shape[axis + 1 :])
    inner = math.prod(array.shape[axis + 1 :])
    before = (slice(None),) * (axis + 1)
    while step % 2 == 0 and inner < _SHORT:
        step //= 2
        halves = split[(*before, slice(0, step))], split[(*before, slice(step, None))]
        split = reduce(*halves, dtype=dtype)
    if step == 1:
        return split.reshape(*split.shape[: axis + 1], *split.shape[axis + 2 :])
    return np.asarray(reduce.reduce(split, axis=axis + 1, dtype=dtype))


def _lengths(shape: Sequence[int], steps: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the number of elements of each block."""
    found = np.ones((1,) * len(shape), np.int64)
    for axis, (size, step) in enumerate(zip(shape, steps, strict=True)):
        starts = np.arange(0, size, step)
        along = np.minimum(size - starts, step)
        found = found * along.reshape(-1, *(1,) * (len(shape) - axis - 1))
    return found


def check_same_shape(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> None:
    """Raise UsageError for two tensors of different shapes."""
    if a.shape != b.shape:
        raise UsageError(
            f"tensors of shape {list(a.shape)} and {list(b.shape)} cannot be compared",
            hint="compare tensors of the same shape",
        )
