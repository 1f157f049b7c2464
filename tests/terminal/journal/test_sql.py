"""`nncdbg sql`: queries on a journal."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from nncdbg import journal
from nncdbg.presentation.journal.query_table import print_table, rows_document, write_csv
from nncdbg.presentation.screen import Screen

Command = Callable[..., tuple[int, str, str]]

LOSSES = "select step, value from track_values where run = 1 and name = 'loss' and step > 77 limit 4"


def test_a_table(command: Command, overnight: str) -> None:
    """P8, P10: the values of a track are rows; SQL has no NaN, which is null."""
    code, out, err = command("sql", overnight, LOSSES)
    assert (code, err) == (0, "note: 4 rows\n")
    with journal.open(overnight) as opened:
        numbers = [str(value) for value in opened.values(1, "loss")[1][78:80].tolist()]
    width = max(map(len, numbers))
    assert out.splitlines() == [
        f"step  {'value':>{width}}",
        f"  78  {numbers[0]:>{width}}",
        f"  79  {numbers[1]:>{width}}",
        f"  80  {'null':>{width}}",
        f"  81  {'null':>{width}}",
    ]


def test_json_has_the_columns_and_the_exact_numbers(command: Command, overnight: str) -> None:
    document = json.loads(command("sql", overnight, LOSSES, "--json")[1])
    with journal.open(overnight) as opened:
        steps, values = opened.values(1, "loss")
    assert document["columns"] == ["step", "value"]
    assert document["rows"][:2] == [[steps[place], values[place]] for place in (78, 79)]
    assert document["rows"][2:] == [[80, None], [81, None]]


def test_csv(command: Command, overnight: str) -> None:
    code, out, err = command("sql", overnight, "select run, name, parent from runs", "--csv")
    assert (code, err) == (0, "")
    assert [*csv.reader(io.StringIO(out))] == [
        ["run", "name", "parent"],
        ["1", "train_mlp", ""],
        ["2", "train_mlp", "1"],
        ["3", "train_mlp", "2"],
        ["4", "train.py", ""],
    ]


def test_without_a_query_the_tables_and_views_are_listed(command: Command, overnight: str) -> None:
    code, out, _ = command("sql", overnight)
    lines = {line.split()[0]: re.split(r" {2,}", line) for line in out.splitlines()}
    assert code == 0
    assert lines["track_values"] == ["track_values", "view", "run, name, part, step, value"]
    assert lines["steps"] == ["steps", "table", "run, step, epoch, seconds"]
    for name in lines:
        if name != "name":
            columns = json.loads(command("sql", overnight, f"select * from {name} limit 0", "--json")[1])
            assert ", ".join(columns["columns"]) == lines[name][2]


def test_a_query_cannot_change_the_file(command: Command, overnight: str, tmp_path: Path) -> None:
    before = (tmp_path / overnight).read_bytes()
    for query in (
        "insert into runs (run) values (9)",
        "update runs set name = 'x'",
        "delete from steps",
        "drop table runs",
        "create table t (x)",
        "attach 'other.db' as other",
        "pragma user_version = 9",
        "vacuum into 'copy.db'",
        "with new(run) as (select 9) insert into runs (run) select run from new",
    ):
        assert command("sql", overnight, query)[0] == 2, query
    assert (tmp_path / overnight).read_bytes() == before
    assert not [*tmp_path.glob("*other*"), *tmp_path.glob("copy*")]


# Query, the underlined text, the line of the hint.
ERRORS = """
select * form runs                            | form           |
select * from runs where where run = 1        | where@20       |
select form from runs where run form          | form@30        |
select stepp from steps                       | stepp          | some tables and views
select r.foo from runs as r                   | foo            | some tables and views
select * from run                             | run            | did you mean runs?
select * from qqqqqq                          | qqqqqq         | `nncdbg sql run.db` lists the tables
select foo(1)                                 | foo            | some tables and views
select 'a                                     | 'a             | some tables and views
select * from runs where (                    | end            |
select * from runs where run in (1            | end            |
"""


@pytest.mark.parametrize("row", ERRORS.strip("\n").split("\n"))
def test_an_error_underlines_the_place(command: Command, overnight: str, row: str) -> None:
    query, underlined, hint = (cell.strip() for cell in row.split("|"))
    code, out, err = command("sql", overnight, query)
    assert (code, out) == (2, "")
    _, place, line, carets, *rest = err.splitlines()
    column = int(re.fullmatch(r"  at line 1:(\d+)", place)[1])  # type: ignore[index]
    assert line == f"    1 | {query}"
    assert carets.index("^") == line.index(query) + column - 1
    word, _, at = underlined.partition("@")
    if word == "end":
        assert column == len(query) + 1
    else:
        assert column == query.index(word, int(at or 0)) + 1
        assert carets.count("^") == len(word)
    assert len(rest) == bool(hint)
    assert not hint or rest[0].startswith(f"  hint: {hint}")


def test_the_error_of_a_query_of_several_lines(command: Command, overnight: str) -> None:
    code, _, err = command("sql", overnight, "select step,\n  valeu\nfrom track_values")
    assert code == 2
    assert err.splitlines()[1:4] == ["  at line 2:3", "    2 |   valeu", "      |   ^^^^^"]


BAD_INPUT = """
sql                             2  required
sql missing.db                  3  there is no file missing.db
sql run.db#1 x                  2  use run.db
sql run.db@3 x                  2  use run.db
sql run.db select --csv --json  2  --csv and --json
"""


@pytest.mark.parametrize("row", BAD_INPUT.strip("\n").split("\n"))
def test_bad_input(command: Command, overnight: str, row: str) -> None:
    words, code, message = row[:32], row[32], row[33:].strip()
    found, _, err = command(*words.split())
    assert (found, message in err) == (int(code), True), err


# -- the table -------------------------------------------------------------------------------------

ROWS = [(1, "long " * 40, 1.5), (22, "q\x1b[31m\nz", None), (3, b"123", float("inf"))]


@pytest.mark.parametrize("width", [20, 30, 80, 120])
def test_a_terminal_crops_the_widest_column(width: int) -> None:
    out = io.StringIO()
    screen = Screen(out, io.StringIO(), width=width, color=False)
    screen.out._force_terminal = True
    print_table(screen, ["a", "name", "x"], ROWS)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    if width >= 30:
        assert len(lines) == 4
        assert "…" in lines[1]
        assert lines[3].split() == ["3", "<3", "bytes>", "inf"]


def test_many_columns_are_a_line_per_value_on_a_terminal() -> None:
    out = io.StringIO()
    screen = Screen(out, io.StringIO(), width=40, color=False)
    screen.out._force_terminal = True
    print_table(screen, [f"column{n}" for n in range(9)], [[n * 1000 for n in range(9)]])
    assert out.getvalue().splitlines()[:3] == ["row 1", "  column0  0", "  column1  1000"]


def test_a_pipe_gets_all_text_without_control_characters() -> None:
    out = io.StringIO()
    print_table(Screen(out, io.StringIO()), ["a", "name", "x"], ROWS)
    assert ("long " * 40).strip() in out.getvalue()
    assert "q\\x1b[31m\\nz" in out.getvalue()


def test_values_that_csv_and_json_do_not_have() -> None:
    out = io.StringIO()
    write_csv(out, ["a", "name", "x"], ROWS)
    assert [*csv.reader(io.StringIO(out.getvalue()))][2:] == [
        ["22", "q\x1b[31m\nz", ""],
        ["3", "313233", "inf"],
    ]
    assert json.loads(rows_document(["a", "name", "x"], ROWS))["rows"][2] == [3, "313233", "Infinity"]
