"""Codecs for tensors of the history: exact, a cast to f16, and blocks of 16 elements in 8 bytes.

The lossy codecs are for history only, never for checkpoints.  They measure their error while they encode, and
never change which elements are NaN or Inf.

The codec ``blocks`` stores 16 elements as an f16 minimum, an f16 maximum and sixteen 2-bit levels between
them: 8 bytes, a quarter of f16.  A block has 4 x 4 elements of the last two axes, or 16 consecutive elements
if one of these axes has fewer than 4.  Source: the activation compression LSSC of libnnc, 4 x 4 blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nncdbg.dtypes import NUMPY, name_of
from nncdbg.errors import LoadError, UsageError
from nncdbg.ir.records import Array

Blocks: TypeAlias = npt.NDArray[Any]
"""Elements with one row per block; within a piece, with one column per block, which NumPy reduces faster."""

_SIDE, _ELEMENTS, _BYTES = 4, 16, 8
_PIECE = 1 << 13
"""Blocks that are encoded at a time, so that intermediate results stay in the cache."""

_CELL = np.dtype([("low", "<f2"), ("high", "<f2"), ("levels", "<u4")])
"""A block.  A `low` of NaN marks a block that is stored unchanged; `levels` is then its place among them."""

_SHIFTS = np.arange(0, 32, 2, dtype=np.uint32)
_LARGEST = float(np.finfo(np.float16).max)
_LOSSY = ("f16", "bf16", "f32", "f64")


@dataclass(frozen=True, slots=True)
class CodecError:
    """The measured error of the finite elements.

    `absolute` is the largest difference, `relative` the largest quotient of a difference and the range of its
    block (blocks whose elements are all equal are left out), `rms` the root of the mean square.
    """

    absolute: float
    relative: float
    rms: float


EXACT = CodecError(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class EncodedTensor:
    """A tensor of this type and shape as bytes of a codec, with the error of its elements."""

    codec: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes
    error: CodecError


@dataclass(slots=True)
class _Measurement:
    """The error of a tensor, measured in pieces."""

    absolute: float = 0.0
    relative: float = 0.0
    squares: float = 0.0
    count: int = 0

    def add(self, before: Blocks, after: Blocks, own: Blocks | None) -> None:
        """Add blocks in columns; `own` is False for elements that only fill up a block, None if none does."""
        measured = np.isfinite(before) if own is None else own & np.isfinite(before)
        exact, difference = before.astype(np.float64), after.astype(np.float64)
        if measured.all():
            low, high = exact.min(axis=0), exact.max(axis=0)
        else:
            low = np.where(measured, exact, np.inf).min(axis=0)
            high = np.where(measured, exact, -np.inf).max(axis=0)
            exact, difference = np.where(measured, exact, 0), np.where(measured, difference, 0)
        difference -= exact
        np.abs(difference, out=difference)
        largest = difference.max(axis=0)
        ranges = np.subtract(high, low, where=high > low, out=np.zeros_like(high))
        self.absolute = max(self.absolute, float(largest.max()))
        quotients = np.divide(largest, ranges, where=ranges > 0, out=np.zeros_like(ranges))
        self.relative = max(self.relative, float(quotients.max()))
        self.squares += float(np.vdot(difference, difference))
        self.count += int(np.count_nonzero(measured))

    def error(self) -> CodecError:
        return CodecError(self.absolute, self.relative, math.sqrt(self.squares / max(1, self.count)))


# -- blocks of a tensor --------------------------------------------------------------------------------


def _is_grid(shape: tuple[int, ...]) -> bool:
    return len(shape) >= 2 and min(shape[-2:]) >= _SIDE


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def _padded_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return (matrices, rows, columns) with whole blocks, or the number of elements with whole blocks."""
    if _is_grid(shape):
        return (math.prod(shape[:-2]), _up(shape[-2], _SIDE), _up(shape[-1], _SIDE))
    return (_up(math.prod(shape), _ELEMENTS),)


def block_count(shape: tuple[int, ...]) -> int:
    """Return the number of blocks of a tensor."""
    return math.prod(_padded_shape(shape)) // _ELEMENTS


def _own(shape: tuple[int, ...]) -> Blocks | None:
    """Return False for the elements that only fill up a block; None if there are none."""
    if math.prod(_padded_shape(shape)) == math.prod(shape):
        return None
    return _blocks(np.ones(shape, np.bool_), "constant")


def _columns(blocks: Blocks) -> Blocks:
    return np.ascontiguousarray(blocks.T)


