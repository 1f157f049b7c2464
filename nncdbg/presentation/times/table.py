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
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.execution.loaded import Loaded
    from nncdbg.engine.observers.statement_times import StatementTime, StatementTimes
    from nncdbg.ir.records import Path


@dataclass(frozen=True, slots=True)
class TimeTable:
    """Rows of a table, the most expensive first; times are in seconds, `share` is from 0 to 1."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def records(self) -> list[dict[str, Any]]:
        """Return each row as a dictionary with the names of the columns."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def by_statement(times: StatementTimes, loaded: Loaded) -> TimeTable:
    """Return a row per statement with a kernel."""
    return _of_statements(times, loaded, [each for each in _measured(times) if _runs_kernel(each)])


def of_block(times: StatementTimes, loaded: Loaded, path: Path) -> TimeTable:
    """Return a row per statement of a block; a call, branch or loop has the kernels inside it."""
    return _of_statements(times, loaded, [each for each in _measured(times) if each.code.path == path])


def by_op(times: StatementTimes, loaded: Loaded) -> TimeTable:
    """Return a row per op."""
    return _grouped(times, "op", op_name)


def by_line(times: StatementTimes, loaded: Loaded) -> TimeTable:
    """Return a row per source line of the user's model; without one, per line of the listing."""
    return _grouped(times, "where", lambda code, pc: line_title(loaded, code, pc))


def by_layer(times: StatementTimes, loaded: Loaded) -> TimeTable:
    """Return a row per graph, branch and loop: `own` are its statements, `total` also the blocks inside."""
    own: dict[Path, list[StatementTime]] = {}
    codes: dict[Path, Code] = {}
    for each in _measured(times):
        own.setdefault(each.code.path, [])
        codes[each.code.path] = each.code
        if _runs_kernel(each):
            own[each.code.path].append(each)
    rows = []
    for path, statements in own.items():
        spent = sum(each.kernel.total for each in statements)
        block = times.blocks.get(path)
        inside = times.kernels if path == loaded.codes[0].path else block.inside.total if block else spent
        calls = block.inside.calls if block else max((each.kernel.calls for each in statements), default=1)
        title = block_title(loaded, codes[path])
        rows.append((_share(times, spent), spent / 1e9, inside / 1e9, calls, len(statements), title))
    columns = ("share", "own", "total", "calls", "statements", "layer")
    return TimeTable(columns, sorted(rows, key=lambda row: -row[1]))


GROUPINGS: Mapping[str, Callable[[StatementTimes, Loaded], TimeTable]] = {
    "statement": by_statement,
    "op": by_op,
    "layer": by_layer,
    "line": by_line,
}
"""The tables by their names in commands."""


def _measured(times: StatementTimes) -> Iterable[StatementTime]:
    return [each for each in times.statements.values() if each.kernel.calls]


def _runs_kernel(statement: StatementTime) -> bool:
    return not statement.code.transfers(statement.pc)


def _share(times: StatementTimes, duration: int) -> float:
    return duration / times.kernels if times.kernels else 0.0


def _of_statements(times: StatementTimes, loaded: Loaded, statements: Iterable[StatementTime]) -> TimeTable:
    columns = ("share", "median", "min", "total", "calls", "line", "value", "op", "shapes", "where")
    rows = [
        (
            _share(times, each.kernel.total),
            each.kernel.median / 1e9,
            each.kernel.least / 1e9,
            each.kernel.total / 1e9,
            each.kernel.calls,
            loaded.line(each.code, each.pc),
            result_names(each.code, each.pc),
            op_name(each.code, each.pc),
            shapes(each.code, each.pc),
            origin(each.code, each.pc),
        )
        for each in sorted(statements, key=lambda each: -each.kernel.total)
    ]
    return TimeTable(columns, rows)


def _grouped(times: StatementTimes, title: str, key: Callable[[Code, int], str]) -> TimeTable:
    groups: dict[str, list[StatementTime]] = {}
    for each in _measured(times):
        if _runs_kernel(each):
            groups.setdefault(key(each.code, each.pc), []).append(each)
    rows = []
    for name, statements in groups.items():
        spent = sum(each.kernel.total for each in statements)
        calls = sum(each.kernel.calls for each in statements)
        sizes = [result_bytes(each.code, each.pc) for each in statements]
        size = None if None in sizes else sum(filter(None, sizes))
        counts = [each.nonfinite for each in statements if each.nonfinite is not None]
        bad = sum(counts) if counts else None
        rows.append((_share(times, spent), spent / 1e9, calls, len(statements), size, bad, name))
    columns = ("share", "total", "calls", "statements", "bytes", "nonfinite", title)
    return TimeTable(columns, sorted(rows, key=lambda row: -row[1]))
