"""The log of a run: its facts, its tracks as curves, checkpoints, events, notes, edits and forks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
from rich.text import Text

from nncdbg.escaping import printable_line
from nncdbg.opening.journal.ranks import BAD_KINDS, ranks_of
from nncdbg.presentation.elements import BAD, DIM, Layout, element, is_bad
from nncdbg.presentation.journal.amounts import duration, file_size, moment
from nncdbg.presentation.journal.rank_table import rank_lines
from nncdbg.presentation.journal.run_list import STATUS_STYLES, track_title
from nncdbg.presentation.sparkline import NOT_FINITE, sparkline
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.journal import Journal, Run, RunEvent

_LISTED = 8
"""Most lines of a section, and most steps in a line."""

Entry: TypeAlias = "tuple[int | None, Text]"
"""The step and the content of an event, edit, note or command."""

_HEADS = ("last", "min", "max", "NaN or Inf")

_HEIGHT = 12
"""Lines of a plot."""

_CURVES = (10, 60)
"""Fewest and most columns of a curve beside its numbers."""


def run_log(journal: Journal, run: Run, layout: Layout) -> Iterator[Text]:
    """Yield the lines of a run's log."""
    yield from _facts(journal, run)
    yield from track_lines(journal, run, layout)
    yield from _epochs(journal, run)
    yield from _checkpoints(journal, run)
    yield from _kept_values(journal, run)
    for title, found in entries(journal, run):
        yield from _section(title, found)
    yield from _forks(journal, run)
    yield from rank_lines(ranks_of(journal, run))


def _facts(journal: Journal, run: Run) -> Iterator[Text]:
    title = Text(f"run {run.number} of {journal.path.name}: {printable_line(run.name)}", "bold")
    yield title
    line = Text("  ").append(run.status, STATUS_STYLES.get(run.status, ""))
    line.append(f", {counted(run.steps, 'step', ',')}")
    line.append(f"; started {moment(run.started)}")
    if run.ended is not None:
        line.append(f", took {duration((run.ended - run.started).total_seconds())}")
    yield line
    if run.parent is not None:
        yield Text(f"  fork of run {run.parent} at step {run.parent_step}")
    if run.command:
        program, *arguments = run.command
        yield Text(f"  {printable_line(shlex.join([Path(program).name, *arguments]))}", DIM)


def opening_hint(journal: Journal, run: Run, file: str) -> str | None:
    """Return how to open the run at its first NaN or its last checkpoint; None for a run without both."""
    found = journal.checkpoints(run)
    if not found:
        return None
    at_step = f"#{run.number}"
    if any(event.kind in BAD_KINDS for event in journal.events(run)):
        at_step, place = f"{at_step}@nan", "the first step with a NaN or Inf"
    else:
        at_step, place = f"{at_step}@{found[-1].step}", f"step {found[-1].step}"
    if run.kind == "graph" or at_step.endswith("@nan"):
        return f"to open {place}: nncdbg {shlex.quote(file)}{at_step}"
    return f"to continue from {place}: nncdbg.torch.resume(model, optimizer, {file + at_step!r})"


# -- tracks ------------------------------------------------------------------------------------


def track_lines(journal: Journal, run: Run, layout: Layout) -> Iterator[Text]:
    """Yield a line per track: the curve, the last number, and the extremes with their steps.

    The part of a curve that belongs to the run's parents is dim.
    """
    read = (_track_row(journal, run, name, part) for name, part in journal.tracks(run))
    rows = [row for row in read if row is not None]
    if not rows:
        return
    heads = _HEADS if any(row.numbers[3].plain for row in rows) else _HEADS[:3]
    widths = [
        max(len(head), *(row.numbers[column].cell_len for row in rows)) for column, head in enumerate(heads)
    ]
    title = max(len("track"), *(len(row.title) for row in rows))
    used = 2 + title + sum(width + 2 for width in widths)
    room = min(max(layout.width - used - 2, _CURVES[0]), _CURVES[1]) if layout.unicode else 0
    line = Text("  ").append("track".ljust(title), DIM).append("  " * bool(room) + " " * room)
    yield _after(line, [Text(head, DIM) for head in heads], widths)
    span = (min(int(row.steps[0]) for row in rows), max(int(row.steps[-1]) for row in rows))
    for row in rows:
        line = Text("  ").append(row.title.ljust(title))
        if room:
            line.append("  ").append_text(_bars(row, span, run.parent_step or 0, room))
        yield _after(line, row.numbers, widths)


