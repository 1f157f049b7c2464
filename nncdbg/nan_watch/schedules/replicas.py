"""Replicas: the calls of one graph, compared statement by statement in the same run."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from nncdbg.engine.schedules.launches import Site
from nncdbg.engine.schedules.player import Orders
from nncdbg.nan_watch.schedules.observed import ObservedRun, observed
from nncdbg.nan_watch.schedules.search import ScheduleSearch


@dataclass(frozen=True, slots=True)
class ReplicaDifference:
    """A statement of a graph that computes another value in one call than in most others.

    `call` is that call.  `iteration` counts the executions of the statement, from 0.  `ratio` is the
    Euclidean norm of the value, divided by the median of the norms in the other calls.
    """

    site: Site
    call: Site
    iteration: int
    ratio: float


def replica_differences(search: ScheduleSearch, orders: Orders | None = None) -> list[ReplicaDifference]:
    """Compare the calls of each graph that is called several times, and return what differs, in order.

    The program runs in these orders; None: in the order of the text, without races.  The first entry of an
    iteration is where its difference originates.
    """
    player = search.player
    program = player.reference() if orders is None else player.program(orders)
    run = observed(program, search.inputs, norms=True, **search.options)
    groups: dict[tuple[Site, int], dict[Site, str]] = {}
    for name, digests in run.values.items():
        site, call = player.sites.get(name), player.calls.get(name)
        if site is not None and call is not None and site != call:
            for iteration in range(len(digests)):
                groups.setdefault((site, iteration), {}).setdefault(call, name)
    ordered = sorted(groups.items(), key=lambda group: group[0][1])
    return [each for (site, number), calls in ordered for each in _differing(run, site, number, calls)]


def _differing(
    run: ObservedRun, site: Site, iteration: int, calls: dict[Site, str]
) -> Iterator[ReplicaDifference]:
    """Yield the calls whose value is not that of the most calls; none if all values differ."""
    digests = {call: run.values[name][iteration] for call, name in calls.items()}
    (usual, count), *_ = Counter(digests.values()).most_common(1)
    if len(calls) < 2 or (count == 1 and len(calls) > 2):
        return
    norms = {call: run.norms[name][iteration] for call, name in calls.items()}
    for call, digest in digests.items():
        if digest != usual:
            others = statistics.median(norm for other, norm in norms.items() if other != call)
            yield ReplicaDifference(site, call, iteration, norms[call] / others if others else math.inf)
