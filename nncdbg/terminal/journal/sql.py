"""`nncdbg sql FILE QUERY` queries the tables of a journal; `nncdbg export` writes its runs."""

from __future__ import annotations

import difflib
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.errors import Excerpt, UsageError
from nncdbg.opening.command_line import JSON, ArgumentParser, one_shot, option
from nncdbg.opening.journal_address import is_journal
from nncdbg.terminal.journal.files import chosen_run, journal_file, open_journal, run_address
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.journal import Journal

_NAMES = """SELECT name, type FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite%'
UNION SELECT name, type FROM sqlite_temp_schema WHERE type IN ('table', 'view') ORDER BY type DESC, name"""

_NEAR = re.compile(r'near "(.*)": syntax error', re.DOTALL)
_NAMED = re.compile(
    r"(?:no such (?P<kind>table|column|function)|ambiguous column name|unrecognized token): "
    r'"?(?P<name>.*?)"?$',
    re.DOTALL,
)


def _check(parser: ArgumentParser, options: Namespace) -> None:
    if options.csv and options.json:
        parser.error("--csv and --json cannot be combined: use one of them")


@one_shot(
    "nncdbg sql",
    "Query the tables of a journal in SQL.  The query cannot change the file.",
    option("file", metavar="FILE", help="a journal"),
    option(
        "query", metavar="QUERY", nargs="?", help="one SQL statement; without it, list the tables and views"
    ),
    option("--csv", action="store_true", help="print the rows as CSV, after a line with the column names"),
    JSON,
    check=_check,
    usage='nncdbg sql FILE ["QUERY"] [--csv | --json]',
    epilog="example: nncdbg sql run.db \"select step, value from track_values where name = 'loss'\"",
)
def main(options: Namespace) -> int:
    """Print the rows of a query.  Raises UsageError for a query that SQLite rejects or that changes data."""
    with open_journal(journal_file(options.file)) as journal:
        if options.query is None:
            _print(options, ("name", "type", "columns"), _tables(journal))
            return 0
        try:
            names, rows = journal.sql(options.query)
        except UsageError as error:
            raise _located(journal, options.query, error) from None
        _print(options, names, rows)
    return 0


def _tables(journal: Journal) -> list[tuple[str, str, str]]:
    """Return the name, the type and the columns of each table and view."""
    found = []
    for name, kind in journal.sql(_NAMES)[1]:
        _, columns = journal.sql(f"PRAGMA table_info({name})")
        found.append((name, kind, ", ".join(column[1] for column in columns)))
    return found


def _print(options: Namespace, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from nncdbg.presentation.journal.query_table import print_table, rows_document, write_csv
    from nncdbg.presentation.screen import Screen

    if options.json:
        print(rows_document(names, rows))
    elif options.csv:
        write_csv(sys.stdout, names, rows)
    else:
        print_table(Screen(), names, rows)


# -- errors ------------------------------------------------------------------------------------


def _located(journal: Journal, query: str, error: UsageError) -> UsageError:
    """Return the error with the place in the query, and a hint for a table that does not exist."""
    near, named = _NEAR.search(error.message), _NAMED.search(error.message)
    place, hint = None, error.hint
    if near:
        place, hint = (_syntax_error(journal, query, near[1], error.message), len(near[1])), None
    elif error.message.endswith("incomplete input"):
        place, hint = (len(query.rstrip()), 1), None
    elif named:
        name = named["name"].rpartition(".")[2]
        found = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", query, re.IGNORECASE)
        place = (found.start(), len(name)) if found else None
        hint = _near_table(journal, name) if named["kind"] == "table" else hint
    excerpt = None if place is None else _excerpt(query, *place)
    return UsageError(error.message, excerpt=excerpt, hint=hint)


def _syntax_error(journal: Journal, query: str, token: str, message: str) -> int:
    """Return the index of the token at which the parser stops: the query up to it has the same error."""
    places = [*_places(query, token)]
    for place in places[:-1]:
        try:
            journal.sql(query[: place + len(token)])
        except UsageError as error:
            if error.message == message:
                return place
    return places[-1]


def _places(query: str, token: str) -> Iterator[int]:
    place = query.find(token)
    while place >= 0:
        yield place
        place = query.find(token, place + 1)


def _excerpt(query: str, place: int, width: int) -> Excerpt:
    start = query.rfind("\n", 0, place) + 1
    end = query.find("\n", place)
    line = query[start:] if end < 0 else query[start:end]
    return Excerpt(line, query.count("\n", 0, place) + 1, place - start + 1, width)


def _near_table(journal: Journal, name: str) -> str:
    names = [name for name, _ in journal.sql(_NAMES)[1]]
    near = difflib.get_close_matches(name, names, 1)
    return f"did you mean {near[0]}?" if near else f"`nncdbg sql {journal.path}` lists the tables"


def _check_export(parser: ArgumentParser, options: Namespace) -> None:
    if options.tensorboard is None and options.mlflow is None:
        parser.error("there is no target: add --tensorboard DIR or --mlflow URI")
    for name in ("tensorboard", "mlflow", "experiment"):
        if getattr(options, name) == "":
            value = {"tensorboard": "DIR", "mlflow": "URI"}.get(name, "NAME")
            parser.error(f"--{name} is empty: {value} is missing")
    if options.experiment is not None and options.mlflow is None:
        parser.error("--experiment names an experiment of MLflow: add --mlflow URI")


@one_shot(
    "nncdbg export",
    "Write the runs of a journal for TensorBoard or MLflow, with their own libraries.",
    option("run", metavar="FILE[#RUN]", help="a journal, and the number of a run, as in run.db#2"),
    option("--tensorboard", metavar="DIR", help="write event files below DIR, one folder per run and part"),
    option("--mlflow", metavar="URI", help="create runs at a tracking server or in a folder of MLflow"),
    option("--experiment", metavar="NAME", help="the experiment of MLflow (default: the name of the file)"),
    check=_check_export,
    usage="nncdbg export FILE[#RUN] [--tensorboard DIR] [--mlflow URI]",
    epilog="without #RUN, all runs; to write a program as an ONNX model, use\n"
    "`nncdbg print MODEL -o FILE.onnx`",
)
def export_main(options: Namespace) -> int:
    """Export one run, or all runs of a journal.  Raises UsageError if the library is missing or fails."""
    from nncdbg.presentation.screen import Screen

    if Path(options.run).is_file() and not is_journal(options.run):
        raise UsageError(
            f"{options.run} is not a journal",
            hint=f"to write a program as an ONNX model: nncdbg print {options.run} -o FILE.onnx",
        )
    address = run_address(options.run)
    screen = Screen()
    with open_journal(address) as journal:
        last = chosen_run(journal, address)
        runs = journal.runs() if address.run is None else [last]
        if options.tensorboard is not None:
            from nncdbg.journal.export import write_event_files

            for folder in write_event_files(journal, runs, Path(options.tensorboard)):
                screen.put(f"wrote {folder}")
            screen.note(f"show them: tensorboard --logdir {options.tensorboard}")
        if options.mlflow is not None:
            from nncdbg.journal.export import log_runs

            identifiers = log_runs(
                journal, runs, options.mlflow, options.experiment or Path(address.file).stem
            )
            for run, identifier in zip(runs, identifiers, strict=True):
                screen.put(f"run {run.number} is run {identifier} of MLflow")
            screen.note(f"exported {counted(len(runs), 'run')} to {options.mlflow}")
    return 0