@dataclass(frozen=True, slots=True)
class _TrackRow:
    title: str
    steps: Steps
    values: Numbers
    numbers: list[Text]
    """The last number, the extremes with their steps, and the first step that is not finite."""


def _track_row(journal: Journal, run: Run, name: str, part: str) -> _TrackRow | None:
    """Return the row of a track; None without numbers."""
    steps, values = journal.values(run, name, part)
    if not len(values):
        return None
    finite = np.isfinite(values)
    odd = np.flatnonzero(~finite)
    numbers = [_number(values[-1])]
    for find in (np.argmin, np.argmax):
        place = int(find(values[finite])) if finite.any() else None
        number = Text("-") if place is None else _number(values[finite][place])
        numbers.append(number if place is None else number.append(f" @{steps[finite][place]}", DIM))
    numbers.append(Text(f"from @{steps[odd[0]]}", BAD) if len(odd) else Text())
    return _TrackRow(track_title(name, part), steps, values, numbers)


def _number(value: np.float64) -> Text:
    return Text().append(element(value), BAD if is_bad(value) else "")


def _bars(row: _TrackRow, span: tuple[int, int], branch: int, room: int) -> Text:
    """Return the bars of a track below the steps of `span`, which all tracks share; before `branch` dim."""
    first, last = span
    columns = min(room, last - first + 1)

    def column(step: int) -> int:
        return (step - first) * columns // (last - first + 1)

    start, end = column(int(row.steps[0])), column(int(row.steps[-1])) + 1
    bars = " " * start + sparkline(row.steps.tolist(), row.values.tolist(), end - start)
    dim = column(min(max(branch, first), last + 1))
    return Text().append(bars[:dim], DIM).append(bars[dim:].ljust(room - dim))


def _after(line: Text, cells: Sequence[Text], widths: Sequence[int]) -> Text:
    for cell, width in zip(cells, widths, strict=False):
        line.append("  ").append_text(cell).append(" " * (width - cell.cell_len))
    line.rstrip()
    return line


def track_plots(journal: Journal, run: Run, name: str, layout: Layout) -> Iterator[Text]:
    """Yield a plot for each part of a track, below its title and numbers."""
    for title, part in journal.tracks(run):
        if title != name:
            continue
        row = _track_row(journal, run, name, part)
        if row is None:
            continue
        line = Text().append(f"{row.title} of run {run.number}", "bold")
        for head, number in zip(_HEADS, row.numbers, strict=True):
            if number.plain:
                line.append("  ").append(f"{head} ", DIM).append_text(number)
        yield line
        yield from curve(row.steps, row.values, layout, height=_HEIGHT, branch=run.parent_step or 0)


# -- sections ----------------------------------------------------------------------------------


def _epochs(journal: Journal, run: Run) -> Iterator[Text]:
    rows = journal.steps(run)
    changes = np.flatnonzero(np.diff(rows["epoch"], prepend=-1))
    if run.epochs:
        yield Text(f"{counted(run.epochs, 'epoch', ',')} from {_steps(rows['step'][changes].tolist())}")


