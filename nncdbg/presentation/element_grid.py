"""Grids of tensor elements with row and column positions; large tensors show their edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.errors import UsageError
from nncdbg.ir.records import Array
from nncdbg.presentation.elements import (
    BAD,
    DIM,
    Layout,
    cells,
    edges,
    element,
    is_bad,
    padded,
    stacked,
    text,
    type_of,
)

if TYPE_CHECKING:
    from rich.text import Text

_ROWS = 16
"""Maximum number of lines of a grid, without caption."""


def grid(array: Array, index: Any = None, *, layout: Layout | None = None, rows: int = _ROWS) -> Text:
    """Return the elements of `array[index]`: a scalar, wrapped rows of a vector, or a table.

    With more than two axes, shows the last two at the first position of the others, and a caption names the
    slice. Large tables show `rows` rows and as many columns as fit, from both ends. Raises UsageError for
    an invalid index.
    """
    view = layout or Layout()
    shown, positions, caption = choose_slice(array, index)
    lines: list[Text | str] = [text(caption, DIM)] if caption else []
    if shown.size == 0:
        lines.append("(empty)")
    elif shown.ndim == 0:
        lines.append(_cell(shown[()], element(shown[()], view.precision), 0))
    elif shown.ndim == 1:
        lines.extend(_vector(shown, positions[0], view, rows))
    else:
        lines.extend(_table(shown, positions, view, rows))
    return stacked(lines, view)


def choose_slice(array: Array, index: Any = None, axes: int = 2) -> tuple[Array, list[range], str]:
    """Return the slice of `array[index]` to show: at most `axes` axes, their positions, and a caption.

    The caption is "" if all of the array is shown. Raises UsageError for an invalid index.
    """
    items = () if index is None else index if isinstance(index, tuple) else (index,)
    plain = all(item is ... or isinstance(item, int | np.integer | slice) for item in items)
    try:
        if not plain:
            chosen = np.asarray(array[items], dtype=array.dtype)
            shown, positions, caption = choose_slice(chosen, None, axes)
            return shown, positions, f"selected elements: {caption or type_of(shown)}"
        full = _full(items, array.ndim)
        positions = [range(size)[item] for item, size in zip(full, array.shape, strict=True)]
    except (IndexError, ValueError, TypeError) as error:
        raise UsageError(f"the index is invalid for {type_of(array)}: {error}") from None
    kept = [axis for axis, item in enumerate(full) if isinstance(item, slice)]
    for axis in kept[: max(0, len(kept) - axes)]:
        full[axis] = positions[axis][0] if len(positions[axis]) else slice(0, 0)
    # A single element of a tensor of strings is a str, not an array.
    shown = np.asarray(array[tuple(full)], dtype=array.dtype)
    kept = [axis for axis in kept if isinstance(full[axis], slice)]
    caption = "" if kept == list(range(array.ndim)) and not items else _caption(full, array)
    return shown, [positions[axis] for axis in kept], caption


def _full(items: tuple[Any, ...], rank: int) -> list[Any]:
    """Expand an index of ints, slices and at most one `...` to one item per axis."""
    given = len(items) - sum(item is ... for item in items)
    if given > rank or len(items) - given > 1:
        raise IndexError(
            f"got {given} indices for {rank} axes" if given > rank else "got more than one `...`"
        )
    filler = [slice(None)] * (rank - given)
    if ... in items:
        at = items.index(...)
        return [*items[:at], *filler, *items[at + 1 :]]
    return [*items, *filler]


def _caption(full: Sequence[Any], array: Array) -> str:
    return f"[{', '.join(map(_item, full))}] of {type_of(array)}"


def _item(item: Any) -> str:
    if not isinstance(item, slice):
        return str(int(item))
    first, stop = ("" if bound is None else str(bound) for bound in (item.start, item.stop))
    return f"{first}:{stop}" + (f":{item.step}" if item.step not in (None, 1) else "")


def _cell(value: Any, written: str, width: int) -> Text:
    return text(padded(written, width), BAD if is_bad(value) else "")


def _vector(vector: Array, positions: range, layout: Layout, rows: int) -> list[Text]:
    """Return `[0] 1 2 3` / `[3] 4 5 6`: lines filled with elements, labeled with the first position."""
    # An element takes two cells or more, so the lines show only elements of these ends.
    ends = edges(vector.shape[0], rows * max(2, layout.width))
    written = {i: element(vector[i], layout.precision) for i in ends if i is not None}
    width = max(map(cells, written.values()))
    label = max(len(str(positions[0])), len(str(positions[-1]))) + 2
    fitting = max(1, (layout.width - label) // (width + 1))
    lines = []
    for row in edges(-(-vector.shape[0] // fitting), rows):
        if row is None:
            lines.append(text(layout.ellipsis.rjust(label), DIM))
            continue
        start = row * fitting
        line = text(f"[{positions[start]}]".rjust(label), DIM)
        for i in range(start, min(start + fitting, vector.shape[0])):
            line.append(" ").append_text(_cell(vector[i], written[i], width))
        lines.append(line)
    return lines


def _table(table: Array, positions: Sequence[range], layout: Layout, rows: int) -> list[Text]:
    """Return a header of column positions, then rows; None in the chosen rows or columns is a gap."""
    chosen = edges(table.shape[0], rows)
    label = max(len(str(positions[0][row])) for row in chosen if row is not None) + 2
    columns = _fitting_columns(table, chosen, positions[1], layout.width - label, layout.precision)
    header = text(" " * label)
    for column, _, width in columns:
        name = layout.ellipsis if column is None else str(positions[1][column])
        header.append(" ").append(name.rjust(width), DIM)
    lines = [header]
    for row in chosen:
        name = layout.ellipsis if row is None else f"[{positions[0][row]}]"
        line = text(name.rjust(label), DIM)
        for column, written, width in columns:
            line.append(" ")
            if row is None or column is None:
                line.append(layout.ellipsis.rjust(width), DIM)
            else:
                line.append_text(_cell(table[row, column], written[row], width))
        lines.append(line)
    return lines


def _fitting_columns(
    table: Array, chosen: Sequence[int | None], positions: range, room: int, digits: int
) -> list[tuple[int | None, dict[int, str], int]]:
    """Return the most columns, from both ends, that fit `room` cells: position, elements by row, width."""
    known: dict[int, tuple[dict[int, str], int]] = {}

    def sized(column: int | None) -> tuple[int | None, dict[int, str], int]:
        if column is None:
            return None, {}, 1
        if column not in known:
            written = {row: element(table[row, column], digits) for row in chosen if row is not None}
            known[column] = written, max(len(str(positions[column])), *map(cells, written.values()))
        return column, *known[column]

    for limit in range(min(table.shape[1], max(1, room // 2)), 0, -1):
        columns = list(map(sized, edges(table.shape[1], limit)))
        if sum(width + 1 for _, _, width in columns) <= room:
            break
    return columns
