"""The checkpoints from which the ranks of a training continue together."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from nncdbg.engine.errors import LoadError, NncdbgError, UsageError
from nncdbg.engine.process.ranks import journal_of_rank
from nncdbg.engine.text.counting import counted
from nncdbg.opening.journal.ranks import RankMembership
from nncdbg.torch.journal.recorded_ranks import RecordedRanks
from nncdbg.torch.journal.saved_state import SavedState, listed_checkpoints, run_at, saved_state
from nncdbg.torch.ranks import rank_of_process

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
        found = _checkpoints(own)
    except NncdbgError as error:
        ranks.publish({"error": error.message})
        raise
    everyone = ranks.exchange({"group": found.group, "steps": found.steps})
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
            hint=f"rank {ranks.member.rank}: {listed_checkpoints(found.steps)}",
        )
    return saved_state(own, max(common))


def state_to_record(address: str) -> SavedState:
    """Return the checkpoint from which this rank re-creates a step: the last one that all ranks have.

    The script has no process group yet, so that each rank reads the journals of all ranks.

    Raises UsageError without such a checkpoint, for a run on another number of ranks, and for ranks with
    other steps at the address; LoadError for a file that is not a journal.
    """
    rank, ranks = rank_of_process()
    if ranks == 1:
        return saved_state(address)
    found = [_checkpoints(_address_at(address, each)) for each in range(ranks)]
    own = found[rank]
    if own.ranks != ranks:
        raise UsageError(
            f"{address}: the run has {counted(own.ranks, 'rank')}, and this job {ranks}",
            hint="use the number of processes of the run: torchrun --nproc-per-node N",
        )
    for other, each in enumerate(found):
        if (each.group, each.step) != (own.group, own.step):
            what = f"step {each.step}" if each.group == own.group else "a run of another training"
            raise UsageError(
                f"{address} is {what} on rank {other}, and step {own.step} on rank {rank}",
                hint="name the run and the step, such as run.db#1@38",
            )
    common = set.intersection(*(set(each.steps) for each in found))
    if not common:
        raise UsageError(
            f"{address}: there is no step at which all ranks have a checkpoint",
            hint=f"rank {rank}: {listed_checkpoints(own.steps)}",
        )
    return saved_state(_address_at(address, rank), max(common))


def address_of_rank(address: str) -> str:
    """Return the address in the journal of this rank: ``run.db-rank1@38`` for ``run.db@38`` on rank 1.

    Raises LoadError if this rank has no journal.
    """
    rank, ranks = rank_of_process()
    return address if ranks == 1 else _address_at(address, rank)


def _address_at(address: str, rank: int) -> str:
    """Return the address in the journal of a rank.  Raises LoadError if that rank has no journal."""
    found = None if os.path.lexists(address) else _ADDRESS.fullmatch(address)
    file, place = (address, "") if found is None else found.groups()
    own = journal_of_rank(file, rank)
    if not os.path.lexists(own):
        raise LoadError(
            f"there is no file {own}: rank {rank} has no journal",
            hint="use as many ranks as the run had",
        )
    return f"{own}{place}"


@dataclass(frozen=True, slots=True)
class _Checkpoints:
    """The run at an address: its training, and its checkpoints up to the step of the address."""

    group: str
    ranks: int
    step: int
    steps: list[int]


def _checkpoints(text: str) -> _Checkpoints:
    with run_at(text) as (journal, run, step, _):
        member = RankMembership.of(run.configuration)
        steps = [each.step for each in journal.checkpoints(run) if each.step <= step]
        group, ranks = ("", 1) if member is None else (member.group, member.ranks)
        return _Checkpoints(group, ranks, step, steps)
