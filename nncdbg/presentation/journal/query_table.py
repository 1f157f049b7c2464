"""The rows of a query: a table, CSV, or a JSON document."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from nncdbg.engine.escaping import printable_line
from nncdbg.engine.text.counting import counted
from nncdbg.presentation.elements import BAD, DIM, json_number

if TYPE_CHECKING:
    from nncdbg.presentation.screen import Screen

Rows = Sequence[Sequence[Any]]

_LEAST = 12
"""Width of a column in cells up to which a narrow terminal does not crop it."""


def print_table(screen: Screen, names: Sequence[str], rows: Rows) -> None:
    """Print rows below their column names.

    A terminal crops the widest columns; a pipe gets all text.  Numbers are right-aligned.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(names):
        table.add_column(
            Text(printable_line(name), no_wrap=True, overflow="ellipsis"),
            justify="right" if _is_numeric([row[index] for row in rows]) else "left",
            min_width=min(_LEAST, max([len(name), *(len(_cell(row[index])) for row in rows)])),
        )
    for row in rows:
        table.add_row(
            *(Text(_cell(value), _style(value), no_wrap=True, overflow="ellipsis") for value in row)
        )
    if names:
        screen.put_table(table)
    screen.note(counted(len(rows), "row", ","))


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


def _is_numeric(column: Sequence[Any]) -> bool:
    return bool(column) and all(isinstance(value, (int, float, type(None))) for value in column)


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
