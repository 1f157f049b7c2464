"""Statistics on the device: one kernel per result, with its row of ten numbers on the device.

Threads keep a running mean and sum of squares (Welford 1962), merged pairwise (Chan, Golub and
LeVeque 1979); the last block to finish merges the blocks and writes the row.  Types that the fused
kernel does not support are summed by functions of the namespace, which do not wait either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Summing: TypeAlias = Callable[[Any, Any], None]
"""``(array, row)``: write the row of `stats.inspection` for an array; both are on the device."""

THREADS = 256
BLOCKS = 512
"""The most blocks; the grid's threads stride over the elements."""

COLUMNS = 10

C_TYPES = {
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
    "bool": "bool",
}

SOURCE = r"""
struct Part { double low, high, mean, squares, nan, posinf, neginf, zero, subnormal, finite; };

__device__ void begin(Part& part) {
    part.low = __longlong_as_double(0x7ff0000000000000LL);
    part.high = -part.low;
    part.mean = part.squares = part.nan = part.posinf = part.neginf = 0;
    part.zero = part.subnormal = part.finite = 0;
}

__device__ void take(Part& part, double value, double tiny) {
    if (value != value) { part.nan += 1; return; }
    if (isinf(value)) { if (value > 0) part.posinf += 1; else part.neginf += 1; return; }
    part.finite += 1;
    part.low = fmin(part.low, value);
    part.high = fmax(part.high, value);
    part.zero += value == 0;
    part.subnormal += value != 0 && fabs(value) < tiny;
    double delta = value - part.mean;
    part.mean += delta / part.finite;
    part.squares += delta * (value - part.mean);
}

__device__ void merge(Part& part, const Part& other) {
    double finite = part.finite + other.finite;
    if (other.finite > 0) {
        double delta = other.mean - part.mean;
        part.squares += other.squares + delta * delta * part.finite * (other.finite / finite);
        part.mean += delta * (other.finite / finite);
        part.low = fmin(part.low, other.low);
        part.high = fmax(part.high, other.high);
    }
    part.finite = finite;
    part.nan += other.nan;
    part.posinf += other.posinf;
    part.neginf += other.neginf;
    part.zero += other.zero;
    part.subnormal += other.subnormal;
}

__device__ void merge_block(Part* parts) {
    for (unsigned int half_way = blockDim.x / 2; half_way > 0; half_way /= 2) {
        __syncthreads();
        if (threadIdx.x < half_way) merge(parts[threadIdx.x], parts[threadIdx.x + half_way]);
    }
    __syncthreads();
}

__device__ void write(const Part& part, double* row) {
    double none = __longlong_as_double(0x7ff8000000000000LL);
    bool any = part.finite > 0;
    row[0] = any ? part.low : none;
    row[1] = any ? part.high : none;
    row[2] = any ? part.mean : none;
    row[3] = any ? sqrt(part.squares / part.finite) : none;
    row[4] = part.nan;
    row[5] = part.posinf;
    row[6] = part.neginf;
    row[7] = part.zero;
    row[8] = part.subnormal;
    row[9] = part.finite + part.nan + part.posinf + part.neginf;
}

extern "C" __global__ void summarize(
    const ELEMENT* values, unsigned long long count, double tiny, Part* blocks, unsigned int* done,
    double* row
) {
    __shared__ Part parts[THREADS];
    __shared__ bool last;
    Part& mine = parts[threadIdx.x];
    begin(mine);
    unsigned long long step = (unsigned long long)blockDim.x * gridDim.x;
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        take(mine, (double)values[i], tiny);
    merge_block(parts);
    if (threadIdx.x == 0) {
        blocks[blockIdx.x] = parts[0];
        __threadfence();
        last = atomicAdd(done, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    begin(mine);
    for (unsigned int i = threadIdx.x; i < gridDim.x; i += blockDim.x) merge(mine, blocks[i]);
    merge_block(parts);
    if (threadIdx.x == 0) { write(parts[0], row); *done = 0; }
}
"""


def source_for(element: str) -> str:
    """Return the kernel's source for one C type."""
    source = SOURCE.replace("ELEMENT", element).replace("THREADS", str(THREADS))
    return f"#include <cuda_fp16.h>\n{source}" if element == "half" else source


def cuda_sources() -> dict[str, str]:
    """Return the source of the kernel for each C type, by name."""
    return {f"summarize of {element}": source_for(element) for element in C_TYPES.values()}


def summing(xp: Any) -> Summing:
    """Return the fused kernel if the namespace compiles kernels, as CuPy does; else its functions."""
    return Fused(xp) if hasattr(xp, "RawKernel") else Composed(xp)


class Fused:
    """One CUDA kernel per array.

    Not yet run on a device: its source compiles with NVRTC 12.9, and was run thread by thread on a CPU.
    """

    def __init__(self, xp: Any) -> None:
        self._xp = xp
        self._kernels: dict[str, Any] = {}
        self._composed = Composed(xp)
        # Kernels of one stream run one after the other, so they can share scratch memory.
        self._blocks = xp.empty(BLOCKS * COLUMNS, np.float64)
        self._done = xp.zeros(1, np.uint32)

    def __call__(self, array: Any, row: Any) -> None:
        element = C_TYPES.get(array.dtype.name)
        if element is None:
            self._composed(array, row)
            return
        if element not in self._kernels:
            self._kernels[element] = self._xp.RawKernel(source_for(element), "summarize")
        flat = self._xp.ascontiguousarray(array).reshape(-1)
        blocks = max(1, min(BLOCKS, -(-flat.size // THREADS)))
        arguments = (
            flat,
            np.uint64(flat.size),
            np.float64(_tiny(array.dtype)),
            self._blocks,
            self._done,
            row,
        )
        self._kernels[element]((blocks,), (THREADS,), arguments)


class Composed:
    """The same row from functions of the namespace: several kernels, no waiting."""

    def __init__(self, xp: Any) -> None:
        self._xp = xp

    def __call__(self, array: Any, row: Any) -> None:
        xp = self._xp
        if array.size == 0:
            row[:4], row[4:] = np.nan, 0.0
            return
        values = xp.abs(array) if array.dtype.kind == "c" else array
        wide = values.astype(np.float64).reshape(-1)
        finite = xp.isfinite(wide)
        count = finite.sum(dtype=np.float64)
        known = xp.where(finite, wide, 0.0)
        # 0 / 0 is NaN, the mean in a row without finite elements.
        mean = known.sum() / count
        spread = xp.where(finite, wide - mean, 0.0)
        ends = (
            xp.where(finite, wide, np.inf).min(),
            xp.where(finite, wide, -np.inf).max(),
        )
        row[0] = xp.where(count > 0, ends[0], np.nan)
        row[1] = xp.where(count > 0, ends[1], np.nan)
        row[2] = mean
        row[3] = xp.sqrt((spread * spread).sum() / count)
        small = xp.abs(wide) < _tiny(array.dtype)
        flags = (xp.isnan(wide), wide == np.inf, wide == -np.inf, wide == 0, small & (wide != 0))
        for column, flag in enumerate(flags, 4):
            row[column] = flag.sum(dtype=np.float64)
        row[9] = float(wide.size)


def _tiny(dtype: Any) -> float:
    """Return the smallest normal number of a float type; 0 for other types."""
    return float(np.finfo(dtype).smallest_normal) if dtype.kind in "fc" else 0.0
