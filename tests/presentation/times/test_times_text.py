"""Tables of times: what the rows add up to, and how they fit a terminal."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg.presentation.screen import Screen
from nncdbg.presentation.times.table import GROUPINGS, TimeTable, by_layer, by_statement, of_block
from nncdbg.presentation.times.text import print_times, share_text, time_text
from nncdbg.target.measures import times_of


@pytest.fixture
def measured(repository: Path) -> nncdbg.Debugger:
    debugger = nncdbg.Debugger(
        nncdbg.load(str(repository / "examples" / "train_mlp.nnc"), steps=3), allocator="plain"
    )
    debugger.times.measure(True)
    assert debugger.run().reason == "end"
    return debugger


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_the_rows_of_each_grouping_add_up_to_all_kernels(measured: nncdbg.Debugger, grouping: str) -> None:
    table = GROUPINGS[grouping](times_of(measured.loaded))
    rows = table.records()
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    spent = "own" if grouping == "layer" else "total"
    assert sum(row[spent] for row in rows) == pytest.approx(measured.times.kernels / 1e9)
    shares = [row["share"] for row in rows]
    assert shares == sorted(shares, reverse=True)


def test_a_layer_has_the_time_of_the_graphs_that_it_calls(measured: nncdbg.Debugger) -> None:
    layers = {row["layer"]: row for row in by_layer(times_of(measured.loaded)).records()}
    assert layers["@program"]["total"] == pytest.approx(measured.times.kernels / 1e9)
    assert layers["@loss"]["total"] == pytest.approx(layers["@loss"]["own"] + layers["@layer"]["total"])
    assert layers["@layer"]["total"] == layers["@layer"]["own"]
    assert {layers[name]["calls"] for name in ("@train", "@loss", "@layer", "@loss.backward")} == {3}


def test_a_row_has_the_statement_and_its_place(measured: nncdbg.Debugger) -> None:
    (row,) = [each for each in by_statement(times_of(measured.loaded)).records() if each["value"] == "%xy"]
    assert (row["op"], row["shapes"], row["where"]) == ("ReduceProd", "[32,2] -> [32,1]", "@loss")
    assert row["calls"] == 3
    assert 0 < row["min"] <= row["median"] <= row["total"]
    assert "%xy" in measured.loaded.listing.full_line(row["line"])


def test_the_table_of_a_block_has_its_calls_with_the_kernels_inside(measured: nncdbg.Debugger) -> None:
    rows = {row["op"]: row for row in of_block(times_of(measured.loaded), ("train",)).records()}
    layers = {row["layer"]: row for row in by_layer(times_of(measured.loaded)).records()}
    assert rows["@loss.backward"]["total"] == pytest.approx(layers["@loss.backward"]["total"])


def test_the_bytes_of_an_op_are_those_of_its_results() -> None:
    body = "  %h = Relu(%x)\n  %i = Relu(%h)\n  %y = Exp(%i)\n  return %y\n"
    text = f"#nncdbg 1\ngraph @main(%x: f32[2,3]) -> (%y) {{\n{body}}}\n"
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": np.ones((2, 3), np.float32)}, allocator="plain")
    debugger.times.measure(True)
    debugger.run()
    rows = GROUPINGS["op"](times_of(debugger.loaded)).records()
    assert {row["op"]: row["bytes"] for row in rows} == {"Relu": 48, "Exp": 24}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ns"),
        (85e-9, "85 ns"),
        (999.4e-9, "999 ns"),
        (999.6e-9, "1.00 us"),
        (12.34e-6, "12.3 us"),
        (99.96e-6, "100 us"),
        (999.6e-6, "1.00 ms"),
        (4.5678e-3, "4.57 ms"),
        (1.234, "1.23 s"),
        (123.4, "123 s"),
    ],
)
def test_durations_have_three_digits(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_shares_are_percentages() -> None:
    assert share_text(0.1234) == "12.3 %"


TABLE = TimeTable(
    ("share", "median", "min", "total", "calls", "line", "value", "op", "shapes", "where"),
    [
        (0.75, 3e-6, 2e-6, 6e-3, 2000, 12, "%a", "Conv", "[1,3,9,9] [64,3,7,7] -> [1,64,3,3]", "net.py:7"),
        (0.20, 1e-6, 1e-6, 1e-3, 1000, 13, "%encoder/layers.0/attn/Add_output_0", "Add", "[2] -> [2]", "n"),
        (0.05, 1e-9, 1e-9, 1e-4, 1, None, "", "update", "", ""),
    ],
)  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(width: int | None, most: int | None = None) -> list[str]:
    out = io.StringIO() if width is None else Terminal()
    print_times(Screen(out, out, width=width), TABLE, most)
    return out.getvalue().splitlines()


@pytest.fixture
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("NO_COLOR", "1")


def test_a_pipe_gets_the_whole_table(plain_terminal: None) -> None:
    title, first, second, _ = printed(None)
    assert title.split() == list(TABLE.columns)
    assert first.startswith("75.0 %  3.00 us  2.00 us  6.00 ms  2,000    12  %a")
    assert "%encoder/layers.0/attn/Add_output_0" in second


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_a_terminal_shows_shares_and_times_within_its_width(width: int, plain_terminal: None) -> None:
    lines = printed(width)
    assert all(len(line) <= width for line in lines)
    shown = lines[0].split()
    assert shown[:2] == ["share", "median"]
    assert {"total", "calls", "value", "op"} <= set(shown)
    assert lines[2].startswith("20.0 %  1.00 us")
    omitted = [name for name in TABLE.columns if name not in shown]
    assert (lines[-1] == f"a wider terminal also shows: {', '.join(omitted)}") == bool(omitted)
    if width < 140:
        assert "Add_output_0" in lines[2] or "_output_0" in lines[2], "the end of a name tells values apart"


def test_rows_that_are_not_shown_are_counted(plain_terminal: None) -> None:
    assert printed(None, most=1)[-1] == "and 2 rows more with 25.0 %"
    assert printed(None, most=3)[-1].split()[:1] == ["5.0"]
