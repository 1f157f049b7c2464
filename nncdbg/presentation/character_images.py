"""Tensors as images: half blocks in color, or characters of increasing density without color.

Cells are means of the finite elements of an area. An area with a NaN is always marked, even for a single
NaN, because finding NaNs is the purpose of the image.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.errors import UsageError
from nncdbg.ir.records import Array
from nncdbg.presentation.element_grid import choose_slice
from nncdbg.presentation.elements import BAD, DIM, Layout, is_text, packed, stacked, text, type_of
from nncdbg.presentation.sparkline import BARS

if TYPE_CHECKING:
    from rich.text import Text

_RAMP = " .:-=+*#%@"
_MARKS = "?!^v"
"""By kind of area: (a mean), NaN, only +inf, only -inf."""
MARK_COLORS = ((255, 0, 255), (255, 40, 40), (40, 80, 255))
"""Colors of areas with a NaN, with only +inf, with only -inf."""
VIRIDIS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""Anchors of matplotlib's color map of that name, dark to light."""

_LINES = 20
"""Maximum number of lines of an image, without caption."""
_CHANNEL = 16
"""Maximum width in cells of a channel in a strip."""


@dataclass(frozen=True, slots=True)
class Areas:
    """Means of areas (0 if there is none), and the kind of each: 0 for a mean, else an index of `_MARKS`."""

    means: Array
    kinds: Array

    def scale(self) -> tuple[float, float] | None:
        """Return the minimum and maximum mean, None if there are no means."""
        known = self.means[self.kinds == 0]
        return (float(known.min()), float(known.max())) if known.size else None


def image(array: Array, index: Any = None, *, layout: Layout | None = None, lines: int = _LINES) -> Text:
    """Return an image of the last two axes of `array[index]`, at most `lines` high.

    Dark is the minimum, light the maximum finite mean; a constant image is dark. Raises UsageError for
    strings, for fewer than two axes and for an invalid index.
    """
    view = layout or Layout()
    shown, _, caption = choose_slice(array, index)
    _check_numbers(array)
    if shown.ndim < 2:
        raise UsageError(f"a picture needs two axes, but {type_of(shown)} has {shown.ndim}", hint="use grid")
    if shown.size == 0:
        return stacked([*([caption] if caption else []), "(empty)"], view)
    height, width = _fit(shown.shape[0], shown.shape[1], view.width, lines)
    areas = _areas(shown, _rows(height, view), width)
    captions = [*([caption] if caption else []), _scale_text(areas.scale()), *_mean_text(shown, areas)]
    return stacked([*packed(captions, view), *_draw(areas, areas.scale(), view)], view)


