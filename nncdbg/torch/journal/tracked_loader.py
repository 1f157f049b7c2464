"""`nncdbg.torch.track_loader`: a data loader with a position, which can continue from one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from nncdbg.engine.ops.aten.internals import own_batches, skip_batches
from nncdbg.errors import UsageError
from nncdbg.text.counting import counted
from nncdbg.torch.journal.state_trees import as_json, random_as_json, restore_random
from nncdbg.torch.journal.tracking import RECREATIONS
from nncdbg.torch.step_call import tensors_in
from nncdbg.torch.step_state import RandomState


@dataclass(frozen=True, slots=True)
class LoaderPosition:
    """A position in the data: `batches` batches of an epoch were returned.

    The order of the epoch follows from the states of the generators at its beginning.
    """

    epoch: int
    batches: int
    random: RandomState
    """The states of the random generators at the beginning of the epoch."""
    generators: list[torch.Tensor]
    """The states of the generators that loader and samplers have of their own."""
    sampler_epoch: int | None
    """The epoch of a loader or sampler with `set_epoch`, such as `DistributedSampler`."""
    sampler_seed: int | None
    """The seed of a sampler that gives its generator a new seed in each epoch, as that of Accelerate."""
    ahead: RandomState | None
    """The states of the random generators before the last batch was fetched, if the loader reads ahead."""

    def as_json(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Return the position as JSON; its tensors are added to `tensors`."""
        return {
            "epoch": self.epoch,
            "batches": self.batches,
            "sampler_epoch": self.sampler_epoch,
            "sampler_seed": self.sampler_seed,
            "ahead": None if self.ahead is None else random_as_json(self.ahead, "random/ahead.", tensors),
            "random": random_as_json(self.random, "random/epoch.", tensors),
            "generators": as_json(self.generators, "random/loader", tensors),
        }


