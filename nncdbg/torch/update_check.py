"""Find NaN and Inf that an optimizer makes from finite gradients."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable
from typing import Any

import torch

from nncdbg.torch.finiteness import not_finite, suspicious
from nncdbg.torch.ranks import rank_notes
from nncdbg.torch.sharded_tensors import local_part, meshes_of
from nncdbg.torch.source_lines import Lines
from nncdbg.torch.step_call import tensors_in
from nncdbg.torch.trained import Trained, parameters_of
from nncdbg.torch.trips import UPDATE, GuardTrip, optimizer_text
from nncdbg.torch.update_formulas import described_update
from nncdbg.torch.update_state import UpdateState, record_update

_FAR = 1000
"""The factor by which an update moves a parameter far."""


class UpdateCheck:
    """Checks parameters and moments after updates; with `keeps`, an update can run again and be undone."""

    def __init__(self, trained: Trained, *, keeps: bool) -> None:
        self.spoiled: set[str] = set()
        """Parameters and moments that are NaN or Inf since a finding."""
        self.repeating = False
        """Whether an update runs again now."""
        self._given: weakref.WeakKeyDictionary[torch.optim.Optimizer, frozenset[str]] = (
            weakref.WeakKeyDictionary()
        )
        """The parameters and moments that were NaN or Inf before the first update of an optimizer."""
        self._last: weakref.ref[torch.optim.Optimizer] | None = None
        """The last optimizer of them."""
        self._trained = trained
        self._keeps = keeps
        self._evaluations: list[Any] = []
        """The results of the closure in this update."""
        self._large: tuple[int, str, dict[int, float]] | None = None
        """The last update, if it may have been large: its step and optimizer, and the sizes before it.

        Sizes are by identity: a search for names takes longer than many updates.
        """
        self._before: weakref.WeakKeyDictionary[torch.optim.Optimizer, UpdateState] = (
            weakref.WeakKeyDictionary()
        )

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep the state before an update."""
        self._evaluations = []
        if self._last is None or self._last() is not optimizer:
            self._last = weakref.ref(optimizer)
            if optimizer not in self._given:
                self._given[optimizer] = frozenset(self._bad(optimizer, moments=True))
        if not self._keeps or meshes_of(parameters_of(optimizer)):
            return
        if optimizer in self._before:
            self._before[optimizer].update()
        else:
            self._before[optimizer] = UpdateState(optimizer)

    def expect(self, optimizer: torch.optim.Optimizer, step: int, *, large: bool) -> None:
        """Keep the sizes of the parameters before an update that is large, or whose rate is."""
        large = large or any(_is_large(group.get("lr")) for group in optimizer.param_groups)
        self._large = (step, optimizer_text(optimizer), _sizes(parameters_of(optimizer))) if large else None

    def moved(self, optimizer: torch.optim.Optimizer) -> str:
        """Return a sentence about the parameter that the last update moved farthest; "" if none went far."""
        if self._large is None:
            return ""
        step, by, before = self._large
        sizes = _sizes(parameters_of(optimizer))
        far = {key: sizes[key] for key in before if sizes.get(key, 0) > _FAR * max(before[key], 10)}
        if not far:
            return ""
        key = max(far, key=far.__getitem__)
        named = self._trained.named(parameters_of(optimizer))
        name = next(name for name, each in named if id(each) == key)
        where = f"the largest magnitude of {name} from {before[key]:.3g} to {far[key]:.3g}"
        return f"the update of step {step} moved {where}: {by}"

    def written(self, names: Collection[str]) -> frozenset[str]:
        """Return those of the parameters that were finite after the last update of an optimizer."""
        updated = {name for optimizer in self._given for name, _, _ in self._named(optimizer)}
        return frozenset(updated.intersection(names) - self.spoiled.union(*self._given.values()))

    def evaluated(self, result: Any) -> None:
        """Keep the result of a closure of the update."""
        self._evaluations.append(result)

    def newly_bad(self, optimizer: torch.optim.Optimizer, *, moments: bool) -> dict[str, str]:
        """Return the names and counts of the parameters and moments that became NaN or Inf.

        With `moments`, moments alone are enough; otherwise a parameter must have changed.
        """
        bad = self._bad(optimizer, moments=moments)
        if not bad:
            return {}
        known = self.spoiled | self._given[optimizer]
        new = {name: counts for name, counts in bad.items() if name not in known}
        self.spoiled |= new.keys()
        return new

    def trip(
        self, optimizer: torch.optim.Optimizer, step: int, new: dict[str, str], lines: Lines
    ) -> GuardTrip:
        """Return what is reported about an update that made `new`."""
        notes = rank_notes(parameters_of(optimizer))
        undoable = optimizer in self._before
        trip = GuardTrip(UPDATE, step, optimizer, new, lines, undoable=undoable, notes=notes)
        named = self._named(optimizer)
        parameter, bad = next((owner, each) for name, owner, each in named if name in new)
        name = next(name for name, _, each in named if each is parameter)
        trip.notes += described_update(optimizer, name, parameter, bad)
        return trip

    def undo(self, optimizer: torch.optim.Optimizer, new: dict[str, str]) -> None:
        """Leave out an update that made `new`, if its state was kept."""
        if optimizer in self._before:
            self._before[optimizer].restore()
            self.spoiled -= new.keys()

    def record_again(self, trip: GuardTrip, optimizer: torch.optim.Optimizer) -> None:
        """Record a second run of the update in a trip, if its state was kept; otherwise enter a note."""
        if meshes_of(parameters_of(optimizer)):
            trip.notes.append(
                "an update of shards does not run again, and is not undone: the other ranks may not have the "
                "NaN or Inf"
            )
            return
        if not self._keeps:
            trip.notes.append("to run such an update again, use --keep-update or keep_update=True")
            return
        if len(self._evaluations) > 1:
            trip.notes.append("the update evaluates its closure several times, so it does not run again")
            return
        self.repeating = True
        try:
            models = self._trained.models_of(parameters_of(optimizer))
            trip.recorded = record_update(self._before[optimizer], optimizer, models, self._evaluations)
        except Exception as error:  # noqa: BLE001  an optimizer of the user, which may not run twice
            trip.notes.append(f"the second run of the update failed: {type(error).__name__}: {error}")
        finally:
            self.repeating = False

    def _bad(self, optimizer: torch.optim.Optimizer, *, moments: bool) -> dict[str, str]:
        """Return names and counts of parameters and moments that are NaN or Inf, if a parameter is.

        With `moments`, moments alone are enough.
        """
        changed = tensors_in([*optimizer.state.values()]) if moments else ()
        parameters = parameters_of(optimizer)
        if not suspicious([*parameters, *changed]):
            return {}
        if not any(map(not_finite, [*parameters, *tensors_in([*optimizer.state.values()])])):
            return {}  # They are large: the search for names takes longer.
        return {name: counts for name, _, each in self._named(optimizer) if (counts := not_finite(each))}

    def _named(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, Any, Any]]:
        """Return name, parameter and tensor of each parameter and moment, parameters first."""
        named = [(name, each, each) for name, each in self._trained.named(parameters_of(optimizer))]
        names = {id(each): name for name, each, _ in named}
        for parameter, state in optimizer.state.items():
            name = names.get(id(parameter), "parameter")
            for key, value in state.items():
                named += [(f"{name}.{key}", parameter, each) for each in tensors_in(value)]
        return named


def _sizes(parameters: Iterable[Any]) -> dict[int, float]:
    """Return the largest magnitude of each dense parameter, or of its shard on this rank, by identity."""
    parts = ((id(each), local_part(each)) for each in parameters)
    return {key: float(part.detach().abs().max()) for key, part in parts if part.numel()}


def _is_large(rate: Any) -> bool:
    """Return whether a learning rate is large; False for a tensor, which is not read in each step."""
    return isinstance(rate, (int, float)) and not rate <= 1
