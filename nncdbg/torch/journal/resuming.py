"""Checkpoints of recorded trainings, and `nncdbg.torch.resume`, which continues from one."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import numpy as np
import torch

import nncdbg.journal
from nncdbg.errors import LoadError, NncdbgError, UsageError
from nncdbg.journal import Journal, Run
from nncdbg.journal.records import Count
from nncdbg.opening.journal.ranks import RankMembership
from nncdbg.opening.journal.reopening import step_of
from nncdbg.opening.journal_address import Address, read_address
from nncdbg.presentation.screen import Screen
from nncdbg.process.ranks import journal_of_rank
from nncdbg.text.counting import counted
from nncdbg.torch.journal.recorded_ranks import RecordedRanks
from nncdbg.torch.journal.state_trees import from_json, python_state
from nncdbg.torch.journal.tracking import RECREATIONS
from nncdbg.torch.journal.training_objects import Stateful, TrainingObjects, restore
from nncdbg.torch.named_models import Models, Optimizers
from nncdbg.torch.ranks import rank_of_process

# -- checkpoints ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SavedState:
    """A checkpoint of the run `run` of a journal, with its tensors in memory.

    It is the last one at or before the step `requested`, which is that of the address.
    """

    address: Address
    run: int
    requested: int
    step: int
    epoch: int
    position: Mapping[str, Any]
    tensors: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.address.file}#{self.run}@{self.step}"


def saved_state(text: str, at: int | None = None) -> SavedState:
    """Return the last checkpoint at or before the address in a text, or that of the step `at`.

    Raises UsageError without a checkpoint, LoadError for a file that is not a journal.
    """
    with run_at(text) as (journal, run, step, address):
        record = journal.nearest(run, step if at is None else at)
        if record is None:
            raise UsageError(
                f"{text}: there is no checkpoint at or before step {step}",
                hint=listed_checkpoints([each.step for each in journal.checkpoints(run)]),
            )
        read = journal.read(record)
        tensors = dict(read.tensors)
        try:
            _check_generators(msgspec.convert(from_json(read.position, tensors), _Position))
        except (LookupError, TypeError, ValueError, OverflowError, RuntimeError):
            raise LoadError(
                f"the checkpoint of {text} at step {read.step} is damaged", hint="resume at another step"
            ) from None
        return SavedState(address, run.number, step, read.step, read.epoch or 0, read.position, tensors)


_Place = Annotated[int, msgspec.Meta(ge=0, le=624)]
"""A place in the words of a Mersenne Twister, which NumPy does not check."""


class _Group(TypedDict):
    parameters: list[str]
    options: dict[str, Any]


_Optimizer = TypedDict(
    "_Optimizer", {"class": str, "state": dict[str, dict[str, Any]], "groups": list[_Group]}
)
_Scheduler = TypedDict("_Scheduler", {"class": str, "state": dict[str, Any]})


class _Random(TypedDict):
    torch: torch.Tensor
    devices: list[torch.Tensor]
    python: tuple[int, np.ndarray[Any, Any], float | None]
    numpy: tuple[str, np.ndarray[Any, Any], _Place, int, float] | None


class _Loader(TypedDict):
    epoch: Count
    batches: Count
    random: _Random
    generators: list[torch.Tensor]
    sampler_epoch: Count | None
    sampler_seed: NotRequired[int | None]
    ahead: NotRequired[_Random | None]


class _Position(TypedDict):
    """The position of a checkpoint, as `KeptStart.checkpoint` writes it."""

    optimizers: list[_Optimizer]
    schedulers: list[_Scheduler]
    scaler: dict[str, Any] | None
    random: _Random
    loader: _Loader | None
    batches: NotRequired[list[Any]]


def _check_generators(position: _Position) -> None:
    """Raise ValueError, RuntimeError or TypeError for a state that a random generator cannot have."""
    loader = position["loader"]
    states = [position["random"]]
    if loader is not None:
        states += [each for each in (loader["random"], loader.get("ahead")) if each is not None]
        for generator in loader["generators"]:
            torch.Generator().set_state(generator)
        if loader.get("sampler_seed") is not None:
            torch.Generator().manual_seed(loader["sampler_seed"] or 0)
    for state in states:
        torch.Generator().set_state(state["torch"])
        random.Random().setstate(python_state(state["python"]))
        if state["numpy"] is not None:
            np.random.RandomState().set_state(state["numpy"])


@contextmanager
def run_at(text: str) -> Iterator[tuple[Journal, Run, int, Address]]:
    """Open the journal at an address; yield it with the run of a training, the step and the address.

    Without a step in the address, it is that after the last one.  Raises as `saved_state`.
    """
    address = read_address(text) or Address(text)
    with nncdbg.journal.open(address.file) as journal:
        run = journal.run(address.run)
        if run.kind != "torch":
            raise UsageError(
                f"{text}: run {run.number} is of a program in graph text",
                hint=f"open it with `nncdbg {text}`",
            )
        yield journal, run, step_of(journal, run, address) if address.at_step else run.steps, address


def listed_checkpoints(steps: list[int]) -> str:
    """Return a hint with the steps of checkpoints."""
    if not steps:
        return "record with checkpoint_every=50 to have some"
    return f"there are checkpoints at the steps {', '.join(map(str, steps[:10]))}"


# -- checkpoints of several ranks ----------------------------------------------------------

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
    last = _last_common(address, [each["steps"] for each in everyone], ranks.member.rank)
    return saved_state(own, last)


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
    return saved_state(
        _address_at(address, rank), _last_common(address, [each.steps for each in found], rank)
    )


def _last_common(address: str, steps: Sequence[list[int]], rank: int) -> int:
    """Return the last step of which all ranks have a checkpoint.  Raises UsageError without one."""
    common = set.intersection(*map(set, steps))
    if not common:
        raise UsageError(
            f"{address}: there is no step at which all ranks have a checkpoint",
            hint=f"rank {rank}: {listed_checkpoints(steps[rank])}",
        )
    return max(common)


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
            f"there is no file {own}: rank {rank} has no journal", hint="use as many ranks as the run had"
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


# -- resuming ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a training continues: at the start of `step`, in `epoch`, as the run `run` of the journal `path`.

    Steps and epochs are counted from 0; `epoch` is 0 for a checkpoint without a tracked loader.
    """

    path: str
    run: int
    step: int
    epoch: int


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

    Under `nncdbg record --at`, the address is that of the command.

    Raises UsageError, and changes nothing, if the objects do not fit the checkpoint, or if another rank
    cannot resume; LoadError for a file that is not a journal.
    """
    objects = TrainingObjects(model, optimizer, scheduler=scheduler, scaler=scaler, loader=loader)
    if RECREATIONS:
        RECREATIONS[-1].begin(objects)
        recreated = RECREATIONS[-1].saved
        return Resumed(recreated.address.file, recreated.run, recreated.step, recreated.epoch)
    saved = state_of_rank(address)
    restore(objects, saved.position, saved.tensors, str(saved))
    resumed = Resumed(saved.address.file, saved.run, saved.step, saved.epoch)
    screen = Screen()
    screen.note(f"the training continues at step {resumed.step} of run {resumed.run} in {resumed.path}")
    if loader is not None and saved.epoch > 0:
        for each in loader.not_restored():
            screen.note(f"the following batches may differ: {each}")
    return resumed
