"""The tracked values of a run as a data frame."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nncdbg.engine.errors import UsageError

if TYPE_CHECKING:
    from nncdbg.journal.journal import Journal
    from nncdbg.journal.records import Run

LIBRARIES = ("pandas", "polars")


def data_frame(journal: Journal, run: Run | int | None, library: str) -> Any:
    """Return the data frame of `Journal.frame`."""
    if library not in LIBRARIES:
        raise UsageError(f'no data frames of the library "{library}"', hint="use pandas or polars")
    try:
        module = import_module(library)
    except ImportError:
        raise UsageError(
            f"{library} is not installed", hint=f'install it: pip install "nncdbg[{library}]"'
        ) from None
    return module.DataFrame(_columns(journal, run))


def _columns(journal: Journal, run: Run | int | None) -> dict[str, NDArray[Any]]:
    found = journal.run(run.number if not isinstance(run, int) and run is not None else run)
    steps = journal.steps(found)
    tracks = {pair: journal.values(found, *pair) for pair in journal.tracks(found)}
    index = np.unique(np.concatenate([steps["step"], *(each[0] for each in tracks.values())]))
    rows = np.searchsorted(index, steps["step"])
    epochs = np.full(len(index), -1, np.int64)
    epochs[rows] = steps["epoch"]
    columns = {"step": index, "epoch": epochs, "seconds": _spread(index, steps["step"], steps["seconds"])}
    for (name, part), (at, numbers) in tracks.items():
        title = name if part == "train" and name not in columns else f"{name} ({part})"
        columns[title] = _spread(index, at, numbers)
    return columns


def _spread(index: NDArray[Any], steps: NDArray[Any], numbers: NDArray[Any]) -> NDArray[Any]:
    column = np.full(len(index), np.nan)
    column[np.searchsorted(index, steps)] = numbers
    return column
