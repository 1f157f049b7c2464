"""`table`: the statistics of many values, sorted."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from nncdbg.commands.model import say_dropped
from nncdbg.commands.table import command
from nncdbg.errors import UsageError
from nncdbg.ir.records import type_of
from nncdbg.presentation.elements import json_number
from nncdbg.presentation.text_table import ColumnFormat, put_columns
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession
    from nncdbg.target.records import Computed

_MANY = 50
"""Maximum number of values that `table` prints."""

_NUMBERS = ("min", "max", "mean", "std", "nan", "inf", "zero")
COLUMNS = ("name", "line", "op", "type", *_NUMBERS)
_UPWARDS = ("name", "line", "op", "type", "min")
"""Columns that are sorted from the least; others from the greatest."""

_FORM = ColumnFormat(("line", *_NUMBERS), keep_end=("name",), optional=("op", "std", "line", "zero"))

_OPTION = re.compile(r"(?:^|\s)--(?:(?P<json>json)|sort(?:\s+|=)(?P<sort>\S+))(?=\s|$)")


@command(
    "table",
    group="looking",
    arguments="[@GRAPH] [OP | VALUES] [--sort KEY] [--json]",
    completes=("op", "graph", "value", "--sort", "--json"),
)
def table(session: CommandSession, text: str) -> None:
    """Show a table of the statistics of computed values.

      table Conv --sort nan     table @layer *_w --sort std     table --json
    @GRAPH selects the values of a graph or layer, OP those of an op, and VALUES those with a name such
    as `h*`; `*` and `?` stand for any characters.  Without them, show all values.  A row
    is the latest value of a statement in the history, since the last edit.  KEY is a column: name, line,
    op, type, min, max, mean, std, nan, inf or zero (the elements that are 0).  The greatest numbers are
    first; lines and `min` start with the least.  min, max, mean and std use only the finite elements.
    `--json` prints all rows as JSON, with the graph and the full name of each value.
    """
    options = [*_OPTION.finditer(text)]
    key = next((each["sort"] for each in reversed(options) if each["sort"]), "line")
    if key not in COLUMNS:
        raise UsageError(f"the table has no column {key}", hint=f"use one of: {', '.join(COLUMNS)}")
    which = _OPTION.sub("", text).strip()
    rows, dropped = [], 0
    for each in session.target.computed(which):
        if each.dropped:
            dropped += 1
        else:
            rows.append(_row(session, each))
    known = [row for row in rows if row[key] is not None]
    known.sort(key=lambda row: row[key], reverse=key not in _UPWARDS)
    rows = known + [row for row in rows if row[key] is None]
    if any(each["json"] for each in options):
        session.screen.put(json.dumps([_record(row) for row in rows], ensure_ascii=False))
        return
    more = len(rows) - _MANY
    after = (
        f"and {counted(more, 'value', ',')} more; `table OP` or `table @GRAPH *` selects" if more > 0 else ""
    )
    if rows:
        cells = [_cells(session, row) for row in rows[:_MANY]]
        put_columns(session.screen, COLUMNS, cells, _FORM, after)
    else:
        session.screen.put(f"no value of {which} is computed" if which else "no value is computed yet")
    say_dropped(session, dropped)


def _row(session: CommandSession, each: Computed) -> dict[str, Any]:
    """Return the columns of a value with its block; numbers are None for a value that is no tensor."""
    place, content = each.place, session.target.host(each.content)
    kind = type_of(content)
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {"name": each.name, "graph": place.path[0], "op": place.op, "line": place.line}
    row["type"] = str(kind or ("none" if content is None else f"{type(content).__name__} of {len(content)}"))
    if kind is not None:
        summary = session.target.scope().summary(content)
        row |= {label: getattr(summary, label) for label in _NUMBERS if label != "inf"}
        row["inf"] = summary.posinf + summary.neginf
    return row


def _record(row: dict[str, Any]) -> dict[str, Any]:
    numbers = {
        each: json_number(row[each]) if isinstance(row[each], float) else row[each] for each in COLUMNS
    }
    return {"graph": row["graph"], **numbers}


def _cells(session: CommandSession, row: dict[str, Any]) -> dict[str, str]:
    layout = session.screen.line_layout
    digits = layout.precision
    cells = {
        each: "-"
        if row[each] is None
        else f"{row[each]:.{digits}g}"
        if isinstance(row[each], float)
        else str(row[each])
        for each in COLUMNS
    }
    return {**cells, "name": layout.name(row["name"])}
