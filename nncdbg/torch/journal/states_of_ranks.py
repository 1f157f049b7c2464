"""The checkpoints from which the ranks of a training continue together."""

from __future__ import annotations

import os
import re

from nncdbg.engine.errors import LoadError, NncdbgError, UsageError
from nncdbg.opening.journal.ranks import RankMembership
from nncdbg.torch.journal.recorded_ranks import RecordedRanks
from nncdbg.torch.journal.saved_state import SavedState, listed_checkpoints, run_at, saved_state
from nncdbg.torch.ranks import journal_of_process, rank_of_process

_ADDRESS = re.compile(r"(.+?)((?:#[^#@]*)?(?:@[^#@]*)?)", re.DOTALL)
"""A file, and the run and step in it."""


def state_of_rank(address: str) -> SavedState:
    """Return the checkpoint from which this rank continues: the last one at an address that all ranks have.

    In a training on one rank, it is the last one at or before the address.

    Raises UsageError on all ranks if one of them has no checkpoint; LoadError for a file that is not a
    journal.
    """
    ranks = RecordedRanks.join("resume")
    if ranks is None:
        return saved_state(address_of_rank(address))
    try:
        own = address_of_rank(address)
        group, steps = _checkpoints(own)
    except NncdbgError as error:
        ranks.publish({"error": error.message})
        raise
    everyone = ranks.exchange({"group": group, "steps": steps})
    for rank, each in enumerate(everyone):
        if "error" in each:
            raise UsageError(f"rank {rank} cannot resume: {each['error']}")
    if len({each["group"] for each in everyone}) > 1:
        raise UsageError(
            f"{address}: the last runs of the ranks belong to different trainings",
            hint="name a run, such as run.db#1",
        )
    common = set.intersection(*(set(each["steps"]) for each in everyone))
    if not common:
        raise UsageError(
            f"{address}: there is no step at which all ranks have a checkpoint",
            hint=f"rank {ranks.member.rank}: {listed_checkpoints(steps)}",
        )
    return saved_state(own, max(common))


def address_of_rank(address: str) -> str:
    """Return the address in the journal of this rank: ``run.db-rank1@38`` for ``run.db@38`` on rank 1.

    Raises LoadError if this rank has no journal.
    """
    rank, ranks = rank_of_process()
    if ranks == 1:
        return address
    found = None if os.path.lexists(address) else _ADDRESS.fullmatch(address)
    file, place = (address, "") if found is None else found.groups()
    own = journal_of_process(file)
    if not os.path.lexists(own):
        raise LoadError(
            f"there is no file {own}: rank {rank} has no journal",
            hint="resume on as many ranks as the run had",
        )
    return f"{own}{place}"


def _checkpoints(text: str) -> tuple[str, list[int]]:
    """Return the group of the run at an address, and the steps of its checkpoints up to there."""
    with run_at(text) as (journal, run, step, _):
        member = RankMembership.of(run.configuration)
        steps = [each.step for each in journal.checkpoints(run) if each.step <= step]
        return "" if member is None else member.group, steps
