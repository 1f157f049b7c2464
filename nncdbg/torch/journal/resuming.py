"""`nncdbg.torch.resume`: continue a training from a checkpoint of its journal."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import nncdbg.journal
from nncdbg.engine.errors import LoadError, NncdbgError, UsageError
from nncdbg.engine.process.ranks import journal_of_rank
from nncdbg.journal import Journal, Run
from nncdbg.opening.journal.ranks import RankMembership
from nncdbg.opening.journal.reopening import step_of
from nncdbg.opening.journal_address import Address, read_address
from nncdbg.presentation.screen import Screen
from nncdbg.torch.journal.recorded_ranks import RecordedRanks
from nncdbg.torch.journal.restoring import restore
from nncdbg.torch.journal.training_objects import Stateful, TrainingObjects
from nncdbg.torch.named_models import Models, Optimizers
from nncdbg.torch.ranks import rank_of_process

_ADDRESS = re.compile(r"(.+?)((?:#[^#@]*)?(?:@[^#@]*)?)", re.DOTALL)
"""A file, and the run and step in it."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a training continues: at the start of `step`, in `epoch`, as the run `run` of the journal `path`.

    Steps and epochs are counted from 0; `epoch` is 0 for a checkpoint without a tracked loader.
    """

    path: str
    run: int
    step: int
    epoch: int

    def parent_in(self, path: str) -> int | None:
        """Return the run that a new run in the journal `path` is a fork of; None in another journal."""
        return self.run if os.path.realpath(path) == os.path.realpath(self.path) else None


@dataclass(frozen=True, slots=True)
class SavedState:
    """A checkpoint of the run `run` of a journal, with its tensors in memory."""

    address: Address
    run: int
    step: int
    epoch: int
    position: Mapping[str, Any]
    tensors: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.address.file}#{self.run}@{self.step}"


def resume(
    model: Models,
    optimizer: Optimizers,
    address: str,
    *,
    scheduler: Stateful | Sequence[Stateful] | None = None,
    scaler: Stateful | None = None,
    loader: Any = None,
) -> Resumed:
    """Restore the state of a training from a journal, and return where it continues.

    `address` is that of a step: ``run.db@38``, ``run.db#2@38``, ``run.db@epoch:3``, ``run.db@nan``, or
    ``run.db`` for the last checkpoint.  The last checkpoint at or before that step is used.  Parameters,
    buffers, moments, options of optimizers, schedulers, the gradient scaler, the states of the random
    generators and the position of the loader are those of the run, so that all that follows has the same
    bits.  `loader` is a `track_loader`; it continues in its next epoch.

    In a training on several ranks, all ranks call this with the same address.  Each reads its own journal,
    and all continue at the last step of which all have a checkpoint.

    Raises UsageError, and changes nothing, if the objects do not fit the checkpoint, or if another rank
    cannot resume; LoadError for a file that is not a journal.
    """
    objects = TrainingObjects(model, optimizer, scheduler=scheduler, scaler=scaler, loader=loader)
    ranks = RecordedRanks.join("resume")
    saved = saved_state(address_of_rank(address)) if ranks is None else _saved_on_all(address, ranks)
    restore(objects, saved.position, saved.tensors, str(saved))
    resumed = Resumed(saved.address.file, saved.run, saved.step, saved.epoch)
    Screen().note(f"the training continues at step {resumed.step} of run {resumed.run} in {resumed.path}")
    return resumed


def address_of_rank(address: str) -> str:
    """Return the address in the journal of this rank: ``run.db-rank1@38`` for ``run.db@38`` on rank 1.

    Raises LoadError if this rank has no journal.
    """
    rank, ranks = rank_of_process()
    if ranks == 1:
        return address
    found = None if os.path.lexists(address) else _ADDRESS.fullmatch(address)
    file, place = (address, "") if found is None else found.groups()
    own = journal_of_rank(file, rank)
    if not os.path.lexists(own):
        raise LoadError(
            f"there is no file {own}: rank {rank} has no journal",
            hint="resume on as many ranks as the run had",
        )
    return f"{own}{place}"


def _saved_on_all(address: str, ranks: RecordedRanks) -> SavedState:
    """Return the last checkpoint of this rank at a step of which all ranks have one.

    Raises UsageError on all ranks if one of them cannot resume.
    """
    try:
        found = address_of_rank(address)
        group, steps = _checkpoints(found)
    except NncdbgError as error:
        ranks.publish({"error": error.message})
        raise
    all_ranks = ranks.exchange({"group": group, "steps": steps})
    for rank, each in enumerate(all_ranks):
        if "error" in each:
            raise UsageError(f"rank {rank} cannot resume: {each['error']}")
    if len({each["group"] for each in all_ranks}) > 1:
        raise UsageError(
            f"{address}: the runs of the ranks are not of one training", hint="name a run, as run.db#1"
        )
    common = set.intersection(*(set(each["steps"]) for each in all_ranks))
    if not common:
        raise UsageError(
            f"{address}: there is no step of which all ranks have a checkpoint",
            hint=f"on this rank, {_listed(steps)}",
        )
    return saved_state(found, max(common))


def _checkpoints(text: str) -> tuple[str, list[int]]:
    """Return the group of the run at an address, and the steps of its checkpoints up to there."""
    with _run_at(text) as (journal, run, step, _):
        member = RankMembership.of(run.configuration)
        steps = [each.step for each in journal.checkpoints(run) if each.step <= step]
        return "" if member is None else member.group, steps


def saved_state(text: str, at: int | None = None) -> SavedState:
    """Return the last checkpoint at or before the address in a text, or that of the step `at`.

    Raises UsageError without a checkpoint, LoadError for a file that is not a journal.
    """
    with _run_at(text) as (journal, run, step, address):
        step = step if at is None else at
        record = journal.nearest(run, step)
        if record is None:
            raise UsageError(
                f"{text}: there is no checkpoint at or before step {step}",
                hint=f"{_listed([each.step for each in journal.checkpoints(run)])}",
            )
        read = journal.read(record)
        return SavedState(address, run.number, read.step, read.epoch or 0, read.position, dict(read.tensors))


@contextmanager
def _run_at(text: str) -> Iterator[tuple[Journal, Run, int, Address]]:
    """Open the journal at an address; yield it with the run and the step."""
    address = read_address(text) or Address(text)
    with nncdbg.journal.open(address.file) as journal:
        run = journal.run(address.run)
        if run.kind != "torch":
            raise UsageError(
                f"{text}: run {run.number} is of a program in graph text",
                hint=f"open it with `nncdbg {text}`",
            )
        yield journal, run, step_of(journal, run, address) if address.at_step else run.steps, address


def _listed(steps: list[int]) -> str:
    if not steps:
        return "record with checkpoint_every=50 to have some"
    return f"there are checkpoints at the steps {', '.join(map(str, steps[:10]))}"
