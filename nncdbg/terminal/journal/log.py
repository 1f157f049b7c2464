"""`nncdbg log FILE[#RUN]` shows a run of a journal; `nncdbg runs FILE` lists the runs."""

from __future__ import annotations

import difflib
import shlex
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nncdbg.errors import UsageError
from nncdbg.opening.command_line import JSON, ArgumentParser, add_json, errors_in_json, one_shot, option
from nncdbg.presentation.journal.amounts import file_size
from nncdbg.terminal.journal.files import chosen_run, journal_file, open_journal, run_address

if TYPE_CHECKING:
    from nncdbg.journal import Journal, Run
    from nncdbg.presentation.screen import Screen

_LISTED = 12
"""Most names in the hint of an error."""


def _check(parser: ArgumentParser, options: Namespace) -> None:
    if options.follow and options.json:
        parser.error("--follow and --json cannot be combined: use one of them")
    tables = [flag for flag in ("statistics", "values") if getattr(options, flag) is not None]
    if tables and (len(tables) == 2 or options.follow or options.track is not None):
        others = [flag for flag in ("--statistics", "--values", "--follow") if flag != f"--{tables[0]}"]
        parser.error(
            f"--{tables[0]} cannot be combined with {', '.join(others)} and --track: use one of them"
        )


@one_shot(
    "nncdbg log",
    "Show a run of a journal: its tracks as curves, checkpoints, events, edits and notes.",
    option("run", metavar="FILE[#RUN]", help="a journal, and the number of a run, as in run.db#2"),
    option("--track", metavar="NAME", help="plot one track over several lines"),
    option(
        "--statistics",
        metavar="VALUE",
        nargs="?",
        const="",
        help="print the statistics of a value by step, such as %%w; without VALUE, the last ones of each",
    ),
    option(
        "--values",
        metavar="VALUE",
        nargs="?",
        const="",
        help="list the steps at which a value is kept, with sizes and errors; without VALUE, all kept values",
    ),
    option("--follow", action="store_true", help="update the log until the run ends; Ctrl-C stops"),
    JSON,
    check=_check,
    usage="nncdbg log FILE[#RUN] [options]",
    epilog="without #RUN, the last run; values before the start of a fork are its parent's",
)
def main(options: Namespace) -> int:
    """Print the log of a run, once or until the run ends.  Raises UsageError for an unknown run or track."""
    from nncdbg.presentation.screen import Screen

    address = run_address(options.run)
    with open_journal(address) as journal:
        if options.follow:
            from nncdbg.terminal.journal.following import follow

            return follow(journal, address.run, options.track, Screen())
        return _log(journal, chosen_run(journal, address), options, Screen())


def _log(journal: Journal, run: Run, options: Namespace, screen: Screen) -> int:
    from nncdbg.presentation.journal.documents import run_document
    from nncdbg.presentation.journal.run_log import opening_hint, run_log, track_plots

    if options.track is not None:
        check_track(journal, run, options.track)
    if options.statistics is not None:
        _statistics(journal, run, options, screen)
    elif options.values is not None:
        _values(journal, run, options, screen)
    elif options.json:
        print(run_document(journal, run, options.track))
    elif options.track is not None:
        for line in track_plots(journal, run, options.track, screen.line_layout):
            screen.put_line(line)
    else:
        for line in run_log(journal, run, screen.line_layout):
            screen.put_line(line)
        hint = opening_hint(journal, run, str(journal.path))
        if hint:
            screen.note(hint)
    return 0


def _statistics(journal: Journal, run: Run, options: Namespace, screen: Screen) -> None:
    """Print the statistics of a value by step, or with an empty name the last ones of each value.

    Raises UsageError for a value without statistics.
    """
    from nncdbg.presentation.journal.query_table import print_table, rows_document

    known = journal.measured(run)
    if not known:
        raise UsageError(
            f"run {run.number} has no statistics of values",
            hint=_instead(journal, run) or "run the training with --journal-statistics",
        )
    name = options.statistics
    if name:
        _check_known(name, known, f'run {run.number} has no statistics of "{name}"', "its values")
        table = journal.statistics(run, name)
        columns, rows = list(table.dtype.names or ()), table.tolist()
    else:
        last = [journal.statistics(run, each)[-1] for each in known]
        columns = ["value", *(last[0].dtype.names or ())]
        rows = [(each, *row.tolist()) for each, row in zip(known, last, strict=True)]
    if options.json:
        print(rows_document(columns, rows))
    else:
        print_table(screen, columns, [[_short(each) for each in row] for row in rows])