def channel_strip(
    array: Array, index: Any = None, *, layout: Layout | None = None, lines: int = _LINES
) -> Text:
    """Return the channels of `array[index]` (its last three axes are C, H, W) side by side.

    Shows as many channels as fit, on one scale. Raises UsageError for strings, for fewer than three axes
    and for an invalid index.
    """
    view = layout or Layout()
    shown, positions, caption = choose_slice(array, index, axes=3)
    _check_numbers(array)
    if shown.ndim < 3:
        raise UsageError(f"a channel strip needs three axes, but {type_of(shown)} has {shown.ndim}")
    if shown.size == 0:
        return stacked([*([caption] if caption else []), "(empty)"], view)
    room = min(_CHANNEL, max(1, view.width))
    height, width = _fit(shown.shape[1], shown.shape[2], room, lines)
    labels = [str(position) for position in positions[0][: view.width]]
    column = max(width, len(labels[-1]))
    fitting = max(1, min(len(labels), (view.width + 1) // (column + 1)))
    channels = [_areas(shown[channel], _rows(height, view), width) for channel in range(fitting)]
    scale = Areas(np.stack([c.means for c in channels]), np.stack([c.kinds for c in channels])).scale()
    which = f"channels {labels[0]} to {labels[fitting - 1]} of {len(positions[0])}"
    captions = packed(
        [*([caption] if caption else []), which, _scale_text(scale), *_mean_text(shown[0], channels[0])], view
    )
    strip = _beside([_draw(channel, scale, view) for channel in channels], column)
    title = text(" ".join(label.ljust(column) for label in labels[:fitting]).rstrip(), DIM)
    return stacked([*captions, title, *strip], view)


def spark(array: Array, *, layout: Layout | None = None) -> Text:
    """Return one line with the flattened elements as bars. Raises UsageError for strings."""
    view = layout or Layout()
    _check_numbers(array)
    if array.size == 0:
        return stacked(["(empty)"], view)
    # Use a column of areas, since rows are read one by one.
    column = _areas(array.reshape(-1, 1), min(array.size, max(1, view.width)), 1)
    areas = Areas(column.means.T, column.kinds.T)
    return stacked(_characters(areas, areas.scale(), BARS if view.unicode else _RAMP), view)


def _mean_text(picture: Array, areas: Areas) -> list[str]:
    """Return a caption that cells are means; empty if each cell is one element."""
    sizes = [size / count for size, count in zip(picture.shape, areas.means.shape, strict=True)]
    return [f"each cell is the mean of {sizes[0]:.3g}x{sizes[1]:.3g} elements"] if max(sizes) > 1 else []


def _check_numbers(array: Array) -> None:
    if is_text(array):
        raise UsageError("strings cannot be drawn", hint="use grid")


def _fit(rows: int, columns: int, width: int, lines: int) -> tuple[int, int]:
    """Return the height in half lines and the width in cells that keep the tensor's aspect ratio."""
    shrink = max(1.0, columns / max(1, width), rows / max(1, 2 * lines))
    return max(1, min(rows, round(rows / shrink))), max(1, min(columns, int(columns / shrink)))


def _rows(height: int, layout: Layout) -> int:
    """Return the rows of areas for `height` half lines: two per line for half blocks, one for characters."""
    return height if layout.color and layout.unicode else -(-height // 2)


def _areas(picture: Array, rows: int, columns: int) -> Areas:
    """Split `picture` (two axes) into `rows` x `columns` areas, widening one band of rows at a time."""
    height, width = picture.shape
    starts = np.arange(columns) * width // columns
    means, kinds = np.zeros((rows, columns)), np.zeros((rows, columns), np.uint8)
    for row in range(rows):
        band = picture[row * height // rows : (row + 1) * height // rows]
        # NumPy reports an invalid operation when it widens a signaling NaN.
        with np.errstate(all="ignore"):
            means[row], kinds[row] = _band(band, starts)
    return Areas(means, kinds)


def _band(band: Array, starts: Array) -> tuple[Array, Array]:
    wide = np.abs(band) if band.dtype.kind == "c" else band.astype(np.float64)

    def total(elements: Array) -> Array:
        return np.asarray(np.add.reduceat(elements.sum(axis=0), starts))

    finite = np.isfinite(wide)
    counts, above, below = total(finite), total(wide == np.inf), total(wide == -np.inf)
    kinds = np.where(total(np.isnan(wide)) > 0, 1, np.where(counts > 0, 0, np.where(above >= below, 2, 3)))
    # Divide before adding: the sum of large finite elements may overflow.
    share = np.repeat(np.maximum(counts, 1), np.diff(starts, append=wide.shape[1]))
    return total(np.where(finite, wide, 0) / share), kinds


def _levels(areas: Areas, scale: tuple[float, float] | None, count: int) -> Array:
    """Scale the means to 0..count-1; all 0 if they are equal."""
    low, high = scale or (0.0, 0.0)
    span = high / 2 - low / 2
    if span == 0:
        return np.zeros(areas.means.shape, int)
    return np.clip((areas.means / 2 - low / 2) / span * count, 0, count - 1).astype(int)


def _draw(areas: Areas, scale: tuple[float, float] | None, layout: Layout) -> list[Text]:
    if not layout.color:
        return _characters(areas, scale, _RAMP)
    colors = _colors(areas, scale)
    if not layout.unicode:
        return [_line(" ", [f"on {color}" for color in row]) for row in colors]
    lines = []
    for top in range(0, len(colors), 2):
        pairs = zip(*colors[top : top + 2], strict=True)
        lines.append(_line("▀", [" on ".join(pair) for pair in pairs]))
    return lines


def _line(character: str, styles: list[str]) -> Text:
    line = text()
    for style, alike in groupby(styles):
        line.append(character * len(list(alike)), style)
    return line


def _characters(areas: Areas, scale: tuple[float, float] | None, ramp: str) -> list[Text]:
    levels = _levels(areas, scale, len(ramp))
    lines = []
    for level_row, kind_row in zip(levels, areas.kinds, strict=True):
        line = text()
        for level, kind in zip(level_row, kind_row, strict=True):
            line.append(_MARKS[kind] if kind else ramp[level], BAD if kind else None)
        lines.append(line)
    return lines


def _colors(areas: Areas, scale: tuple[float, float] | None) -> list[list[str]]:
    levels = _levels(areas, scale, 256)
    return [
        [_rgb(MARK_COLORS[kind - 1]) if kind else _color(level) for level, kind in zip(*row, strict=True)]
        for row in zip(levels, areas.kinds, strict=True)
    ]


def _color(level: int) -> str:
    """Interpolate the color of a level 0..255 between the anchors of the color map."""
    at = level / 255 * (len(VIRIDIS) - 1)
    left = min(int(at), len(VIRIDIS) - 2)
    mixed = (round(a + (b - a) * (at - left)) for a, b in zip(VIRIDIS[left], VIRIDIS[left + 1], strict=True))
    return _rgb(mixed)


def _rgb(color: Iterable[int]) -> str:
    return "rgb({},{},{})".format(*color)


def _beside(pictures: list[list[Text]], width: int) -> list[Text]:
    """Place images of equal height in one row, each padded to `width`, one cell apart."""
    lines = []
    for parts in zip(*pictures, strict=True):
        line = text()
        for position, part in enumerate(parts):
            if position:
                line.append(" " * (1 + width - parts[position - 1].cell_len))
            line.append_text(part)
        lines.append(line)
    return lines


def _scale_text(scale: tuple[float, float] | None) -> str:
    return f"scale {scale[0]:.4g} .. {scale[1]:.4g}" if scale else "no finite elements"
