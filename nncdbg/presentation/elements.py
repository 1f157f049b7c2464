"""Terminal capabilities and the text of single elements, shared by all views.

Views are `rich.text.Text`: the same characters with and without color, no line wider than `Layout.width`
cells.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg import dtypes
from nncdbg.ir.records import Array, TensorType
from nncdbg.text.short_names import NO_NAMES, ShortNames

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

BAD = "bold red"
"""Style of NaN and infinities."""
DIM = "dim"
"""Style of labels and captions."""
SMALL = 8
"""Maximum number of elements shown in a line in place of statistics."""


@dataclass(frozen=True, slots=True)
class Layout:
    """`width` in cells; `color` and `unicode` if the terminal supports them.

    `names` are those that are shortened. `precision` is the number
    of significant digits.
    """

    width: int = 80
    color: bool = False
    unicode: bool = True
    names: ShortNames = NO_NAMES
    precision: int = 4

    @classmethod
    def of(cls, console: Console) -> Layout:
        """Return the layout for `console`: no color in a pipe, with NO_COLOR, or on a dumb terminal."""
        color = console.color_system is not None and not console.no_color
        return cls(console.width, color, console.encoding.lower().startswith("utf"))

    @property
    def ellipsis(self) -> str:
        """Return a one-cell ellipsis."""
        return "…" if self.unicode else "~"

    def name(self, name: str) -> str:
        """Return the name of a value as it is written here, with its sigil."""
        return self.names.spelled(name)


def element(value: Any, digits: int = 4) -> str:
    """Return a short text of one element: `nan`, `-inf`, `0.3333`, `true`, `'text'`, `1+2j`."""
    if isinstance(value, str | bytes):
        text = repr(str(value) if isinstance(value, str) else bytes(value))
        return text if len(text) <= 16 else text[:13] + "..'"
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    kind = np.asarray(value).dtype
    if kind.kind == "f":
        return f"{float(value):.{digits}g}"
    if kind.kind == "c":
        number = complex(value)
        return f"{number.real:.{digits}g}{number.imag:+.{digits}g}j"
    if kind.kind in "iu":
        return str(int(value))
    if kind.kind == "O":
        return element(str(value))
    return str(int(value)) if dtypes.name_of(kind) in dtypes.INTEGERS else f"{float(value):.{digits}g}"


def elements(array: Array, ellipsis: str = "…", digits: int = 4) -> str:
    """Return a small tensor in a line: `[[1. nan] [0.5 2.]]`; of strings and bools, the first elements."""
    if array.ndim == 0:
        return element(array[()], digits)
    if is_text(array) or array.dtype.kind == "b":
        more = f" {ellipsis}]" if array.size > SMALL else "]"
        return "[" + " ".join(element(one) for one in array.reshape(-1)[:SMALL]) + more
    written = np.array2string(array, precision=digits, max_line_width=10**6, threshold=SMALL)
    return re.sub(r"\s+", " ", re.sub(r"\[\s+", "[", written))


def json_number(number: float) -> float | str:
    """Return a number, or its name if JSON has none for it: NaN, Infinity, -Infinity."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def is_bad(value: Any) -> bool:
    """Return True for NaN and infinities, in either part of a complex number."""
    if isinstance(value, str | bytes):
        return False
    if np.iscomplexobj(value):
        return not (math.isfinite(value.real) and math.isfinite(value.imag))
    return not math.isfinite(float(value)) if np.asarray(value).dtype.kind != "O" else False


def type_of(array: Array) -> str:
    """Return `f32[1,64,56,56]`."""
    return str(TensorType(dtypes.name_of(array.dtype), tuple(array.shape)))


def is_text(array: Any) -> bool:
    """Return True for tensors of strings; `array` is an array of any library."""
    return dtypes.name_of(array.dtype) == "str"


def count_of(array: Any) -> int:
    """Return the number of elements of an array of any library."""
    return math.prod(array.shape)


def text(content: str = "", style: str = "") -> Text:
    """Return a Text; imports `rich` lazily."""
    from rich.text import Text

    return Text(content, style=style)


def cells(content: str) -> int:
    """Return the width of `content` in terminal cells; a wide character takes two."""
    from rich.cells import cell_len

    return cell_len(content)


def padded(content: str, width: int) -> str:
    """Right-align `content` in `width` cells."""
    return " " * (width - cells(content)) + content


def packed(parts: Iterable[str], layout: Layout) -> list[Text]:
    """Join captions by commas, as many per line as fit."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= layout.width:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return [text(line, DIM) for line in lines]


def stacked(lines: Iterable[Text | str], layout: Layout) -> Text:
    """Stack lines, each cropped to the width."""
    from rich.text import Text

    cropped = []
    for line in lines:
        whole = Text(line) if isinstance(line, str) else line
        if whole.cell_len > layout.width:
            whole.truncate(max(0, layout.width - 1))
            whole.append(layout.ellipsis)
        cropped.append(whole)
    return Text("\n").join(cropped)


def edges(count: int, limit: int) -> list[int | None]:
    """Return the positions 0..count-1, or those at both ends around a None if more than `limit`."""
    if count <= limit:
        return list(range(count))
    head = (limit + 1) // 2
    return [*range(head), None, *range(count - (limit - head), count)]
