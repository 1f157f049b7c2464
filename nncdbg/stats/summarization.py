"""`summarize`: selects the pass for each array.

Contiguous memory goes to the compiled pass if that is ready, in two or more threads if it is large.
Strided memory goes to it block by block; everything else goes to the plain pass.
"""

from __future__ import annotations

import itertools
import os
import threading
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from nncdbg.engine import dtypes
from nncdbg.engine.errors import UsageError
from nncdbg.engine.process.threads import BackgroundThread
from nncdbg.stats.kernel import Kernel
from nncdbg.stats.plain import blocks_of, combine, empty_summary, summarize_plain
from nncdbg.stats.preparation import address_of, kernels, looked_at
from nncdbg.stats.summary import Summary, build_summary

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
    return build_summary(ends, counts, flat.size)


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
        return _repeated(_summarize_odd(distinct), array.size // distinct.size)
    kernel = kernels.get(dtype)
    if kernel is None:
        looked_at(array.size)
        return summarize_plain(array)
    return combine(map(partial(_summarize_flat, kernel), blocks_of(array, _BLOCK)))


def _repeated(once: Summary, times: int) -> Summary:
    """Return the summary of a tensor that repeats each element of another one `times` times."""
    counts = (once.nan, once.posinf, once.neginf, once.zero, once.subnormal, once.count)
    return Summary(once.min, once.max, once.mean, once.std, *(times * count for count in counts))
