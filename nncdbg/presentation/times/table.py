"""Tables of times: by statement, op, layer or line of the user's model, the most expensive row first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nncdbg.presentation.times.places import (
    block_title,
    line_title,
    op_name,
    origin,
    result_bytes,
    result_names,
    shapes,
)

if TYPE_CHECKING:
    from nncdbg.ir.records import Path
    from nncdbg.target.records import Place, StatementTime, Times


@dataclass(frozen=True, slots=True)
class TimeTable:
    """Rows of a table, the most expensive first; times are in seconds, `share` is from 0 to 1."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def records(self) -> list[dict[str, Any]]:
        """Return each row as a dictionary with the names of the columns."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def by_statement(times: Times) -> TimeTable:
    """Return a row per statement with a kernel."""
    return _of_statements(times, [each for each in times.statements if each.runs_kernel])


def of_block(times: Times, path: Path) -> TimeTable:
    """Return a row per statement of a block; a call, branch or loop has the kernels inside it."""
    return _of_statements(times, [each for each in times.statements if each.place.path == path])


def by_op(times: Times) -> TimeTable:
    """Return a row per op."""
    return _grouped(times, "op", op_name)


def by_line(times: Times) -> TimeTable:
    """Return a row per source line of the user's model; without one, per line of the listing."""
    return _grouped(times, "where", line_title)


def by_layer(times: Times) -> TimeTable:
    """Return a row per graph, branch and loop: `own` are its statements, `total` also the blocks inside."""
    own: dict[Path, list[StatementTime]] = {}
    places: dict[Path, Place] = {}
    for each in times.statements:
        path = each.place.path
        own.setdefault(path, [])
        places[path] = each.place
        if each.runs_kernel:
            own[path].append(each)
    rows = []
    for path, statements in own.items():
        spent = sum(each.total for each in statements)
        block = times.blocks.get(path)
        inside = times.kernels if path == times.entry else block.total if block else spent
        calls = block.calls if block else max((each.calls for each in statements), default=1)
        title = block_title(places[path])
        rows.append((_share(times, spent), spent / 1e9, inside / 1e9, calls, len(statements), title))
    columns = ("share", "own", "total", "calls", "statements", "layer")
    return TimeTable(columns, sorted(rows, key=lambda row: -row[1]))


GROUPINGS: Mapping[str, Callable[[Times], TimeTable]] = {
    "statement": by_statement,
    "op": by_op,
    "layer": by_layer,
    "line": by_line,
}
"""The tables by their names in commands."""


def _share(times: Times, duration: int) -> float:
    return duration / times.kernels if times.kernels else 0.0


def _of_statements(times: Times, statements: Iterable[StatementTime]) -> TimeTable:
    columns = ("share", "median", "min", "total", "calls", "line", "value", "op", "shapes", "where")
    rows = [
        (
            _share(times, each.total),
            each.median / 1e9,
            each.least / 1e9,
            each.total / 1e9,
            each.calls,
            each.place.line,
            result_names(each.place),
            op_name(each.place),
            shapes(each.place, each.types),
            origin(each.place),
        )
        for each in sorted(statements, key=lambda each: -each.total)
    ]
    return TimeTable(columns, rows)


def _grouped(times: Times, title: str, key: Callable[[Place], str]) -> TimeTable:
    groups: dict[str, list[StatementTime]] = {}
    for each in times.statements:
        if each.runs_kernel:
            groups.setdefault(key(each.place), []).append(each)
    rows = []
    for name, statements in groups.items():
        spent = sum(each.total for each in statements)
        calls = sum(each.calls for each in statements)
        sizes = [result_bytes(each.place, each.types) for each in statements]
        size = None if None in sizes else sum(filter(None, sizes))
        counts = [each.nonfinite for each in statements if each.nonfinite is not None]
        bad = sum(counts) if counts else None
        rows.append((_share(times, spent), spent / 1e9, calls, len(statements), size, bad, name))
    columns = ("share", "total", "calls", "statements", "bytes", "nonfinite", title)
    return TimeTable(columns, sorted(rows, key=lambda row: -row[1]))