class TrackedLoader:
    """A `torch.utils.data.DataLoader`, or another iterable of batches, that keeps its position.

    Iterating over it gives the batches of the loader, and begins an epoch; all else is that of the loader.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.epoch = -1
        """The number of the epoch from 0: each iteration over the loader is one.  -1 before the first."""
        self.before_batch: Callable[[], None] | None = None
        """Called before each batch is fetched."""
        self.after_batch: Callable[[Any], None] | None = None
        """Called with each batch that was fetched."""
        self._beginning: LoaderPosition | None = None
        """The position at the beginning of the epoch."""
        self._batches = 0
        self._reads_ahead = False
        """Whether fetching a batch may load the next one as well."""
        self._ahead: RandomState | None = None
        self._later_epochs: int | None = None
        """What to add to the number of an epoch for samplers, if the training counts its epochs from 0."""
        self._restored: tuple[Mapping[str, Any], Callable[[], None]] | None = None
        """Where the next epoch continues, and what to call when it is there."""
        self._kept: list[Any] = []
        """The batches to return in place of the next ones."""

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # A copy that is not complete yet.
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return _Epoch(self)

    def follow_no_longer(self) -> None:
        """Remove `before_batch` and `after_batch`."""
        self.before_batch = self.after_batch = None

    @property
    def position(self) -> LoaderPosition:
        """The position before the next batch."""
        assert self._beginning is not None
        return replace(self._beginning, epoch=self.epoch, batches=self._batches, ahead=self._ahead)

    def restore(
        self, position: Mapping[str, Any], then: Callable[[], None], kept: Sequence[Any] = ()
    ) -> None:
        """Continue from a position of `LoaderPosition.as_json`, with its tensors, in the next epoch.

        `then` is called when the batches before it were left out.  The batches `kept` are returned in place
        of the first ones, on the devices of those.
        """
        self._restored = position, then
        self._kept = [*kept]
        self.epoch = position["epoch"] - 1

    def differences(self, position: Mapping[str, Any]) -> Iterator[str]:
        """Yield what a position of `LoaderPosition.as_json` has in another way than this loader."""
        ours, theirs = len(self._generators()), len(position["generators"])
        if ours != theirs:
            own = counted(ours, "random generator")
            yield f"the loader has {own} of its own, and {theirs} in the checkpoint"

    def count_epochs(self) -> None:
        """Give samplers the number of each epoch: the training that continues counts them from 0."""
        if self._restored is not None:
            position, _ = self._restored
            if position["sampler_epoch"] is not None:
                self._later_epochs = position["sampler_epoch"] - position["epoch"]

    @property
    def batches_to_skip(self) -> int:
        """How many batches of the next epoch are left out, as its position was restored."""
        return 0 if self._restored is None else int(self._restored[0]["batches"])

    def begin(self) -> Iterator[Any]:
        """Begin an epoch, or continue in the one that was restored; return the iterator of the loader."""
        if RECREATIONS:
            # If they do not fit, the script may pass others before its first forward pass, which reports it.
            with suppress(UsageError):
                RECREATIONS[-1].find(self)
        self.epoch += 1
        self._batches = 0
        self._ahead = None
        restored, self._restored = self._restored, None
        if restored is not None:
            return self._continue(*restored)
        if self._later_epochs is not None:
            self._set_epoch(self.epoch + self._later_epochs)
        return self._begin_epoch()

    def _begin_epoch(self) -> Iterator[Any]:
        states = [each.get_state() for each in self._generators()]
        seed = next((each.initial_seed for each in self._samplers() if hasattr(each, "initial_seed")), None)
        # A loader that gives the epoch to its samplers counts it itself.
        loader: Any = self.loader
        epoch = next((each.epoch for each in self._samplers() if hasattr(each, "set_epoch")), None)
        if hasattr(loader, "set_epoch") and hasattr(loader, "iteration"):
            epoch = int(loader.iteration)
        self._beginning = LoaderPosition(self.epoch, 0, RandomState(), states, epoch, seed, None)
        batches = iter(self.loader)
        self._reads_ahead = not isinstance(batches, own_batches)
        return batches

    def _continue(self, position: Mapping[str, Any], then: Callable[[], None]) -> Iterator[Any]:
        restore_random(position["random"])
        for generator, state in zip(self._generators(), position["generators"], strict=True):
            generator.set_state(state)
        if position["sampler_epoch"] is not None:
            self._set_epoch(position["sampler_epoch"])
        for sampler in self._samplers():
            if position.get("sampler_seed") is not None and hasattr(sampler, "initial_seed"):
                sampler.initial_seed = position["sampler_seed"]
        batches = self._begin_epoch()
        self._batches = position["batches"]
        try:
            if position.get("ahead") is None:
                skip_batches(batches, self._batches)
            else:
                skip_batches(batches, self._batches - 1)
                restore_random(position["ahead"])
                self._ahead = RandomState()
                skip_batches(batches, 1)
        except StopIteration:
            raise UsageError(
                f"the checkpoint is after {self._batches} batches of an epoch, and the loader has fewer",
                hint="use the data and the batch size of the run that wrote the checkpoint",
            ) from None
        then()
        return batches

    def not_restored(self) -> Iterator[str]:
        """Yield what of the loader has states that no position contains, as sentences."""
        if getattr(self.loader, "persistent_workers", False):
            yield "the workers persist over epochs, and their random states are not restored"
        for each in self._samplers():
            own = [key for key in getattr(each, "__dict__", {}) if key not in ("generator", "epoch")]
            if own and not type(each).__module__.startswith(("torch.", "accelerate.")):
                yield f"of {type(each).__name__}, only `generator` and `epoch` are restored, not {own[0]}"

    def fetch(self, batches: Iterator[Any]) -> Any:
        """Return the next batch of an iterator of the loader."""
        if self.before_batch is not None:
            self.before_batch()
        if self._reads_ahead:
            self._ahead = RandomState()
        batch = next(batches)
        self._batches += 1
        if self._kept:
            device = next((each.device for each in tensors_in(batch)), None)
            batch = tree_map_only(torch.Tensor, lambda each: each.to(device), self._kept.pop(0))
        if self.after_batch is not None:
            self.after_batch(batch)
        return batch

    def _samplers(self) -> list[Any]:
        """Return the samplers of the loader, outermost first."""
        found, outer = [], self.loader
        while (inner := getattr(outer, "batch_sampler", None)) is not None:
            found += [inner, getattr(inner, "sampler", None)]
            outer = inner
        found.append(getattr(self.loader, "sampler", None))
        return [*{id(each): each for each in found if each is not None}.values()]

    def _set_epoch(self, epoch: int) -> None:
        for each in (self.loader, *self._samplers()):
            if hasattr(each, "set_epoch"):
                each.set_epoch(epoch)

    def _generators(self) -> list[torch.Generator]:
        """Return the generators that loader and samplers have of their own, each once.

        A sampler with an `initial_seed` gives its generator a new seed in each epoch.
        """
        owners = (self.loader, *(each for each in self._samplers() if not hasattr(each, "initial_seed")))
        found = [getattr(each, "generator", None) for each in owners]
        return [*{id(each): each for each in found if isinstance(each, torch.Generator)}.values()]


class _Epoch:
    """An iterator over the batches of one epoch."""

    def __init__(self, loader: TrackedLoader) -> None:
        self._loader = loader
        self._batches = loader.begin()

    def __iter__(self) -> _Epoch:
        return self

    def __next__(self) -> Any:
        return self._loader.fetch(self._batches)


def track_loader(loader: Iterable[Any]) -> TrackedLoader:
    """Return a loader with the same batches that keeps its position, for `flight_recorder` and `resume`.

    `loader` is a `DataLoader`, with or without workers and shuffling, or another iterable that gives the same
    batches from the same states of the random generators.
    """
    return loader if isinstance(loader, TrackedLoader) else TrackedLoader(loader)
