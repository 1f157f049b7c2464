"""`nncdbg bisect`: find the statements that must stay f32 when all others run in f16.

With `--sync`, find the fewest points at which the host must wait for all streams to hide the races.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nncdbg.comparison.check_results import not_checked
from nncdbg.errors import UsageError
from nncdbg.nan_watch.commands import terminable, write_program
from nncdbg.nan_watch.commands.races import opened_schedule, search_of
from nncdbg.opening.command_line import (
    JSON,
    ArgumentParser,
    add_machine,
    add_model,
    add_schedule,
    check_least,
    configuration_of,
    one_shot,
    option,
)
from nncdbg.presentation.exit_codes import INTERRUPTED
from nncdbg.presentation.run_progress import print_notes
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.engine.divergence.casting import Place
    from nncdbg.nan_watch.bisection import Bisection, Kept
    from nncdbg.nan_watch.schedules.order_search import SyncPlace
    from nncdbg.presentation.schedules import ScheduleWording
    from nncdbg.presentation.screen import Screen


def _check(parser: ArgumentParser, options: Namespace) -> None:
    of_precision = {"--rtol": options.rtol, "--atol": options.atol, "--output": options.output}
    names = ("schedules", "schedule", "streams", "device", "bind", "plan")
    of_schedules = {f"--{name}": getattr(options, name) for name in names}
    for name, value in (of_precision if options.sync else of_schedules).items():
        if value not in (None, []):
            parser.error(f"{name} cannot be combined with --sync" if options.sync else f"{name} needs --sync")
    check_least(parser, options, "schedules")


@one_shot(
    "nncdbg bisect",
    "Find the statements that must stay f32 when all others run in f16. "
    "With --sync: the fewest waits of the host that hide the races of a schedule.",
    add_model,
    add_machine,
    option(
        "--sync", action="store_true", help="find the fewest points where a wait of the host hides the races"
    ),
    option("--schedules", type=int, metavar="N", help="with --sync: play N legal orders (default: 100)"),
    add_schedule,
    option("--dtype", choices=["f16", "bf16"], default="f16", help="the narrow type (f16)"),
    option("--rtol", type=float, help="relative tolerance for outputs (default: f16 2e-2, bf16 1e-1)"),
    option("--atol", type=float, help="absolute tolerance for outputs (default: f16 5e-3, bf16 3e-2)"),
    option("-o", "--output", metavar="FILE.nnc", help="write the mixed-precision program"),
    JSON,
    check=_check,
    epilog="exit code: 0 found, 1 with --sync if no wait hides a fault, 130 interrupted (the best result "
    "so far is printed)",
)
def main(options: Namespace) -> int:
    """Return 0 with a minimal set; 130 if interrupted, with the best set so far."""
    from nncdbg.presentation.screen import Screen

    return (_bisect_sync if options.sync else _bisect)(options, Screen())


def _bisect(options: Namespace, screen: Screen) -> int:
    from nncdbg.comparison.tolerance import Tolerance
    from nncdbg.nan_watch.bisection import Bisection
    from nncdbg.nan_watch.configuration import watch_configuration
    from nncdbg.opening.programs import open_program

    started = time.perf_counter()
    if options.output and not Path(options.output).absolute().parent.is_dir():
        raise UsageError(f"cannot write {options.output}: the folder does not exist")
    opened = open_program(configuration_of(options))
    configuration = watch_configuration(opened)
    configuration = replace(configuration, allocator=configuration.allocator or "plain")
    # Random inputs are drawn once, here.
    debugger = opened.debugger(allocator=configuration.allocator, statistics=False)
    print_notes(debugger.notes, screen)
    tolerance = Tolerance(options.rtol, options.atol)
    search = Bisection(opened.program, debugger.inputs, configuration, options.dtype, tolerance)
    with shown(screen, search), terminable():
        places, kept, interrupted = _searched(search)
    for words in search.notes:
        screen.note(words)
    if options.output:
        write_program(search.mixed(places), options.output)
    seconds = time.perf_counter() - started
    if options.json:
        print(json.dumps(_document(search, places, kept, seconds, interrupted)))
    else:
        _print(screen, options, search, places, kept, interrupted)
    return INTERRUPTED if interrupted else 0


def _searched(search: Bisection) -> tuple[list[Place], list[Kept], bool]:
    """Return the statements that stay wide, the reasons, and whether the search was interrupted."""
    places: list[Place] = []
    try:
        places = search.run()
        return places, search.reasons(places), False
    except KeyboardInterrupt:
        if search.best is None:
            raise
        return search.ordered(search.best), [], True


@contextmanager
def shown(screen: Screen, search: Bisection) -> Iterator[None]:
    """Show the progress on a terminal."""
    if not screen.err.is_terminal or screen.err.is_dumb_terminal:
        yield
        return
    with screen.err.status("") as status:
        phase = ""

        def update(now: str, runs: int, kept: int) -> None:
            nonlocal phase
            phase = now or phase
            status.update(f"{phase}: {runs} runs, {kept} statements stay; Ctrl-C prints the best so far")

        search.on_progress = update
        yield


def _document(
    search: Bisection, places: Sequence[Place], kept: Sequence[Kept], seconds: float, interrupted: bool
) -> dict[str, Any]:
    from nncdbg.nan_watch.bisection import search_checks

    return {
        "status": "interrupted" if interrupted else "ok",
        "dtype": search.dtype,
        "rtol": search.tolerance.rtol,
        "atol": search.tolerance.atol,
        "keep": [each.as_dict() for each in kept or search.unexplained(places)],
        "statements": len(search.alone),
        "runs": search.runs,
        "seconds": seconds,
        "checks": [each.as_dict() for each in search_checks(interrupted=interrupted)],
    }


def _print(
    screen: Screen,
    options: Namespace,
    search: Bisection,
    places: Sequence[Place],
    kept: Sequence[Kept],
    interrupted: bool,
) -> None:
    from nncdbg.nan_watch.bisection import kept_lines, search_checks

    for left in not_checked(search_checks(interrupted=interrupted)):
        screen.note(f"not checked: {left}; this is the smallest set so far")
    shown = tuple(kept or search.unexplained(places))
    for line in kept_lines(shown, len(search.alone), search.dtype):
        screen.put(line)
    if options.output:
        screen.note(f"the mixed-precision program is in {options.output}")


ORDERS = 100
"""The number of orders that are played unless the user gives one."""


def _bisect_sync(options: Namespace, screen: Screen) -> int:
    """Return 0 with the points, or if there is no race to hide; 1 if no wait hides a fault."""
    from nncdbg.nan_watch.schedules.order_search import played_orders, smallest_syncs, sync_words
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
            "sync": [_sync_lines(place, wording) for place in places],
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
        for place in places:
            screen.put(f"  {sync_words(place, wording)}")
            for number in filter(None, _sync_lines(place, wording).values()):
                screen.put(f"  {number:>5} | {wording.listing.statement(number)}")
    return int(failed)


def _sync_lines(place: SyncPlace, wording: ScheduleWording) -> dict[str, int | None]:
    """Return the lines between which the host waits; only the second one inside of a called graph."""
    if place.after == place.before:
        return {"after": None, "before": wording.line(place.inside)}
    return {"after": wording.line(place.after), "before": wording.line(place.before)}
