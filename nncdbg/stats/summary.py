"""Statistics of a tensor: the record `Summary`, and `summarize`, which selects the pass for each array.

Contiguous memory goes to the compiled pass if that is ready, in two or more threads if it is large.
Strided memory goes to it block by block; everything else goes to the plain pass, in NumPy.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nncdbg import dtypes
from nncdbg.errors import UsageError
from nncdbg.process.threads import BackgroundThread
from nncdbg.representation import RichOutput
from nncdbg.stats.preparation import Kernel, address_of, kernels, looked_at


def _number(number: float | None, digits: int) -> str:
    """Format to `digits` significant digits; integers in full up to 7 digits."""
    if number is None:
        return "-"
    if isinstance(number, int) and abs(number) < 10**7:
        return str(number)
    return f"{number:.{digits}g}"


@dataclass(frozen=True, slots=True)
class Summary(RichOutput):
    """Statistics of one tensor.

    `min`, `max`, `mean` and `std` (population, ddof 0) are over the finite elements, None without any;
    `min` and `max` of integers and bools are exact ints. `subnormal` counts non-zero elements below the
    dtype's smallest normal number. `count` is the number of all elements. Complex tensors are
    summarised by their absolute values; for strings only `count` is set.
    """

    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    nan: int
    posinf: int
    neginf: int
    zero: int
    subnormal: int
    count: int

    @property
    def finite(self) -> int:
        """Return the number of elements that are neither NaN nor infinite."""
        return self.count - self.nan - self.posinf - self.neginf

    def as_dict(self) -> dict[str, float | int | None]:
        """Return the fields by name, in order, as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    def figures(self, digits: int = 4) -> list[tuple[str, str]]:
        """Return labels and numbers for a line: non-zero counts of NaN and infinities, then statistics.

        Without a finite element the line ends with the count of all elements: ``nan 12 of 12``.
        """
        counts = (("nan", self.nan), ("+inf", self.posinf), ("-inf", self.neginf))
        abnormal = [(label, str(count)) for label, count in counts if count]
        if abnormal and not self.finite:
            return [*abnormal, ("of", str(self.count))]
        statistics = (("min", self.min), ("mean", self.mean), ("max", self.max), ("std", self.std))
        return [*abnormal, *((label, _number(number, digits)) for label, number in statistics)]

    def __str__(self) -> str:
        return " ".join(f"{label} {number}" for label, number in self.figures())


class _Draft(RichOutput):
    """A summary under construction: the same slots, open to assignment.

    The `__init__` of a frozen dataclass calls `object.__setattr__` for each field, which costs more
    than the statistics of a small tensor.
    """

    __slots__ = Summary.__slots__

    def __init__(self, ends: Sequence[float | None], counts: Sequence[int], count: int) -> None:
        self.min, self.max, self.mean, self.std = ends
        self.nan, self.posinf, self.neginf, self.zero, self.subnormal = counts
        self.count = count


_PLAIN_BLOCK = 32768
"""Elements per block: a block in f64 and its deviations stay in the L2 cache."""


def summarize_plain(array: npt.NDArray[Any]) -> Summary:
    """Return the summary of an array of any dtype, shape and strides."""
    if array.dtype.kind in "OUST":
        return empty_summary(array.size)
    with np.errstate(all="ignore"):  # a signalling NaN that is widened is data, not a fault of ours
        return combine(_summarize_block(block) for block in blocks_of(array, _PLAIN_BLOCK))


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
    mean, std, other_mean, other_std = cast("list[float]", [a.mean, a.std, b.mean, b.std])
    share = b.finite / (a.finite + b.finite)
    halved = other_mean / 2 - mean / 2  # the difference itself may be beyond f64
    between = 2 * halved * math.sqrt(share * (1 - share))
    within = math.hypot(std * math.sqrt(1 - share), other_std * math.sqrt(share))
    return mean + 2 * (halved * share), math.hypot(within, between)


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


_PARALLEL = 1 << 22
"""Elements from which a second thread pays off."""

_PIECE = 1 << 21
"""Elements that a thread takes at a time; a power of two keeps the alignment of the whole."""

_THREADS = 4
"""Threads beyond which a pass is limited by memory bandwidth."""

_BLOCK = 65536
"""Elements per copied block of a strided array."""

_FLOAT_DTYPES = frozenset(dtypes.NUMPY[name] for name in dtypes.FLOATS)