def _values(journal: Journal, run: Run, options: Namespace, screen: Screen) -> None:
    """Print what is kept of a value by step, or with an empty name what is kept of each value.

    Raises UsageError for a value that is not kept.
    """
    from nncdbg.presentation.journal.kept_values import all_values, steps_of_value
    from nncdbg.presentation.journal.query_table import print_table, rows_document

    records = journal.kept_values(run)
    known = [*dict.fromkeys(each.name for each in records)]
    if not known:
        raise UsageError(
            f"run {run.number} keeps no values",
            hint=_instead(journal, run) or "run the training with --journal-values PATTERN",
        )
    # As in the patterns of --journal-values, the % may be omitted.
    name = f"%{options.values}" if f"%{options.values}" in known else options.values
    if name:
        _check_known(name, known, f'run {run.number} keeps no value "{name}"', "its values")
    columns, rows = steps_of_value(records, name) if name else all_values(records)
    if options.json:
        print(rows_document(columns, rows))
    else:
        print_table(screen, columns, [[_short(each) for each in row] for row in rows])
        screen.note(f"size of the run's values: {file_size(sum(each.bytes for each in records))}")


def _instead(journal: Journal, run: Run) -> str:
    """Return what to use for the values of a PyTorch training; "" for another run."""
    if run.kind != "torch":
        return ""
    at = shlex.quote(f"{journal.path}#{run.number}@STEP")
    return (
        "a PyTorch training writes scalars with nncdbg.torch.track; for all values of a step, "
        f"`nncdbg record {shlex.quote(run.name)} --at {at}`"
    )


def _short(value: Any) -> Any:
    """Return a float with six significant digits; other values are unchanged."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def check_track(journal: Journal, run: Run, name: str) -> None:
    """Raise UsageError if the run has no track of this name."""
    names = [*dict.fromkeys(name for name, _ in journal.tracks(run))]
    _check_known(name, names, f'run {run.number} has no track "{name}"', "its tracks")


def _check_known(name: str, names: Sequence[str], message: str, title: str) -> None:
    """Raise UsageError with the most similar name, or some names, if `name` is not among them."""
    if name in names:
        return
    near = difflib.get_close_matches(name, names, 1)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    listed = f"{title}: {', '.join(names[:_LISTED]) or 'none'}{more}"
    raise UsageError(message, hint=f"did you mean {near[0]}?" if near else listed)


def _check_runs(parser: ArgumentParser, options: Namespace) -> None:
    if options.details and not options.json:
        parser.error("--details needs --json")


@one_shot(
    "nncdbg runs",
    "List the runs of a journal, forks below their parents, with the last value of each track.",
    option("file", metavar="FILE", help="a journal (`--journal FILE` writes one)"),
    add_json,
    option("--details", action="store_true", help="with --json, print all values, checkpoints and events"),
    check=_check_runs,
    usage="nncdbg runs FILE [--json [--details]]\n       nncdbg FILE",
    epilog="other commands on a journal:\n"
    "  nncdbg log FILE#2          curves, checkpoints, events and notes of run 2\n"
    "  nncdbg FILE#2@38           open run 2 at the start of step 38\n"
    "  nncdbg diff FILE#1 FILE#2  compare two runs\n"
    "  nncdbg sql FILE QUERY      query the tables\n"
    "  nncdbg export FILE ...     write TensorBoard event files, or MLflow runs",
)
def runs_main(options: Namespace) -> int:
    """Print the runs of a journal, or the log of one.  Raises LoadError for other files."""
    if run_address(options.file).run is not None:
        return main(options.typed)
    with errors_in_json(options):
        return _list(options)


def _list(options: Namespace) -> int:
    from nncdbg.presentation.journal.documents import runs_document
    from nncdbg.presentation.journal.run_list import run_list
    from nncdbg.presentation.journal.run_log import opening_hint
    from nncdbg.presentation.screen import Screen

    screen, address = Screen(), journal_file(options.file)
    with open_journal(address) as journal:
        if options.json:
            print(runs_document(journal, details=options.details))
            return 0
        for line in run_list(journal):
            screen.put_line(line)
        runs = journal.runs()
        if not runs:
            screen.note("the journal has no runs yet; `nncdbg run MODEL --journal FILE` writes one")
            return 0
        screen.note(f"to see a run: nncdbg log {shlex.quote(address.file)}#{runs[-1].number}")
        hint = opening_hint(journal, runs[-1], address.file)
        if hint:
            screen.note(hint)
    return 0
