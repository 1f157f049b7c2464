"""Tensors as images with one pixel per element; NaN and infinities have distinct colors."""

from __future__ import annotations

import math
import struct
import zlib

import numpy as np
import numpy.typing as npt

from nncdbg.errors import UsageError
from nncdbg.ir.records import Array
from nncdbg.presentation.character_images import MARK_COLORS, VIRIDIS
from nncdbg.presentation.elements import is_text

Colors = npt.NDArray[np.uint8]

_SIDE = 256
"""Minimum number of pixels of the longer side: elements of small tensors become squares."""
_MOST = 1 << 26
"""Maximum number of pixels of an image."""
_GAP = (255, 255, 255)
"""Color between the matrices of a tensor with more than two axes."""


def painted(values: Array, low: float, high: float) -> Colors:
    """Return the colors (u8[..., 3]) of real numbers on a scale from `low` to `high`, dark to light."""
    wide = values.astype(np.float64)
    span = high / 2 - low / 2
    with np.errstate(invalid="ignore"):
        levels = np.zeros(wide.shape) if span == 0 else (wide / 2 - low / 2) / span
    known = np.nan_to_num(levels, nan=0.0, posinf=1.0, neginf=0.0)
    anchors = np.linspace(0, 1, len(VIRIDIS))
    channels = [np.interp(known, anchors, [color[index] for color in VIRIDIS]) for index in range(3)]
    colors = np.stack(channels, axis=-1).astype(np.uint8)
    for kind, color in zip((np.isnan(wide), wide == np.inf, wide == -np.inf), MARK_COLORS, strict=True):
        colors[kind] = color
    return colors


def png(array: Array) -> bytes:
    """Return a PNG file of a tensor: its matrices in a grid, on one color scale.

    The last two axes are the matrices. Raises UsageError for strings, for an empty tensor, and for more
    than 64 million pixels.
    """
    if is_text(array) or array.size == 0:
        raise UsageError("a picture needs numbers", hint="write a .txt file")
    if array.size > _MOST:
        raise UsageError(f"{array.size} elements are too many for a picture", hint="choose a slice: %h[0]")
    real = np.abs(array) if array.dtype.kind == "c" else array
    wide = real.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    return encoded(_enlarged(_tiled(painted(np.atleast_2d(wide), low, high))))


def _tiled(colors: Colors) -> Colors:
    """Arrange the images of a tensor (u8[..., rows, columns, 3]) in a grid, one pixel apart."""
    rows, columns = colors.shape[-3:-1]
    tiles = colors.reshape(-1, rows, columns, 3)
    if len(tiles) == 1:
        return np.asarray(tiles[0])
    across = min(len(tiles), max(1, math.ceil(math.sqrt(len(tiles) * (rows + 1) / (columns + 1)))))
    down = -(-len(tiles) // across)
    if down * (rows + 1) * across * (columns + 1) > 2 * _MOST:
        raise UsageError(
            f"the {len(tiles)} pictures of the tensor are too large for one image",
            hint="choose a slice: %h[0]",
        )
    sheet = np.full((down * (rows + 1) - 1, across * (columns + 1) - 1, 3), _GAP, np.uint8)
    for number, tile in enumerate(tiles):
        top, left = number // across * (rows + 1), number % across * (columns + 1)
        sheet[top : top + rows, left : left + columns] = tile
    return sheet


def _enlarged(colors: Colors) -> Colors:
    factor = max(1, _SIDE // max(colors.shape[:2]))
    enlarged: Colors = colors.repeat(factor, axis=0).repeat(factor, axis=1)
    return enlarged


def encoded(colors: Colors) -> bytes:
    """Encode an RGB image (u8[rows, columns, 3]) as PNG."""
    rows, columns = colors.shape[:2]
    lines = b"".join(b"\0" + row.tobytes() for row in colors)

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    return start + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