def _steps(steps: Sequence[int]) -> str:
    """Return `step 3`, or `steps 0, 50, 100`; many are cut in the middle."""
    numbers = [f"{step}" for step in steps]
    if len(numbers) > _LISTED:
        numbers = [*numbers[: _LISTED // 2], "...", *numbers[-_LISTED // 2 :]]
    return f"step{'' if len(steps) == 1 else 's'} {', '.join(numbers)}"


def _checkpoints(journal: Journal, run: Run) -> Iterator[Text]:
    found = journal.checkpoints(run)
    if not found:
        return
    size = file_size(sum(record.bytes for record in found))
    steps = sorted({record.step for record in found})
    yield Text(f"{counted(len(steps), 'checkpoint', ',')} ({size}) at {_steps(steps)}")


def _kept_values(journal: Journal, run: Run) -> Iterator[Text]:
    found = journal.kept_values(run)
    if not found:
        return
    size = file_size(sum(each.bytes for each in found))
    names = counted(len({each.name for each in found}), "value", ",")
    yield Text(f"{names} kept ({size}) at {_steps(sorted({each.step for each in found}))}")


def entries(journal: Journal, run: Run) -> Iterator[tuple[str, list[Entry]]]:
    """Yield the title, and the steps and contents, of the events, edits, notes and commands."""
    events = [(each.step, _event_text(each)) for each in journal.events(run)]
    yield "event", events
    yield (
        "edit",
        [
            (each.step, Text(printable_line(f"%{name_text(each.name)} = {each.text}")))
            for each in journal.edits(run)
        ],
    )
    yield "note", [(each.step, Text(printable_line(each.text))) for each in journal.notes(run)]
    yield "command", [(each.step, Text(printable_line(each.text))) for each in journal.commands(run)]


def place_text(step: int | None) -> str:
    """Return the step of an entry; "" for one about the whole run."""
    return "" if step is None else f"step {step}"


def _event_text(event: RunEvent) -> Text:
    return Text().append(printable_line(event.kind), BAD).append(f"  {printable_line(event.message)}")


def _section(title: str, found: Sequence[Entry]) -> Iterator[Text]:
    """Yield the number of entries and their lines; equal neighbours share a line, many are cut."""
    if not found:
        return
    yield Text(counted(len(found), title, ","))
    groups = [[*group] for _, group in groupby(found, lambda entry: entry[1].plain)]
    half = _LISTED // 2
    cut = len(groups) - _LISTED
    listed = [*groups[:half], *groups[-half:]] if cut > 0 else groups
    width = max(len(_places(group)) for group in listed)
    for number, group in enumerate(listed):
        if cut > 0 and number == half:
            yield Text(f"  and {cut} more", DIM)
        line = Text("  ").append(_places(group).ljust(width), DIM)
        yield line.append("  " * bool(width)).append_text(group[0][1])


def _places(group: Sequence[Entry]) -> str:
    first, last = group[0][0], group[-1][0]
    return place_text(first) if first == last else f"steps {first}-{last}"


def _forks(journal: Journal, run: Run) -> Iterator[Text]:
    for other in journal.runs():
        if other.parent == run.number:
            yield Text(f"fork: run {other.number} from step {other.parent_step}, {other.status}")


# -- curves ----------------------------------------------------------------------------------------

Numbers = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

_ACROSS, _DOWN = 2, 4
"""Dots of a Braille character."""

_BRAILLE = 0x2800
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""The bit of each dot of a Braille character."""

_WIDEST = 120
"""Most columns of a plot in a pipe, whose lines have no limit."""


def curve(steps: Steps, numbers: Numbers, layout: Layout, *, height: int, branch: int = 0) -> list[Text]:
    """Return the lines of a plot: `height` lines of dots, and two lines with the steps.

    A column of dots covers the smallest to the largest number of its steps, so no spike is lost.  With NaN
    or Inf, the first line has a mark × above their steps.  Columns before step `branch` are dim.  `steps`
    ascend and are not empty.
    """
    finite = numbers[np.isfinite(numbers)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    labels = {0: element(high), height - 1: element(low)} if high > low else {height // 2: element(low)}
    if not finite.size:
        labels = {}
    gutter = max(map(len, labels.values()), default=0)
    width = max(8, min(layout.width, _WIDEST) - gutter - 2)
    across, down = (_ACROSS, _DOWN) if layout.unicode else (1, 1)
    places = _columns(steps, width * across)
    dots = _dots(places, numbers, (low, high), (height * down, width * across))
    characters = _braille(dots) if layout.unicode else np.where(dots, "*", " ")
    dim = int(_columns(np.array([steps[0], branch, steps[-1]]), width)[1]) if branch > steps[0] else 0
    lines = [] if len(finite) == len(numbers) else [_marks(places // across, numbers, gutter + 2, layout)]
    for row in range(height):
        line = Text().append(f"{labels.get(row, ''):>{gutter}} ", DIM)
        line.append("┤" if layout.unicode else "|", DIM)
        cells = "".join(characters[row])
        lines.append(line.append(cells[:dim], DIM).append(cells[dim:].rstrip()))
    return [*lines, *_axis(steps, width, gutter, layout)]


def _columns(steps: Steps, columns: int) -> npt.NDArray[np.int64]:
    """Return the column of each step, from 0 for the first to the last column."""
    span = max(1, int(steps[-1] - steps[0]))
    return np.asarray((steps - steps[0]) * (columns - 1) // span, np.int64)


def _dots(
    places: npt.NDArray[np.int64], numbers: Numbers, scale: tuple[float, float], size: tuple[int, int]
) -> npt.NDArray[np.bool_]:
    """Return which dots of the plot are set; lines connect numbers without a NaN or Inf between them."""
    rows, columns = size
    dots = np.zeros(size, bool)
    low, high = scale
    # Halves, because the difference of two large numbers may overflow.
    span = high / 2 - low / 2
    finite = np.isfinite(numbers)
    levels = np.full(len(numbers), np.nan)
    shares = (numbers[finite] / 2 - low / 2) / span if span else np.full(finite.sum(), 0.5)
    levels[finite] = (1 - shares.clip(0, 1)) * (rows - 1)
    for column, top, bottom in _spans(places, levels):
        dots[round(top) : round(bottom) + 1, column] = True
    return dots


def _spans(places: npt.NDArray[np.int64], levels: Numbers) -> Iterator[tuple[int, float, float]]:
    """Yield the columns with their first and last row of dots, also those between two numbers."""
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    ends = [*starts[1:], len(places)]
    before: tuple[int, float] | None = None
    for start, end in zip(starts, ends, strict=True):
        share, column = levels[start:end], int(places[start])
        known = share[~np.isnan(share)]
        if before is not None and not np.isnan(share[0]):
            yield from _between(*before, column, float(share[0]))
        if known.size:
            yield column, float(known.min()), float(known.max())
        before = None if np.isnan(share[-1]) else (column, float(share[-1]))


def _between(first: int, start: float, last: int, end: float) -> Iterator[tuple[int, float, float]]:
    """Yield the columns of a line from a level to another; neighbours meet halfway."""
    count = last - first
    edges = [start + (end - start) * (part + 0.5) / count for part in range(count)]
    levels = [start, *edges, end]
    for part in range(count + 1):
        top, bottom = sorted(levels[part : part + 2])
        yield first + part, top, bottom


def _braille(dots: npt.NDArray[np.bool_]) -> npt.NDArray[np.str_]:
    rows, columns = dots.shape[0] // _DOWN, dots.shape[1] // _ACROSS
    cells = dots.reshape(rows, _DOWN, columns, _ACROSS).transpose(0, 2, 1, 3)
    codes = (cells * _BITS).sum((2, 3))
    return np.array([[chr(_BRAILLE + code) if code else " " for code in row] for row in codes.tolist()])


def _marks(columns: npt.NDArray[np.int64], numbers: Numbers, indent: int, layout: Layout) -> Text:
    odd = set(columns[~np.isfinite(numbers)].tolist())
    sign = NOT_FINITE if layout.unicode else "x"
    marks = "".join(sign if column in odd else " " for column in range(max(odd, default=-1) + 1))
    return Text(" " * indent).append(marks, BAD)


def _axis(steps: Steps, width: int, gutter: int, layout: Layout) -> Iterator[Text]:
    corner, line = ("└", "─") if layout.unicode else ("+", "-")
    yield Text(" " * (gutter + 1) + corner + line * width, DIM)
    first, last = f"{steps[0]}", f"{steps[-1]}"
    middle = "step"
    if len(first) + len(middle) + len(last) + 2 > width:
        middle = ""
    gap = (width - len(middle)) // 2
    text = first.ljust(gap) + middle if gap > len(first) else first
    yield Text(" " * (gutter + 2) + text + last.rjust(width - len(text)) * (last != first), DIM)