def _blocks(array: Array, mode: Any = "edge") -> Blocks:
    """Return the elements in blocks; the last ones are filled up by `mode` of `numpy.pad`."""
    padded = _padded_shape(array.shape)
    flat = array.reshape((-1, *array.shape[-2:]) if _is_grid(array.shape) else -1)
    if 0 in padded:
        return np.empty((0, _ELEMENTS), array.dtype)
    if flat.shape != padded:
        more = [(0, whole - size) for size, whole in zip(flat.shape, padded, strict=True)]
        flat = np.pad(flat, more, mode)
    if flat.ndim == 1:
        return flat.reshape(-1, _ELEMENTS)
    count, rows, columns = padded
    grid = flat.reshape(count, rows // _SIDE, _SIDE, columns // _SIDE, _SIDE)
    return grid.swapaxes(2, 3).reshape(-1, _ELEMENTS)


def _joined(blocks: Blocks, shape: tuple[int, ...]) -> Array:
    padded = _padded_shape(shape)
    if len(padded) == 1:
        return blocks.reshape(-1)[: math.prod(shape)].reshape(shape)
    count, rows, columns = padded
    grid = blocks.reshape(count, rows // _SIDE, columns // _SIDE, _SIDE, _SIDE).swapaxes(2, 3)
    whole = grid.reshape(padded)[:, : shape[-2], : shape[-1]]
    return np.ascontiguousarray(whole).reshape(shape)


def _pieces(count: int) -> Iterator[slice]:
    return (slice(start, min(start + _PIECE, count)) for start in range(0, count, _PIECE))


# -- the codecs ----------------------------------------------------------------------------------------


def _encode_f16(array: Array) -> tuple[bytes, CodecError]:
    """Cast to f16.  Raises UsageError for finite elements that f16 has no finite number for."""
    with np.errstate(over="ignore", under="ignore"):
        stored = array.astype("<f2")
    beyond = np.count_nonzero(np.isinf(stored) & np.isfinite(array))
    if beyond:
        raise UsageError(
            f"cannot store the tensor as f16: {beyond} elements are beyond {_LARGEST:.0f}",
            hint="use the codec blocks or exact",
        )
    measurement = _Measurement()
    before, after, own = _blocks(array), _blocks(stored), _own(array.shape)
    for piece in _pieces(len(before)):
        found = _columns(after[piece]).astype(array.dtype)
        measurement.add(_columns(before[piece]), found, None if own is None else _columns(own[piece]))
    return stored.tobytes(), measurement.error()


def _encode_blocks(array: Array) -> tuple[bytes, CodecError]:
    """Encode blocks; those with NaN, Inf, or an element beyond f16 follow unchanged after the others."""
    blocks, own = _blocks(array), _own(array.shape)
    cells = np.empty(len(blocks), _CELL)
    unchanged: list[bytes] = []
    count, measurement = 0, _Measurement()
    for piece in _pieces(len(blocks)):
        part, before = cells[piece], _columns(blocks[piece])
        numbers = before.astype(np.float64 if before.dtype == np.float64 else np.float32)
        low, high = numbers.min(axis=0), numbers.max(axis=0)
        # A comparison with NaN is False.
        fits: npt.NDArray[np.bool_] = (low >= -_LARGEST) & (high <= _LARGEST)
        if not fits.all():
            numbers, low, high = (np.where(fits, each, 0) for each in (numbers, low, high))
        part["low"], part["high"] = low, high
        part["levels"] = _packed(_levels(numbers, part["low"], part["high"]))
        after = _unpacked(part, array.dtype)
        if not fits.all():
            raw = blocks[piece][~fits]
            part["low"][~fits] = np.nan
            part["levels"][~fits] = np.arange(count, count + len(raw), dtype=np.uint32)
            unchanged.append(raw.tobytes())
            count += len(raw)
            after[:, ~fits] = raw.T
        measurement.add(before, after, None if own is None else _columns(own[piece]))
    return b"".join((cells.tobytes(), *unchanged)), measurement.error()


def _decode_blocks(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    count = block_count(shape)
    cells = np.frombuffer(data[: count * _BYTES], _CELL, count)
    raw = np.frombuffer(data[count * _BYTES :], dtype).reshape(-1, _ELEMENTS)
    unchanged = np.isnan(cells["low"])
    if not np.array_equal(cells["levels"][unchanged], np.arange(len(raw))):
        raise ValueError("the unchanged blocks are not complete")
    blocks = np.empty((count, _ELEMENTS), dtype)
    for piece in _pieces(count):
        blocks[piece] = _unpacked(cells[piece], dtype).T
    blocks[unchanged] = raw
    return _joined(blocks, shape)


def _levels(numbers: Blocks, low: Blocks, high: Blocks) -> Blocks:
    """Return the nearest of four levels, 0 to 3, for each element."""
    start = low.astype(numbers.dtype)
    width = high.astype(numbers.dtype) - start
    scale = np.divide(3, width, where=width > 0, out=np.zeros_like(width))
    levels: Blocks = np.rint((numbers - start) * scale).clip(0, 3).astype(np.uint32)
    return levels


def _packed(levels: Blocks) -> Blocks:
    """Return sixteen levels of each block as one u32."""
    packed: Blocks = levels[0]
    for number in range(1, _ELEMENTS):
        packed = packed | levels[number] << np.uint32(2 * number)
    return packed


def _unpacked(cells: npt.NDArray[Any], dtype: np.dtype[Any]) -> Blocks:
    """Return the elements of blocks in columns; those of unchanged blocks are NaN."""
    kind: Any = np.float64 if dtype == np.float64 else np.float32
    low, high = cells["low"].astype(kind), cells["high"].astype(kind)
    levels = ((cells["levels"] >> _SHIFTS[:, None]) & np.uint32(3)).astype(kind)
    # Exact for the levels 0 and 3: three times an f16 number fits into f32.
    elements: Blocks = levels * high
    levels -= kind(3)
    levels *= low
    elements -= levels
    elements /= kind(3)
    converted: Blocks = elements.astype(dtype, copy=False)
    return converted


_Encode: TypeAlias = Callable[[Array], tuple[bytes, CodecError]]
_Decode: TypeAlias = Callable[[bytes, np.dtype[Any], tuple[int, ...]], Array]

CODECS: dict[str, tuple[_Encode, _Decode]] = {
    "exact": (
        lambda array: (array.tobytes(), EXACT),
        lambda data, dtype, shape: np.frombuffer(data, dtype).reshape(shape).copy(),
    ),
    "f16": (
        _encode_f16,
        lambda data, dtype, shape: np.frombuffer(data, "<f2").reshape(shape).astype(dtype),
    ),
    "blocks": (_encode_blocks, _decode_blocks),
}
"""The functions of each codec."""


def encode(array: Array, codec: str = "exact") -> EncodedTensor:
    """Return a tensor as bytes, with the measured error.

    The size is the number of bytes of the tensor (``exact``), two bytes per element (``f16``), or eight
    bytes per block of 16 elements (``blocks``), and the block itself where it has NaN, Inf or an element
    beyond 65504.  The lossy codecs take f16, bf16, f32 and f64.  Raises UsageError for other types, an
    unknown codec, and a tensor that the codec cannot store.
    """
    encoder, _ = _functions(codec)
    dtype = "str" if array.dtype.hasobject else name_of(array.dtype)
    if dtype == "str" or (codec != "exact" and dtype not in _LOSSY):
        raise UsageError(
            f"the codec {codec} cannot store a tensor of {dtype}",
            hint="exact stores numbers of any type" if dtype != "str" else None,
        )
    data, error = encoder(np.asarray(array, NUMPY[dtype], order="C"))
    return EncodedTensor(codec, dtype, array.shape, data, error)


def decode(encoded: EncodedTensor) -> Array:
    """Return the tensor.  Raises UsageError for bytes that do not belong to its codec, type and shape."""
    _, decoder = _functions(encoded.codec)
    try:
        return decoder(encoded.data, NUMPY[encoded.dtype], encoded.shape)
    except (ValueError, OverflowError, MemoryError):
        raise UsageError(
            f"cannot decode {len(encoded.data)} bytes of the codec {encoded.codec} as "
            f"{encoded.dtype}{list(encoded.shape)}"
        ) from None


def check_codec(codec: str) -> None:
    """Raise UsageError for an unknown codec."""
    _functions(codec)


def _functions(codec: str) -> tuple[_Encode, _Decode]:
    if codec not in CODECS:
        raise UsageError(f"there is no codec {codec!r}", hint=f"use one of: {', '.join(CODECS)}")
    return CODECS[codec]


# -- compression of the chunks of tensors --------------------------------------------------------------

NONE = "none"
ZSTD = "zstd"
NAMES = (NONE, ZSTD)

_LEVEL = 3
_HINT = 'install it: pip install "nncdbg[journal]"'

Compression = Callable[[Any], bytes]


def compressor(name: str) -> Compression | None:
    """Return the function that compresses a chunk; None for no compression.  Raises UsageError."""
    if name not in NAMES:
        raise UsageError(f'unknown compression "{name}"', hint=f"use one of {', '.join(NAMES)}")
    if name == NONE:
        return None
    try:
        import zstandard
    except ImportError:
        raise UsageError("compression with zstd needs the library zstandard", hint=_HINT) from None
    return zstandard.ZstdCompressor(level=_LEVEL).compress


def decompressor(name: str, size: int, path: Path) -> Compression | None:
    """Return the function that restores a chunk of at most `size` bytes or raises ValueError.

    None if the chunks are not compressed.

    Raises LoadError without the library, or for the compression of a newer version.
    """
    if name == NONE:
        return None
    if name != ZSTD:
        raise LoadError(f'{path} has tensors with the unknown compression "{name}"')
    try:
        import zstandard
    except ImportError:
        raise LoadError(f"{path} has tensors compressed with zstd", hint=_HINT) from None
    decompress = zstandard.ZstdDecompressor().decompress

    def restored(chunk: bytes) -> bytes:
        try:
            return decompress(chunk, max_output_size=size)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from None

    return restored
