"""The runs of a journal as a tree: a fork is below its parent."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text

from nncdbg.escaping import printable_line
from nncdbg.journal.log_files import bytes_on_disk
from nncdbg.presentation.elements import BAD, DIM, element, is_bad
from nncdbg.presentation.journal.amounts import duration, file_size, moment
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.journal import Journal, Run

STATUS_STYLES = {"running": "green", "failed": BAD, "interrupted": "yellow", "lost": "yellow"}
"""Styles of the states of a run; a run that ended has none."""

_HEADS = ("run", "name", "kind", "status", "steps", "started", "time")
_RIGHT = {"steps"}


_TITLE = 40
"""Most characters of the name of a track in a title."""


def run_list(journal: Journal) -> Iterator[Text]:
    """Yield a heading, and two lines for each run: its facts, and the last value of each track."""
    runs = journal.runs()
    size = file_size(bytes_on_disk(journal.path))
    yield Text(f"{journal.path.name}: {counted(len(runs), 'run', ',')}, {size}", "bold")
    if not runs:
        return
    listed = [*_tree(runs)]
    rows = [_HEADS, *(_cells(run, prefix) for prefix, _, run in listed)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    yield _line(_HEADS, widths, dict.fromkeys(_HEADS, DIM))
    for (_, below, run), cells in zip(listed, rows[1:], strict=True):
        yield _line(cells, widths, {"status": STATUS_STYLES.get(run.status, "")})
        values = last_values(journal, run)
        if values:
            yield Text(below.ljust(widths[0] + 2)).append_text(values)


def run_facts(run: Run) -> list[tuple[str, str]]:
    """Return the titles and texts of a run's facts, without empty ones."""
    time = "" if run.ended is None else duration((run.ended - run.started).total_seconds())
    facts = {
        "status": run.status,
        "kind": run.kind,
        "fork of": "" if run.parent is None else f"run {run.parent} at step {run.parent_step}",
        "steps": f"{run.steps:,}",
        "epochs": f"{run.epochs:,}" if run.epochs else "",
        "started": moment(run.started),
        "time": time,
        "seed": "" if run.seed is None else f"{run.seed}",
        "command": shlex.join(run.command),
        "configuration": json.dumps(run.configuration) if run.configuration else "",
    }
    return [(title, text) for title, text in facts.items() if text]


def last_values(journal: Journal, run: Run) -> Text:
    """Return the last value of each track, as `loss 0.0123  acc (test) 0.91`."""
    line = Text()
    for name, part in journal.tracks(run):
        _, numbers = journal.values(run, name, part)
        if len(numbers):
            number = np.float64(numbers[-1])
            line.append("  " if line else "").append(f"{track_title(name, part)} ", DIM)
            line.append(element(number), BAD if is_bad(number) else "")
    return line


def track_title(name: str, part: str) -> str:
    """Return the title of a track: `acc` for the part train, else `acc (test)`.

    The middle of a long name is left out.
    """
    short = printable_line(name)
    if len(short) > _TITLE:
        short = f"{short[: _TITLE // 2]}...{short[-(_TITLE // 2 - 3) :]}"
    return short if part == "train" else f"{short} ({printable_line(part)})"


def _tree(runs: Sequence[Run]) -> Iterator[tuple[str, str, Run]]:
    """Yield the runs with the text before the number, and the text before a line of values."""

    children: dict[int | None, list[Run]] = {}
    for run in runs:
        children.setdefault(run.parent, []).append(run)
    waiting = [(run, "") for run in reversed(children.get(None, []))]
    while waiting:
        run, indent = waiting.pop()
        branch, bar = ("└─ ", "   ") if run is children[run.parent][-1] else ("├─ ", "│  ")
        inside = "" if run.parent is None else indent + bar
        forks = children.get(run.number, [])
        yield "" if run.parent is None else indent + branch, inside + "│" * bool(forks), run
        waiting += [(fork, inside) for fork in reversed(forks)]


def _cells(run: Run, prefix: str) -> tuple[str, ...]:
    fork = "" if run.parent_step is None else f" @{run.parent_step}"
    time = "" if run.ended is None else duration((run.ended - run.started).total_seconds())
    return (
        f"{prefix}{run.number}{fork}",
        printable_line(run.name),
        run.kind,
        run.status,
        f"{run.steps:,}",
        moment(run.started),
        time,
    )


def _line(cells: Sequence[str], widths: Sequence[int], styles: dict[str, str]) -> Text:
    line = Text()
    for head, cell, width in zip(_HEADS, cells, widths, strict=True):
        padded = cell.rjust(width) if head in _RIGHT else cell.ljust(width)
        line.append("  " if line else "").append(padded, styles.get(head, ""))
    line.rstrip()
    return line
