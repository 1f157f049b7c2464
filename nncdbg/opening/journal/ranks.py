"""The ranks of a distributed training, each with a journal beside that of rank 0, and recorded steps."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nncdbg.errors import NncdbgError
from nncdbg.opening.journal_address import Address
from nncdbg.process.ranks import journal_of_rank

if TYPE_CHECKING:
    from nncdbg.journal import Journal, Run

# -- recorded steps --------------------------------------------------------------------------------


def bundle_folder(path: str | Path, run: int, step: int) -> Path:
    """Return the folder with a recorded step of a run: ``run.db.steps/run1-step38`` for ``run.db``."""
    return Path(f"{path}.steps") / f"run{run}-step{step}"


def recorded_step(address: Address, folder: Path) -> Path | None:
    """Return the folder of the step at an address, relative to `folder`; None if it was not recorded.

    In a training on several ranks, the first NaN or Inf is that of the rank on which it originates.
    Raises UsageError for a run or step that the journal does not have.
    """
    from nncdbg import journal as journals
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


# -- ranks -----------------------------------------------------------------------------------------

CONFIGURATION = "torch.distributed"
"""The key of the configuration of a run with the group, rank and number of ranks of the training."""

NAN, INF, RECEIVED = "nan", "inf", "received"
"""Kinds of events: a NaN that originates on the rank, an Inf without a NaN, or those of another rank."""

ORIGINS = (NAN, INF)

BAD_KINDS = (NAN, INF, RECEIVED)

_MOST = 1 << 16
"""Most ranks of a training: each has a file."""


@dataclass(frozen=True, slots=True)
class RankMembership:
    """The place of a run in a training: runs with the same `group` are those of its `ranks` ranks."""

    group: str
    rank: int
    ranks: int

    @classmethod
    def of(cls, configuration: dict[str, Any]) -> RankMembership | None:
        """Return the membership in the configuration of a run; None for a training on one rank."""
        try:
            found = configuration[CONFIGURATION]
            member = cls(str(found["group"]), int(found["rank"]), int(found["ranks"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        return member if 0 <= member.rank < member.ranks <= _MOST else None

    def as_configuration(self) -> dict[str, Any]:
        """Return the entry for the configuration of the run."""
        return {CONFIGURATION: {"group": self.group, "rank": self.rank, "ranks": self.ranks}}


@dataclass(frozen=True, slots=True)
class RankStatus:
    """What is known of a rank: its run, how far it came, and its first finding.

    `status` is that of a `Run`, or "unknown" if the journal of the rank cannot be read: `run` is 0 then.  The
    first finding is the first NaN or Inf, otherwise the first event.  `folder` has the recorded step; "" if
    there is none.
    """

    rank: int
    file: str
    run: int = 0
    status: str = "unknown"
    steps: int = 0
    kind: str = ""
    step: int | None = None
    message: str = ""
    folder: str = ""


def rank_status(journal: Journal, run: Run, rank: int) -> RankStatus:
    """Return what a journal has about the run of a rank."""
    file = os.fspath(journal.path)
    events = journal.events(run)
    bad = [each for each in events if each.kind in BAD_KINDS]
    event = next(iter([*bad, *events]), None)
    if event is None:
        return RankStatus(rank, file, run.number, run.status, run.steps)
    folder = None if event.step is None else bundle_folder(file, run.number, event.step)
    saved = str(folder) if folder is not None and folder.is_dir() else ""
    return RankStatus(
        rank, file, run.number, run.status, run.steps, event.kind, event.step, event.message, saved
    )


def read_rank(path: str, rank: int, group: str) -> RankStatus:
    """Return what the journal of a rank has about its run of a group; `path` is that of any rank."""
    from nncdbg import journal as journals

    file = journal_of_rank(path, rank)
    if os.path.isfile(file):
        try:
            with journals.open(file) as journal:
                for run in reversed(journal.runs()):
                    found = RankMembership.of(run.configuration)
                    if found is not None and found.group == group:
                        return rank_status(journal, run, rank)
        except NncdbgError:
            pass  # The status says that it cannot be read.
    return RankStatus(rank, file)


def ranks_of(journal: Journal, run: Run) -> list[RankStatus]:
    """Return the ranks of a run's training, by rank; empty for a training on one rank."""
    member = RankMembership.of(run.configuration)
    if member is None:
        return []
    return [
        rank_status(journal, run, rank)
        if rank == member.rank
        else read_rank(os.fspath(journal.path), rank, member.group)
        for rank in range(member.ranks)
    ]


def origin_among(ranks: Iterable[RankStatus]) -> RankStatus | None:
    """Return the rank on which the first NaN or Inf originates; None if there is none."""
    found = [each for each in ranks if each.kind in ORIGINS and each.step is not None]
    return min(found, key=lambda each: (each.step, each.rank), default=None)
