"""The recorded steps of PyTorch trainings, which are program folders beside the journal."""

from __future__ import annotations

from pathlib import Path

from nncdbg.opening.journal_address import Address


def bundle_folder(path: str | Path, run: int, step: int) -> Path:
    """Return the folder with a recorded step of a run: ``run.db.steps/run1-step38`` for ``run.db``."""
    return Path(f"{path}.steps") / f"run{run}-step{step}"


def recorded_step(address: Address, folder: Path) -> Path | None:
    """Return the folder of the step at an address, relative to `folder`; None if it was not recorded.

    In a training on several ranks, the first NaN or Inf is that of the rank on which it originates.
    Raises UsageError for a run or step that the journal does not have.
    """
    from nncdbg import journal as journals
    from nncdbg.opening.journal.ranks import origin_among, ranks_of
    from nncdbg.opening.journal.reopening import step_of

    if not address.at_step:
        return None
    with journals.open(folder / address.file) as journal:
        run = journal.run(address.run)
        if run.kind != "torch":
            return None
        origin = origin_among(ranks_of(journal, run)) if address.nan else None
        if origin is not None:
            return Path(origin.folder) if origin.folder else None
        found = bundle_folder(folder / address.file, run.number, step_of(journal, run, address))
    return found if found.is_dir() else None
