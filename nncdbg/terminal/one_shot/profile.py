"""`nncdbg profile`: times of statements, ops, layers and source lines."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentTypeError, Namespace
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nncdbg.opening.command_line import (
    JSON,
    ArgumentParser,
    add_machine,
    add_model,
    add_outputs,
    add_states_in_place,
    configuration_of,
    one_shot,
    option,
)

if TYPE_CHECKING:
    from nncdbg.opening.programs import OpenedProgram
    from nncdbg.presentation.screen import Screen
    from nncdbg.presentation.times.table import TimeTable
    from nncdbg.target.profiling import Profile

_GROUPINGS = ("statement", "op", "layer", "line")
_TOP = 30
_ALLOCATOR = "plain"


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return number


def _positive(text: str) -> int:
    number = _count(text)
    if not number:
        raise ArgumentTypeError("at least 1 run is necessary")
    return number


def _check(parser: ArgumentParser, options: Namespace) -> None:
    if options.csv and options.json:
        parser.error("--csv and --json cannot be combined: use one of them")


@one_shot(
    "nncdbg profile",
    "Run a graph several times, and print the times of its statements.  Exit code: that of a run.",
    add_model,
    partial(add_machine, default_allocator=_ALLOCATOR),
    add_states_in_place,
    add_outputs,
    option(
        "--runs",
        type=_positive,
        metavar="N",
        help="measured runs (default: 20; 1 for a training, by its steps)",
    ),
    option("--warmup", type=_count, metavar="N", help="runs before them that do not count (default: 3; 0)"),
    option("--by", choices=_GROUPINGS, default="statement", help="rows of the table (default: statement)"),
    option(
        "--top", type=_count, default=_TOP, metavar="N", help=f"rows of the table; 0: all (default: {_TOP})"
    ),
    option("--timeline", metavar="FILE", help="write the last run as a Chrome trace, for Perfetto"),
    JSON,
    option("--csv", action="store_true", help="print all rows as CSV, times in seconds"),
    check=_check,
    epilog="example: nncdbg profile model.onnx --by op --timeline trace.json",
)
def main(options: Namespace) -> int:
    """Print the times of a program.  Raises as `nncdbg run` does."""
    _profile(options)
    return 0


def _profile(options: Namespace) -> None:
    from nncdbg.opening.programs import open_program
    from nncdbg.presentation.run_progress import shown
    from nncdbg.presentation.screen import Screen
    from nncdbg.presentation.times.table import GROUPINGS
    from nncdbg.presentation.times.timeline import write_timeline
    from nncdbg.process.files import new_file
    from nncdbg.target.profiling import profile

    screen = Screen()
    configuration = configuration_of(options)
    opened = open_program(configuration)
    opened = _with_plain_memory(opened)
    counts = options.by in ("op", "line") and opened.restart is None and not opened.program.runs
    # A timeline that cannot be written is reported before the runs.
    with new_file(Path(options.timeline)) if options.timeline else nullcontext() as timeline:
        found = profile(
            opened,
            options.runs,
            options.warmup,
            shown(screen, "profiling"),
            timeline=timeline is not None,
            nonfinite=counts,
        )
        if timeline is not None:
            write_timeline(timeline, found.events, found.lanes, Path(options.model).name)
    if options.timeline:
        screen.note(f"wrote {options.timeline}: open it at ui.perfetto.dev or in chrome://tracing")
    table = GROUPINGS[options.by](found.times)
    if options.json:
        print(json.dumps(_document(options, opened, found, table)))
    elif options.csv:
        from nncdbg.presentation.journal.query_table import write_csv

        write_csv(sys.stdout, table.columns, table.rows)
    else:
        _print(options, screen, opened, found, table)


def _with_plain_memory(opened: OpenedProgram) -> OpenedProgram:
    """Return the program with the allocator `plain`, unless another one is given or is necessary."""
    from dataclasses import replace

    if opened.configuration.in_place_states:
        return opened
    return replace(opened, configuration=opened.configuration.completed({"allocator": _ALLOCATOR}))


def _document(options: Namespace, opened: OpenedProgram, found: Profile, table: TimeTable) -> dict[str, Any]:
    return {
        "status": "ok",
        "by": options.by,
        "backend": opened.configuration.backend,
        "allocator": found.allocator,
        **found.summary(),
        "steps": found.steps,
        "rows": table.records(),
    }


def _print(
    options: Namespace, screen: Screen, opened: OpenedProgram, found: Profile, table: TimeTable
) -> None:
    from nncdbg.presentation.times.text import print_times, share_text, time_text
    from nncdbg.text.counting import counted

    print_times(screen, table, options.top or None)
    known = found.summary()
    wall, statements = known["wall"], max(1, int(known["statements"]))

    def part(name: str) -> str:
        return f"{time_text(known[name])} ({share_text(known[name] / wall)})"

    runs = counted(int(known["runs"]), "run", ",")
    after = f" after {counted(found.warmup, 'run', ',')}" if found.warmup else ""
    screen.put()
    screen.put(f"{runs}{after}, backend {opened.configuration.backend}, allocator {found.allocator}")
    screen.put(
        f"a run took {time_text(wall)} on average (min {time_text(known['wall_min'])}, "
        f"median {time_text(known['wall_median'])}) for {counted(statements, 'statement', ',')}"
    )
    screen.put(f"  {part('kernels')} in kernels")
    screen.put(f"  {part('around')} around kernels: allocation and checks")
    each = time_text(known["between"] / statements)
    screen.put(f"  {part('between')} between statements: nncdbg itself, {each} per statement")
    steps = found.steps
    if steps is not None:
        screen.put(
            f"{counted(int(steps['steps']), 'step', ',')}: the kernels of a step took "
            f"{time_text(steps['median'])} in the median (min {time_text(steps['min'])})"
        )
    added, empty = time_text(known["measuring"]), time_text(known["clock"])
    screen.put(f"measuring adds at least {added} to a statement; an empty kernel measures {empty}")
