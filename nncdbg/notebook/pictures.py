"""Small pictures of tensors: a line for one axis, an image for two, and the first images of more."""

from __future__ import annotations

import base64
import math

import numpy as np

from nncdbg.ir.records import Array
from nncdbg.presentation.character_images import MARK_COLORS
from nncdbg.presentation.elements import is_text
from nncdbg.presentation.png_images import Colors, encoded, painted
from nncdbg.stats.blocks import NAN, NEGATIVE_INFINITY, POSITIVE_INFINITY, BlockReduction, reduce_blocks

_CELLS = 128
"""Most cells of an image along an axis, and most points of a line."""
_CHANNELS = 6
"""Most images of a tensor with three axes or more."""


def picture(array: Array, height: int) -> str:
    """Return HTML of a picture `height` pixels high; "" if there is nothing to draw.

    Each cell is the mean of the finite elements of its block.  A block with any NaN or Inf has the color of
    that value.
    """
    blocks = [_blocks(part) for part in _parts(array)]
    if not blocks:
        return ""
    if blocks[0].data.ndim == 1:
        return _line(blocks[0], height)
    low, high = _scale([block.data for block in blocks])
    return " ".join(_image(_painted(block, low, high), height) for block in blocks)


def caption(array: Array) -> str:
    """Return the legend of a picture: the scale, the number of images, and the elements of a cell."""
    parts = _parts(array)
    if not parts:
        return ""
    low, high = _scale([_blocks(part).data for part in parts])
    words = [f"scale {low:.4g} to {high:.4g}"]
    total = array.size // max(1, parts[0].size)
    if total > 1:
        words.append(f"images 1 to {len(parts)} of {total}")
    steps = _steps(parts[0])
    if max(steps) > 1:
        words.append(f"each cell is the mean of {' x '.join(map(str, steps))} elements")
    return "; ".join(words)


def _parts(array: Array) -> list[Array]:
    """Return the line or the images to draw; none for strings and scalars."""
    shown = array.squeeze()
    if is_text(array) or array.size == 0 or shown.ndim == 0:
        return []
    return [shown] if shown.ndim == 1 else [*shown.reshape(-1, *shown.shape[-2:])[:_CHANNELS]]


def _steps(array: Array) -> list[int]:
    """Return the number of elements per cell along each axis."""
    return [-(-size // _CELLS) for size in array.shape]


def _blocks(array: Array) -> BlockReduction:
    return reduce_blocks(array, _steps(array), "mean", lambda: None)


def _scale(parts: list[Array]) -> tuple[float, float]:
    """Return the smallest and the largest mean; 0 and 0 if no element is finite."""
    known = [part[np.isfinite(part)] for part in parts]
    flat = np.concatenate([part.reshape(-1) for part in known])
    return (float(flat.min()), float(flat.max())) if flat.size else (0.0, 0.0)


def _painted(blocks: BlockReduction, low: float, high: float) -> Colors:
    """Return the colors (u8[rows, columns, 3]) of an image, scaled from `low` to `high`."""
    colors = painted(blocks.data, low, high)
    for bit, color in zip((NEGATIVE_INFINITY, POSITIVE_INFINITY, NAN), reversed(MARK_COLORS), strict=True):
        colors[(blocks.flags & bit) > 0] = color
    return colors


def _image(colors: Colors, height: int) -> str:
    rows, columns = colors.shape[:2]
    # Keep the aspect ratio as long as a strip of one row or one column stays visible.
    width = min(max(round(height * columns / rows), 8), 4 * height)
    source = "data:image/png;base64," + base64.b64encode(encoded(colors)).decode("ascii")
    return f'<img src="{source}" width="{width}" height="{height}" alt="">'


def _line(blocks: BlockReduction, height: int) -> str:
    """Return a line over the elements, with a mark at non-finite ones."""
    low, high = _scale([blocks.data])
    count, width = len(blocks.data), 2 * height
    span = high / 2 - low / 2

    def x(index: int) -> float:
        return round((index + 0.5) * width / count, 2)

    def y(value: float) -> float:
        level = 0.5 if span == 0 else (value / 2 - low / 2) / span
        return round(1.5 + (height - 3) * (1 - level), 2)

    points = [f"{x(index)},{y(value)}" for index, value in enumerate(blocks.data) if math.isfinite(value)]
    marks = [
        f'<rect x="{x(index) - 1}" width="2" height="{height}" fill="{_name(int(flags))}"/>'
        for index, flags in enumerate(blocks.flags)
        if flags
    ]
    line = f'<polyline points="{" ".join(points)}" fill="none" stroke="#2a8f8f" stroke-width="1.5"/>'
    return f'<svg width="{width}" height="{height}">{"".join(marks)}{line}</svg>'


def _name(flags: int) -> str:
    """Return the color of a block with these flags; NaN takes precedence over Inf."""
    bits = (NAN, POSITIVE_INFINITY, NEGATIVE_INFINITY)
    color = next(color for bit, color in zip(bits, MARK_COLORS, strict=True) if flags & bit)
    return "rgb({},{},{})".format(*color)
