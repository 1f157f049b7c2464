"""Tensors in a terminal: one line, a histogram, or the view that suits the shape."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.expression import spelled
from nncdbg.ir.records import Array, Map, holds_maps
from nncdbg.presentation.character_images import channel_strip, image, spark
from nncdbg.presentation.element_grid import grid
from nncdbg.presentation.elements import (
    BAD,
    DIM,
    SMALL,
    Layout,
    cells,
    elements,
    is_text,
    stacked,
    text,
    type_of,
)
from nncdbg.stats import summarize

if TYPE_CHECKING:
    from rich.text import Text

    from nncdbg.stats.histograms import Histogram
    from nncdbg.stats.summary import Summary

_SIDE = 16
"""Maximum rows and columns of a matrix shown as a grid."""
_INDENT = "    "
"""Indentation of statistics on lines of their own."""

_NOT_FINITE = re.compile(r"(?<!\w)[+-]?(?:nan|inf)j?(?!\w)")


def value_line(name: str, array: Array, summary: Summary, layout: Layout | None = None) -> Text:
    """Return `%h f32[1,64,56,56] nan 8 min -0.1 mean 0.4 max 6.1 std 0.9`, or elements if few.

    Statistics are never cropped: if they do not fit after the name, they are put on lines of their own.
    """
    view = layout or Layout()
    head = f"{view.name(name)} {type_of(array)}"
    if array.size == 0:
        return _headed(head, [text("(empty)")], view)
    if array.size <= SMALL or is_text(array):
        shown = _elements(array, view)
        return _headed(head, [shown] if is_text(array) else [*shown.split(" ")], view)
    if array.dtype.kind == "b":
        return _headed(head, [text(f"{np.count_nonzero(array)} of {array.size} true")], view)
    figures = [
        text(f"{label} {number}", BAD if label in ("nan", "+inf", "-inf") else "")
        for label, number in summary.figures(view.precision)
    ]
    return _headed(head, figures, view)


def described(name: str, content: Any, layout: Layout | None = None) -> Text:
    """Return the line of a value, tensor or not."""
    if isinstance(content, (np.ndarray, np.generic)):
        array = np.asarray(content)
        return value_line(name, array, summarize(array), layout)
    head = (layout or Layout()).name(name)
    if content is None:
        return text(f"{head} (none)")
    if holds_maps(content):
        return _headed(f"{head} seq({content[0].type})", [text(maps_text(content))], layout or Layout())
    return text(f"{head} {type(content).__name__} of {len(content)}")


def map_text(content: Map, most: int = 6) -> str:
    """Return a map as ``{setosa: 0.9766, versicolor: 0.02339}``, with at most `most` entries."""
    return "{" + ", ".join(_cut([f"{key}: {_entry(value)}" for key, value in content.items], most)) + "}"


def _entry(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def maps_text(content: Sequence[Map]) -> str:
    """Return a sequence of maps in one line, with the first three of them."""
    return "[" + ", ".join(_cut([map_text(each) for each in content[:4]], 3)) + "]"


def _cut(parts: list[str], most: int) -> list[str]:
    return parts if len(parts) <= most else [*parts[:most], "…"]


def _elements(array: Array, layout: Layout) -> Text:
    written = elements(array, layout.ellipsis, layout.precision)
    line = text(written)
    if not is_text(array):
        line.highlight_regex(_NOT_FINITE, BAD)
    return line


def _headed(head: str, parts: Sequence[Text], layout: Layout) -> Text:
    """Put the parts after the head if there is room for them, else on lines below."""
    joined = text(" ").join(parts)
    if cells(head) + 1 + joined.cell_len <= layout.width:
        return text(f"{head} ").append_text(joined)
    lines, room = [text(head)], layout.width
    if cells(head) > room:
        # The type of a value with a long name is on the next line.
        name, _, kind = head.rpartition(" ")
        lines, parts = [text(name)], [text(kind), *parts]
    for part in parts:
        if len(lines) > 1 and lines[-1].cell_len + 1 + part.cell_len <= room:
            lines[-1].append(" ").append_text(part)
        else:
            lines.append(text(_INDENT if len(_INDENT) + part.cell_len <= room else "").append_text(part))
    return stacked(lines, layout)


def histogram_bars(histogram: Histogram, layout: Layout | None = None) -> Text:
    """Return horizontal bars with range and count per bin; NaN and infinities have separate rows."""
    view = layout or Layout()
    rows = [
        (f"{low:.3g}", f"{low:.3g} .. {high:.3g}", int(count), "")
        for low, high, count in zip(histogram.edges[:-1], histogram.edges[1:], histogram.counts, strict=True)
    ]
    apart = (("-inf", histogram.neginf), ("+inf", histogram.posinf), ("nan", histogram.nan))
    rows += [(label, label, int(count), BAD) for label, count in apart if count]
    if not any(count for *_, count, _ in rows):
        return stacked(["(empty)"], view)
    most = max(count for *_, count, _ in rows)
    numbers = max(len(str(count)) for *_, count, _ in rows)
    labels = max(len(long) for _, long, _, _ in rows)
    short = view.width - labels - numbers - 2 < max(8, view.width // 4)
    labels = max(len(row[0]) for row in rows) if short else labels
    room = max(1, view.width - labels - numbers - 2)
    lines = []
    for brief, full, count, style in rows:
        line = text((brief if short else full).rjust(labels), style or DIM).append(" ")
        line.append(_bar(count / most * room, room, view), style).append(f" {count:>{numbers}}")
        lines.append(line)
    return stacked(lines, view)


def _bar(length: float, room: int, layout: Layout) -> str:
    """Return a bar of `length` cells in `room`; a nonzero length is always visible."""
    if not layout.unicode:
        return ("#" * max(round(length), 1 if length else 0)).ljust(room)
    eighths = max(round(length * 8), 1 if length else 0)
    return ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8]).rstrip().ljust(room)


def show(array: Array, name: str, layout: Layout | None = None) -> Text:
    """Return the view that suits the shape of a tensor.

    A scalar is shown as its value, a vector as its elements with a spark line, a small matrix as a grid, a
    large one as an image, and three or more axes as a strip of channels. Axes of size 1 do not count.
    Strings are always a grid.
    """
    view = layout or Layout()
    head = f"{spelled(name)} {type_of(array)}"
    return stacked(_split([text(head), _body(array, view)]), view)


def _body(array: Array, layout: Layout) -> Text:
    reduced = array.squeeze() if array.ndim > 1 else array
    if is_text(array) or array.size == 0 or reduced.ndim == 0:
        return grid(array, layout=layout)
    if reduced.ndim == 1:
        parts = [spark(reduced, layout=layout), grid(reduced, layout=layout)]
        if reduced.size > layout.width:
            share = reduced.size / layout.width
            parts.insert(1, text(f"each bar is the mean of {share:.3g} elements", DIM))
        return text("\n").join(parts)
    if reduced.ndim == 2:
        small = max(reduced.shape) <= _SIDE
        return grid(reduced, layout=layout) if small else image(reduced, layout=layout)
    return channel_strip(array if min(array.shape[-3:]) > 1 else reduced, layout=layout)


def _split(parts: Sequence[Text]) -> list[Text | str]:
    return [line for part in parts for line in part.split("\n")]
