"""`nncdbg bisect --sync`: the fewest points at which the host must wait for all streams to hide the races."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from nncdbg.engine.text.counting import counted
from nncdbg.nan_watch.commands.races import opened_schedule, search_of
from nncdbg.nan_watch.commands.reduce import terminable

if TYPE_CHECKING:
    from nncdbg.nan_watch.schedules.synchronizing import SyncPlace
    from nncdbg.presentation.schedules import ScheduleWording
    from nncdbg.presentation.screen import Screen

ORDERS = 100
"""The number of orders that are played unless the user gives one."""


def bisect_sync(options: Namespace, screen: Screen) -> int:
    """Return 0 with the points, or if there is no race to hide; 1 if no wait hides a fault."""
    from nncdbg.nan_watch.schedules.order_findings import played_orders
    from nncdbg.nan_watch.schedules.synchronizing import smallest_syncs
    from nncdbg.presentation.schedules import ScheduleWording

    started = time.perf_counter()
    search = search_of(*opened_schedule(options))
    with terminable():
        found = search.run(options.schedules or ORDERS)
        places = smallest_syncs(search) if found.differing else []
    wording = ScheduleWording(search.program)
    failed = bool(found.differing) and not places
    if options.json:
        document: dict[str, Any] = {
            "status": "failed" if failed else "ok",
            "sync": [_document(each, wording) for each in places],
            "outcomes": found.outcomes,
            "orders": found.orders,
            "complete": found.complete,
            "differing": len(found.differing),
            "seconds": time.perf_counter() - started,
        }
        print(json.dumps(document))
        return int(failed)
    screen.note(played_orders(found))
    if failed:
        screen.put("no wait of the host hides the faults; `nncdbg races` lists them")
    elif not places:
        screen.put("there is no race to hide: no order has other values")
    else:
        hides = "hides" if len(places) == 1 else "hide"
        screen.put(f"{counted(len(places), 'wait')} of the host for all streams {hides} the races:")
        for each in places:
            for line in _lines(each, wording):
                screen.put(line)
    return int(failed)


def _document(place: SyncPlace, wording: ScheduleWording) -> dict[str, int | None]:
    """Return the lines between which the host waits; only the second one inside of a called graph."""
    if place.after == place.before:
        return {"after": None, "before": wording.line(place.inside)}
    return {"after": wording.line(place.after), "before": wording.line(place.before)}


def _lines(place: SyncPlace, wording: ScheduleWording) -> list[str]:
    from nncdbg.nan_watch.schedules.order_findings import sync_words

    sites = [place.inside] if place.after == place.before else [place.after, place.before]
    numbers = [wording.line(each) for each in sites]
    return [
        f"  {sync_words(place, wording)}",
        *(f"  {number:>5} | {wording.listing.lines[number - 1]}" for number in numbers),
    ]
