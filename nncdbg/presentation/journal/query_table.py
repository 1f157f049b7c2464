"""The rows of a query: a table, CSV, or a JSON document."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rich.text import Text

from nncdbg.escaping import printable_line
from nncdbg.presentation.elements import BAD, DIM, json_number
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.presentation.screen import Screen

Rows = Sequence[Sequence[Any]]

_LEAST = 12
"""Width of a column in cells up to which a narrow terminal does not crop it."""


def print_table(screen: Screen, names: Sequence[str], rows: Rows) -> None:
    """Print rows below their column names.

    A terminal crops the widest columns, or gets a line per value if too many columns are beside each other;
    a pipe gets all text.  Numbers are right-aligned.
    """
    columns = [[row[index] for row in rows] for index in range(len(names))]
    least = [_least_width(name, column) for name, column in zip(names, columns, strict=True)]
    if sum(least) + 2 * (len(least) - 1) > screen.line_layout.width:
        _print_records(screen, names, rows)
    elif names:
        _print_columns(screen, names, columns, least)
    screen.note(counted(len(rows), "row", ","))


def _print_columns(screen: Screen, names: Sequence[str], columns: Rows, least: Sequence[int]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name, column, width in zip(names, columns, least, strict=True):
        justify = "right" if _is_numeric(column) else "left"
        table.add_column(_cell_text(name), justify=justify, min_width=width)  # type: ignore[arg-type]
    for row in zip(*columns, strict=True):
        table.add_row(*map(_cell_text, row))
    screen.put_table(table)


def _print_records(screen: Screen, names: Sequence[str], rows: Rows) -> None:
    width = max(len(printable_line(name)) for name in names)
    for number, row in enumerate(rows, 1):
        screen.put(Text(f"row {number:,}", DIM))
        for name, value in zip(names, row, strict=True):
            line = Text("  ").append(printable_line(name).ljust(width), "bold").append("  ")
            screen.put_line(line.append_text(_cell_text(value)))


def write_csv(out: TextIO, names: Sequence[str], rows: Rows) -> None:
    """Write a header and the rows as CSV ; NULL is empty, a blob is hexadecimal."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([value.hex() if isinstance(value, bytes) else value for value in row] for row in rows)


def rows_document(names: Sequence[str], rows: Rows) -> str:
    """Return the columns and rows as a JSON document.

    A blob is a hexadecimal text.  Infinities, which JSON does not have, are the texts "Infinity" and
    "-Infinity".
    """
    content = {"columns": [*names], "rows": [[_json_value(value) for value in row] for row in rows]}
    return json.dumps(content, allow_nan=False)


def _least_width(name: str, column: Sequence[Any]) -> int:
    longest = max([len(printable_line(name)), *(len(_cell(value)) for value in column)])
    return min(_LEAST, longest)


def _is_numeric(column: Sequence[Any]) -> bool:
    return bool(column) and all(isinstance(value, (int, float, type(None))) for value in column)


def _cell_text(value: Any) -> Text:
    return Text(_cell(value), _style(value), no_wrap=True, overflow="ellipsis")


def _cell(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return f"<{counted(len(value), 'byte', ',')}>"
    return printable_line(str(value))


def _style(value: Any) -> str:
    if value is None or isinstance(value, bytes):
        return DIM
    return BAD if isinstance(value, float) and not math.isfinite(value) else ""


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return json_number(value) if isinstance(value, float) else value
