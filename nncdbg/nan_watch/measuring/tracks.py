"""Measurements of each statement in a run: plain records that processes can exchange."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nncdbg.nan_watch.measuring.gates import Threshold
from nncdbg.nan_watch.records import FindingSite, Operand
from nncdbg.stats.summary import Summary, combine

Key: TypeAlias = "tuple[str, str, str]"
"""(graph path, name of the value, op); edits elsewhere in the model do not change it."""


@dataclass(slots=True)
class Trip:
    """A gate that tripped at a statement: the first time, the number of times, and the worst quantity."""

    gate: Threshold
    fact: str
    actual: float
    iteration: tuple[int, ...] = ()
    inputs: tuple[Operand, ...] = ()
    stats: Summary | None = None
    count: int = 1
    case: str | None = None
    worst: float = field(init=False)

    def __post_init__(self) -> None:
        self.worst = self.actual

    def again(self, actual: float, count: int = 1) -> None:
        """Add further occurrences."""
        self.count += count
        worse = max if self.gate.above else min
        self.worst = worse(self.worst, actual)


@dataclass(slots=True)
class LiveUnits:
    """Which units of a layer were ever nonzero, and how many samples of each were seen.

    The mask is bool[units]; None once the number of units changed, as they then differ.
    """

    alive: npt.NDArray[np.bool_] | None
    samples: int = 0

    def add(self, alive: npt.NDArray[np.bool_] | None, samples: int) -> None:
        """Add samples of the same units."""
        same = self.alive is not None and alive is not None and alive.shape == self.alive.shape
        self.alive = self.alive | alive if same else None  # type: ignore[operator]
        self.samples += samples


@dataclass(slots=True)
class Track:
    """All results of one statement in a run, with its iterations and calls; sorted by `order`."""

    graph: str
    site: FindingSite
    dtype: str
    order: int
    summary: Summary | None = None
    visits: int = 0
    units: LiveUnits | None = None
    trips: dict[Threshold, Trip] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.graph, self.site.value, self.site.op

    def see(self, summary: Summary) -> None:
        """Add another result."""
        self.visits += 1
        self.summary = summary if self.summary is None else combine((self.summary, summary))

    def see_units(self, alive: npt.NDArray[np.bool_] | None, samples: int) -> None:
        """Add the units of a result that are nonzero."""
        if self.units is None:
            self.units = LiveUnits(alive, samples)
        else:
            self.units.add(alive, samples)

    def trip(self, gate: Threshold, actual: float, **first: Any) -> None:
        """Record that a gate tripped; `first` holds the fields of Trip for the first occurrence."""
        known = self.trips.get(gate)
        if known is None:
            self.trips[gate] = Trip(gate, actual=actual, **first)
        else:
            known.again(actual)


class Tracks:
    """Tracks of several runs, merged; a trip describes the first run in which the gate tripped."""

    def __init__(self) -> None:
        self.by_key: dict[Key, Track] = {}

    def add(self, tracks: Iterable[Track], case: str | None = None) -> None:
        """Add the measurements of another run."""
        for track in tracks:
            for trip in track.trips.values():
                trip.case = case
            known = self.by_key.get(track.key)
            if known is None:
                self.by_key[track.key] = track
            else:
                _merge(known, track)

    def ordered(self) -> list[Track]:
        """Return all tracks in execution order."""
        return sorted(self.by_key.values(), key=lambda track: track.order)


def _merge(known: Track, other: Track) -> None:
    known.visits += other.visits
    known.order = min(known.order, other.order)
    if other.summary is not None:
        known.summary = other.summary if known.summary is None else combine((known.summary, other.summary))
    if other.units is not None:
        known.see_units(other.units.alive, other.units.samples)
    for gate, trip in other.trips.items():
        if gate in known.trips:
            known.trips[gate].again(trip.worst, trip.count)
        else:
            known.trips[gate] = trip
