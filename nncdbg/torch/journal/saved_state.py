"""A checkpoint of a recorded training, read from its journal."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import numpy as np
import torch

import nncdbg.journal
from nncdbg.engine.errors import LoadError, UsageError
from nncdbg.journal import Journal, Run
from nncdbg.journal.records import Count
from nncdbg.opening.journal.reopening import step_of
from nncdbg.opening.journal_address import Address, read_address
from nncdbg.torch.journal.random_states import python_state
from nncdbg.torch.journal.state_trees import from_json


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
