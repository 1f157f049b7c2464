"""Judge measurements against gates: tracks of one run, or of several, become findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nncdbg.engine.execution.check_results import NOT_APPLICABLE, NOT_CHECKED, CheckResult
from nncdbg.engine.text.lexemes import name_text
from nncdbg.nan_watch.measuring.gates import MEASURES, Gates, Threshold
from nncdbg.nan_watch.measuring.tracks import Track, Trip
from nncdbg.nan_watch.records import WatchFinding

FEWEST_SAMPLES = 4
"""Least samples per unit for a verdict on dead units."""


def judge(tracks: Iterable[Track], gates: Gates) -> Iterator[WatchFinding]:
    """Return a finding for each gate that tripped at a statement, in execution order."""
    for track in tracks:
        for trip in track.trips.values():
            yield _finding(track, trip)
        for gate in gates.thresholds:
            if gate.kind == "dead" and track.units is not None:
                dead = _dead(track, gate)
                if dead is not None:
                    yield _finding(track, dead)


def not_judged(tracks: Iterable[Track], gates: Gates) -> Iterator[CheckResult]:
    """Return the gates whose measurements could not be judged, and why."""
    dead = next((str(gate) for gate in gates.thresholds if gate.kind == "dead"), None)
    if dead is None:
        return
    units = [(track.site.value, track.units) for track in tracks if track.units is not None]
    few = [name for name, each in units if each.alive is not None and each.samples < FEWEST_SAMPLES]
    changing = [name for name, each in units if each.alive is None]
    if few:
        yield CheckResult(dead, NOT_CHECKED, f"{_listed(few)} had fewer than {FEWEST_SAMPLES} samples")
    if changing:
        yield CheckResult(dead, NOT_CHECKED, f"{_listed(changing)} changed the number of units")
    if not units:
        yield CheckResult(dead, NOT_APPLICABLE, "no statement is an activation that can be 0")


def _listed(names: list[str]) -> str:
    shown = ", ".join(f"%{name_text(name)}" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _dead(track: Track, gate: Threshold) -> Trip | None:
    units = track.units
    assert units is not None
    if units.alive is None or units.samples < FEWEST_SAMPLES:
        return None
    if not gate.concerns(track.site.value, track.site.graph, track.site.node):
        return None
    dead = int((~units.alive).sum())
    actual = dead / units.alive.size
    if not gate.exceeded(actual):
        return None
    share = f"{dead} of {units.alive.size} units of %{name_text(track.site.value)} ({gate.shown(actual)})"
    fact = f"{share} are 0 in all {units.samples} samples"
    return Trip(gate, fact, actual, stats=track.summary, count=track.visits)


def _finding(track: Track, trip: Trip) -> WatchFinding:
    gate = trip.gate
    worst = f"{gate.shown(trip.worst)} at worst; " if trip.worst != trip.actual else ""
    return WatchFinding(
        gate.kind,
        "birth",
        track.site,
        iteration=trip.iteration,
        inputs=trip.inputs,
        stats=trip.stats,
        evidence=f"{trip.fact}; {worst}{gate.clause()}",
        hint=MEASURES[gate.kind].hint,
        actual=trip.worst,
        threshold=gate.limit,
        count=trip.count,
        case=trip.case,
        trips=True,
    )
