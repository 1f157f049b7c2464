"""`nncdbg log FILE[#RUN]`: the curves, checkpoints, events and notes of a run."""

from __future__ import annotations

import difflib
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nncdbg.engine.errors import UsageError
from nncdbg.opening.command_line import ArgumentParser, errors_in_json
from nncdbg.terminal.journal.files import chosen_run, open_journal, run_address

if TYPE_CHECKING:
    from nncdbg.journal import Journal, Run
    from nncdbg.presentation.screen import Screen


def main(arguments: Sequence[str]) -> int:
    """Print the log of a run, once or until the run ends.  Raises UsageError for an unknown run or track."""
    from nncdbg.presentation.screen import Screen

    options = _options(arguments)
    with errors_in_json(options):
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
    if options.json:
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


def check_track(journal: Journal, run: Run, name: str) -> None:
    """Raise UsageError if the run has no track of this name."""
    names = [*dict.fromkeys(name for name, _ in journal.tracks(run))]
    if name in names:
        return
    near = difflib.get_close_matches(name, names, 1)
    raise UsageError(
        f'run {run.number} has no track "{name}"',
        hint=f"did you mean {near[0]}?" if near else f"its tracks: {', '.join(names) or 'none'}",
    )


def _options(arguments: Sequence[str]) -> Namespace:
    parser = ArgumentParser(
        "nncdbg log",
        "Show a run of a journal: its tracks as curves, checkpoints, events, edits and notes.",
        usage="nncdbg log FILE[#RUN] [options]",
        epilog="without #RUN, the last run; values before the start of a fork are its parent's",
    )
    add = parser.add_argument
    add("run", metavar="FILE[#RUN]", help="a journal, and the number of a run, as in run.db#2")
    add("--track", metavar="NAME", help="plot one track over several lines")
    add("--follow", action="store_true", help="update the log until the run ends; Ctrl-C stops")
    add("--json", action="store_true", help="print one JSON document on standard output")
    options = parser.parse_args(arguments)
    if options.follow and options.json:
        parser.error("--follow and --json cannot be combined: use one of them")
    return options
