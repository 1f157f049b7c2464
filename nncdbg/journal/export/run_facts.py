"""What all exports of a run share: the times of its steps, its remarks as text, and file names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from nncdbg.engine.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.journal import Journal, Run

Times = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float64]]


def step_times(journal: Journal, run: Run) -> Times:
    """Return the function from step numbers to their ends, in seconds since 1970.

    A step ends after the durations of the run's steps up to it.  A duration that was not recorded counts as
    0, and a step of a parent ends at the start of the run.
    """
    recorded = journal.steps(run)
    own = recorded[recorded["step"] >= (run.parent_step or 0)]
    ends = np.cumsum(np.concatenate([[run.started.timestamp()], np.nan_to_num(own["seconds"])]))
    return lambda steps: ends[np.searchsorted(own["step"], steps, side="right")]


def remarks(journal: Journal, run: Run) -> dict[str, list[tuple[int | None, str]]]:
    """Return the step and the text of each note, event and edit of a run, by kind; no empty lists."""
    found: dict[str, list[tuple[int | None, str]]] = {
        "notes": [(each.step, each.text) for each in journal.notes(run)],
        "events": [(each.step, f"{each.kind}: {each.message}") for each in journal.events(run)],
        "edits": [(each.step, f"%{name_text(each.name)}: {each.text}") for each in journal.edits(run)],
    }
    return {kind: texts for kind, texts in found.items() if texts}


def file_name(name: str) -> str:
    """Return a name with `_` for all characters except letters, digits, `.`, `_` and `-`."""
    return re.sub(r"[^\w.-]", "_", name).strip(".") or "_"
