"""`nncdbg sql FILE QUERY`: query the tables of a journal."""

from __future__ import annotations

import difflib
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nncdbg.engine.errors import Excerpt, UsageError
from nncdbg.opening.command_line import ArgumentParser, errors_in_json
from nncdbg.terminal.journal.files import journal_file, open_journal

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


def main(arguments: Sequence[str]) -> int:
    """Print the rows of a query.  Raises UsageError for a query that SQLite rejects or that changes data."""
    options = _options(arguments)
    with errors_in_json(options), open_journal(journal_file(options.file)) as journal:
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


def _options(arguments: Sequence[str]) -> Namespace:
    parser = ArgumentParser(
        "nncdbg sql",
        "Query the tables of a journal in SQL.  The query cannot change the file.",
        usage='nncdbg sql FILE ["QUERY"] [--csv | --json]',
        epilog="example: nncdbg sql run.db \"select step, value from track_values where name = 'loss'\"",
    )
    add = parser.add_argument
    add("file", metavar="FILE", help="a journal")
    add("query", metavar="QUERY", nargs="?", help="one SQL statement; without it, list the tables and views")
    add("--csv", action="store_true", help="print the rows as CSV, after a line with the column names")
    add("--json", action="store_true", help="print one JSON document on standard output")
    options = parser.parse_args(arguments)
    if options.csv and options.json:
        parser.error("--csv and --json cannot be combined: use one of them")
    return options


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
