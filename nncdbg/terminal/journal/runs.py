"""`nncdbg runs FILE`, also `nncdbg FILE`: list the runs of a journal."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Sequence

from nncdbg.opening.command_line import ArgumentParser, errors_in_json
from nncdbg.terminal.journal.files import journal_file, open_journal, run_address


def main(arguments: Sequence[str]) -> int:
    """Print the runs of a journal, or the log of one.  Raises LoadError for other files."""
    options = _options(arguments)
    if run_address(options.file).run is not None:
        from nncdbg.terminal.journal.log import main as show_log

        return show_log(arguments)
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


def _options(arguments: Sequence[str]) -> Namespace:
    parser = ArgumentParser(
        "nncdbg runs",
        "List the runs of a journal, forks below their parents, with the last value of each track.",
        usage="nncdbg runs FILE [--json [--details]]\n       nncdbg FILE",
        epilog=(
            "other commands on a journal:\n"
            "  nncdbg log FILE#2          curves, checkpoints, events and notes of run 2\n"
            "  nncdbg FILE#2@38           open run 2 at the start of step 38\n"
            "  nncdbg diff FILE#1 FILE#2  compare two runs\n"
            "  nncdbg sql FILE QUERY      query the tables\n"
            "  nncdbg export FILE ...     write TensorBoard event files, or MLflow runs"
        ),
    )
    parser.add_argument("file", metavar="FILE", help="a journal (`--journal FILE` writes one)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    parser.add_argument(
        "--details", action="store_true", help="with --json, print all values, checkpoints and events"
    )
    options = parser.parse_args(arguments)
    if options.details and not options.json:
        parser.error("--details needs --json")
    return options
