"""`nncdbg log --follow`: the log of a run that another process writes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text

from nncdbg.presentation.elements import BAD, DIM, element, is_bad
from nncdbg.presentation.journal.run_list import track_title
from nncdbg.presentation.journal.run_log import entries, place_text, run_log, track_plots
from nncdbg.presentation.screen import fitted
from nncdbg.terminal.journal.log import check_track
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.journal import Journal, Run
    from nncdbg.presentation.screen import Screen

_PACE = 0.5
"""Least seconds between two readings."""

_SHARE = 4
"""The pause is at least this many times as long as the reading, so that following a long run stays cheap."""


def follow(journal: Journal, number: int | None, track: str | None, screen: Screen) -> int:
    """Show the log until the run ends, or Ctrl-C: redrawn on a terminal, appended to a pipe."""
    redraws = screen.is_terminal and not screen.out.is_dumb_terminal
    run = None
    try:
        run = _first(journal, number, screen)
        show = _redraw if redraws else _append
        show(journal, run.number, track, screen)
    except KeyboardInterrupt:
        rest = "" if run is None else f"; run {run.number} is still running"
        screen.note(f"stopped following{rest}")
    return 0


def _first(journal: Journal, number: int | None, screen: Screen) -> Run:
    """Return the run; wait for the first one of a journal without runs."""
    for attempt in count():
        if journal.runs():
            break
        if attempt == 0:
            screen.note("waiting for the first run")
        time.sleep(_PACE)
    return journal.run(number)


def _states(journal: Journal, number: int) -> Iterator[Run]:
    """Yield the run again and again; the last time after it has ended."""
    while True:
        run, start = journal.run(number), time.monotonic()
        yield run
        if run.status != "running":
            return
        time.sleep(max(_PACE, _SHARE * (time.monotonic() - start)))


def _redraw(journal: Journal, number: int, track: str | None, screen: Screen) -> None:
    from rich.console import Group
    from rich.live import Live

    def lines(run: Run) -> list[Text]:
        shown = run_log(journal, run, screen.line_layout)
        if track is not None:
            if run.status != "running":
                check_track(journal, run, track)
            shown = track_plots(journal, run, track, screen.line_layout)
        return [fitted(line, screen.line_layout) for line in shown]

    def show() -> None:
        for line in lines(journal.run(number)):
            screen.put_line(line)

    try:
        with Live(console=screen.out, auto_refresh=False, transient=True) as live:
            for run in _states(journal, number):
                live.update(Group(*lines(run), Text("Ctrl-C stops following", DIM)), refresh=True)
            live.update(Text())
    except KeyboardInterrupt:
        show()
        raise
    show()


def _append(journal: Journal, number: int, track: str | None, screen: Screen) -> None:
    """Print a line for each step with new values, and one for each new event, edit and note."""
    seen: dict[tuple[str, str], int] = defaultdict(lambda: -1)
    printed: dict[str, int] = defaultdict(int)
    for run in _states(journal, number):
        if track is not None and run.status != "running":
            check_track(journal, run, track)
        for line in [*_new_values(journal, run, track, seen), *_new_entries(journal, run, printed)]:
            screen.put(line)
        screen.out.file.flush()
    screen.put(f"run {run.number} {run.status} after {counted(run.steps, 'step', ',')}")


def _new_values(
    journal: Journal, run: Run, track: str | None, seen: dict[tuple[str, str], int]
) -> Iterator[Text]:
    lines: dict[int, Text] = {}
    for name, part in journal.tracks(run):
        if track not in (None, name):
            continue
        steps, values = journal.values(run, name, part)
        new = steps > seen[name, part]
        for step, value in zip(steps[new].tolist(), values[new], strict=True):
            line = lines.setdefault(step, Text(f"step {step}"))
            number = np.float64(value)
            line.append(f"  {track_title(name, part)} ")
            line.append(element(number), BAD if is_bad(number) else "")
            seen[name, part] = step
    for step in sorted(lines):
        yield lines[step]


def _new_entries(journal: Journal, run: Run, printed: dict[str, int]) -> Iterator[Text]:
    for title, found in entries(journal, run):
        for step, content in found[printed[title] :]:
            place = place_text(step)
            yield Text(f"{place}  " if place else "").append(f"{title}: ").append_text(content)
        printed[title] = len(found)
