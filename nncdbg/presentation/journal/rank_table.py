"""The ranks of a distributed training as a table, with the rank on which a NaN originates."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence

from rich.text import Text

from nncdbg.escaping import printable_line
from nncdbg.opening.journal.ranks import ORIGINS, RECEIVED, RankStatus, origin_among
from nncdbg.presentation.elements import BAD, DIM
from nncdbg.presentation.journal.run_list import STATUS_STYLES

_HEADS = ("rank", "run", "status", "steps", "first finding")
_RIGHT = (0, 3)

_MESSAGE = 100
"""Most characters of a finding; the log of the rank has all."""


def rank_lines(ranks: Sequence[RankStatus]) -> Iterator[Text]:
    """Yield a line per rank, the rank on which the first NaN originates, and where its step is."""
    if not ranks:
        return
    yield Text(f"{len(ranks)} ranks")
    rows = [_HEADS, *map(_cells, ranks)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    for number, row in enumerate(rows):
        line = Text()
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            style = DIM if number == 0 else STATUS_STYLES.get(cell, "") if column == 2 else ""
            line.append("  ").append(cell.rjust(width) if column in _RIGHT else cell.ljust(width), style)
        line.rstrip()
        yield line
    yield from _origin(ranks)
    for each in ranks:
        if each.folder:
            title = f"step {each.step} of rank {each.rank}"
            yield Text(f"{title}: nncdbg {printable_line(shlex.quote(each.folder))}")


def _cells(status: RankStatus) -> tuple[str, ...]:
    name = printable_line(os.path.basename(status.file))
    return (
        f"{status.rank}",
        f"{name}#{status.run}" if status.run else name,
        status.status,
        f"{status.steps:,}" if status.run else "-",
        _finding(status),
    )


def _finding(status: RankStatus) -> str:
    if not status.kind:
        return "-"
    place = "" if status.step is None else f"step {status.step}: "
    received = ", received from another rank" if status.kind == RECEIVED else ""
    message = printable_line(status.message)
    if len(message) > _MESSAGE:
        message = f"{message[: _MESSAGE - 3]}..."
    return f"{place}{message}{received}"


def _origin(ranks: Sequence[RankStatus]) -> Iterator[Text]:
    origin = origin_among(ranks)
    if origin is None:
        if any(each.kind == RECEIVED for each in ranks):
            missing = ", ".join(f"{each.rank}" for each in ranks if not each.run)
            where = f"rank {missing}, whose journal is missing" if missing else "no rank that was recorded"
            yield Text(f"the NaN or Inf originates on {where}")
        return
    same = [each.rank for each in ranks if each.kind in ORIGINS and each.step == origin.step]
    if len(same) == 1:
        yield Text(f"the NaN or Inf originates on rank {same[0]}, at step {origin.step}", BAD)
    else:
        names = ", ".join(map(str, same))
        yield Text(f"the first NaN or Inf is on the ranks {names}, at step {origin.step}", BAD)
