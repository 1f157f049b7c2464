"""The run journal: runs, steps, tracked values, statistics and checkpoints of trainings in one SQLite file.

    import nncdbg.journal

    with nncdbg.journal.open("run.db") as journal:
        steps, losses = journal.values(None, "loss")           # of the last run
        checkpoint = journal.read(journal.nearest(None, 38))
        checkpoint.tensors["state/w"]                          # an array

docs/JOURNAL.md describes the file.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from nncdbg.journal.journal import Journal as Journal
from nncdbg.journal.records import Checkpoint as Checkpoint
from nncdbg.journal.records import CheckpointRecord as CheckpointRecord
from nncdbg.journal.records import KeptValue as KeptValue
from nncdbg.journal.records import NewRun as NewRun
from nncdbg.journal.records import Run as Run
from nncdbg.journal.records import RunCommand as RunCommand
from nncdbg.journal.records import RunEdit as RunEdit
from nncdbg.journal.records import RunEvent as RunEvent
from nncdbg.journal.records import RunNote as RunNote
from nncdbg.journal.run_writer import RunWriter as RunWriter


def open(  # noqa: A001
    path: str | PathLike[str], *, write: bool = False, compression: str = "none"
) -> Journal:
    """Open a journal; with `write`, create the file if it is missing.

    `compression` of new tensors is "none" or "zstd", which needs the extra `journal`.  Raises UsageError for
    a missing file or one that cannot be written; LoadError for a file that is not a journal, is damaged, or
    has a newer schema.
    """
    return Journal(Path(path), write=write, compression=compression)
