"""`nncdbg races`: check a schedule of streams and events without a run, or play its orders."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from nncdbg.errors import UsageError
from nncdbg.nan_watch.commands import write_program
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
    scheduled_program,
)

if TYPE_CHECKING:
    from nncdbg.comparison.launches import PlacedPlan
    from nncdbg.ir.records import Program
    from nncdbg.nan_watch.records import Report
    from nncdbg.nan_watch.schedules.order_search import ScheduleSearch
    from nncdbg.opening.programs import OpenedProgram
    from nncdbg.presentation.screen import Screen


def _check(parser: ArgumentParser, options: Namespace) -> None:
    check_least(parser, options, "max_findings", "list at least one")
    check_least(parser, options, "depth")
    check_least(parser, options, "schedules")
    if options.output and options.schedules is None and options.first_order is None:
        parser.error("--output writes an order: it needs --schedules or --order")


@one_shot(
    "nncdbg races",
    "Check a schedule: find uses of the same memory without an order, and wrong events.",
    add_model,
    add_schedule,
    add_machine,
    option("--schedules", type=int, metavar="N", help="play N legal orders, and compare their values"),
    option(
        "--order",
        type=int,
        metavar="N",
        dest="first_order",
        help="play only the order of seed N, or begin with it",
    ),
    option(
        "--replicas", action="store_true", help="compare the calls of the same graph, statement by statement"
    ),
    option(
        "-o", "--output", metavar="FILE.nnc", help="write the first order with other values, as a program"
    ),
    option("--depth", type=int, metavar="N", help="report streams with more than N launches in flight"),
    option("--max-findings", type=int, default=20, metavar="N", help="list at most N problems (default: 20)"),
    JSON,
    option("--sarif", metavar="FILE", help="write a sarif report"),
    option("--timeline", metavar="FILE", help="write the streams over time as a Chrome trace, for Perfetto"),
    check=_check,
    epilog="exit code: 0 no problem, 1 a problem, 2 wrong usage, 3 a file could not be read",
)
def main(options: Namespace) -> int:
    """Return 0 for a schedule without problems, 1 with problems."""
    from nncdbg.presentation.screen import Screen

    return _races(options, Screen())


def _races(options: Namespace, screen: Screen) -> int:
    from nncdbg.nan_watch.measuring.gates import ReportContext
    from nncdbg.nan_watch.reports import FORMS, write
    from nncdbg.nan_watch.reports.text import lines
    from nncdbg.nan_watch.schedules.findings import schedule_report, violation_notes, write_timeline

    opened, program, plan = opened_schedule(options)
    unchecked = () if opened.log is None else opened.log.unchecked
    report = schedule_report(program, plan, depth=options.depth, model=options.model, unchecked=unchecked)
    if opened.log is not None:
        known = {each.reason for each in unchecked}
        notes = [each for each in program.notes if each not in known]
        report.notes += [*notes, *violation_notes(program, plan, opened.log.times)]
    if options.schedules is not None or options.first_order is not None or options.replicas:
        _play(options, opened, program, plan, report)
    report.limit(options.max_findings)
    watched = ReportContext.of(program)
    if options.json:
        print(FORMS["json"](report, watched).rstrip())
        sys.stdout.flush()
    else:
        for line in lines(report, watched):
            screen.put_wrapped(line)
    if options.timeline:
        write_timeline(options.timeline, program, None if opened.log is None else opened.log.times)
    problems = write(report, {"sarif": options.sarif} if options.sarif else {}, watched)
    for problem in problems:
        screen.complain(problem)
    return max([report.exit_code, *(each.exit_code for each in problems)])


def opened_schedule(options: Namespace) -> tuple[OpenedProgram, Program, PlacedPlan | None]:
    """Open the model of the options; return it, its program with the schedule, and its memory plan.

    Raises UsageError for a program without a schedule.
    """
    from nncdbg.ir.streams import scheduled
    from nncdbg.opening.programs import open_program

    opened = open_program(configuration_of(options))
    program, plan = scheduled_program(opened.program, options)
    if not scheduled(program):
        if opened.log is not None:
            raise UsageError(
                f"{options.model} has no schedule: {opened.program.notes[0]}",
                hint="use the log of a program that runs on several streams",
            )
        raise UsageError(
            f"{options.model} has no schedule",
            hint="--streams 4 makes one, --schedule FILE reads one, and margins such as | s2 wait e5 are one",
        )
    return opened, program, plan if opened.log is None else plan or opened.log.plan


def search_of(opened: OpenedProgram, program: Program, plan: PlacedPlan | None) -> ScheduleSearch:
    """Return the search of the orders of a program, with the inputs that its options name."""
    from nncdbg.nan_watch.schedules.order_search import ScheduleSearch

    # Random inputs are drawn once, here.
    debugger = opened.debugger(statistics=False)
    options = {
        name: getattr(opened.configuration, name) for name in ("seed", "backend", "fallback", "max_ops")
    }
    return ScheduleSearch(program, plan, debugger.inputs, **options)


def _play(
    options: Namespace, opened: OpenedProgram, program: Program, plan: PlacedPlan | None, report: Report
) -> None:
    """Play orders of the schedule, and add what they show to the report."""
    from nncdbg.nan_watch.schedules.order_search import add_orders, add_replicas, replica_differences

    search = search_of(opened, program, plan)
    if options.replicas:
        orders = None if options.first_order is None else search.player.drawn(options.first_order)
        add_replicas(report, search, replica_differences(search, orders))
    if options.schedules is None and options.first_order is None:
        return
    found = search.run(options.schedules or 1, options.first_order or 0, every=options.schedules is not None)
    add_orders(report, search, found)
    if options.output:
        drawn = search.player.drawn(options.first_order or 0)
        first = found.differing[0].orders if found.differing else drawn
        write_program(search.player.program(first), options.output)