_NO_ENDS: list[float | None] = [None, None, None, None]
_NO_COUNTS = [0, 0, 0, 0, 0]


class _Scratch(threading.local):
    """Output of the compiled pass in this thread: a row, and the exact extremes of integers."""

    def __init__(self) -> None:
        self.row = np.empty(10)
        self.ends = np.empty(2, np.int64)
        self.row_address = int(self.row.ctypes.data)
        self.ends_address = int(self.ends.ctypes.data)


_scratch = _Scratch()


def summarize(array: npt.ArrayLike) -> Summary:
    """Return the statistics of a tensor of any dtype of `engine.dtypes`, any shape and any strides.

    Mean and std differ from those of a two-pass computation in f64 by at most 1e-6 of their size, or 1e-12 of
    the data's magnitude. Elements are only read. Raises UsageError for a dtype that no tensor has.
    """
    tensor = array if type(array) is np.ndarray else np.asarray(array)
    kernel = kernels.get(tensor.dtype)
    flags = tensor.flags
    if kernel is None or not flags.aligned or not flags.forc:
        return _summarize_odd(tensor)
    if tensor.size >= _PARALLEL and _cores() > 1:
        return _in_threads(kernel, tensor.reshape(-1, order="A"))
    return _summarize_flat(kernel, tensor)


def _summarize_flat(kernel: Kernel, array: npt.NDArray[Any]) -> Summary:
    """Run one compiled pass over C- or Fortran-contiguous memory, in this thread."""
    flat = array if array.ndim == 1 else array.reshape(-1, order="A")
    address = address_of(flat.view(np.uint8))
    if kernel.exact:
        kernel.entry(*kernel.leading, _scratch.ends_address, address, flat.size, 0, _scratch.row_address)
    else:
        kernel.entry(*kernel.leading, address, flat.size, 0, _scratch.row_address)
    row = _scratch.row.tolist()
    ends: list[float | None] = [*row[:4]]
    counts = _NO_COUNTS if row[4:9] == _NO_COUNTS else [int(number) for number in row[4:9]]
    if ends[0] != ends[0]:
        ends = _NO_ENDS
    elif kernel.exact:
        exact = _scratch.ends if array.dtype.kind == "i" else _scratch.ends.view(np.uint64)
        ends[:2] = exact.tolist()
    elif array.dtype not in _FLOAT_DTYPES:
        ends[:2] = int(row[0]), int(row[1])
    draft: Any = _Draft(ends, counts, flat.size)
    draft.__class__ = Summary
    return draft  # type: ignore[no-any-return]


def _in_threads(kernel: Kernel, flat: npt.NDArray[Any]) -> Summary:
    """Summarize pieces of a large array in parallel: the compiled pass releases the interpreter lock.

    Each thread takes the next piece when it has finished one, so a busy core delays one piece, not its
    whole share.
    """
    pieces = [flat[start : start + _PIECE] for start in range(0, flat.size, _PIECE)]
    found = [empty_summary()] * len(pieces)
    tickets = itertools.count()

    def work() -> None:
        while (i := next(tickets)) < len(pieces):
            found[i] = _summarize_flat(kernel, pieces[i])

    threads = [BackgroundThread(work, "nncdbg-statistics") for _ in range(min(_THREADS, _cores()) - 1)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    return combine(found)


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _summarize_odd(array: npt.NDArray[Any]) -> Summary:
    """Summarize strings, complex numbers, strided and broadcast memory, and foreign byte order."""
    try:
        dtype = dtypes.NUMPY[dtypes.name_of(array.dtype)]
    except KeyError as error:
        raise UsageError(
            f"an array of {array.dtype} has no statistics", hint="pass an array of numbers"
        ) from error
    distinct = array[tuple(slice(None) if stride else slice(1) for stride in array.strides)]
    if distinct.size and distinct.size < array.size:
        once, times = _summarize_odd(distinct), array.size // distinct.size
        counts = (once.nan, once.posinf, once.neginf, once.zero, once.subnormal, once.count)
        return Summary(once.min, once.max, once.mean, once.std, *(times * count for count in counts))
    kernel = kernels.get(dtype)
    if kernel is None:
        looked_at(array.size)
        return summarize_plain(array)
    return combine(map(partial(_summarize_flat, kernel), blocks_of(array, _BLOCK)))
