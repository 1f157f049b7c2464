"""`layers`, `table`, `info model`, `info buffers`: the model as a whole, and the memory of a value."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

import nncdbg
from nncdbg.commands.completion import candidates
from nncdbg.commands.session import CommandSession
from nncdbg.presentation.screen import Screen
from nncdbg.target.program import ProgramTarget

SHARED = """#nncdbg 1
opset 18

state %s: f32[3] = [1.0, 2.0, 3.0]

graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %a: f32[4] = @left(%x)
  %b: f32[4] = @right(%a)
  %c: f32[4] = @right(%b)
  %total: f32[] = ReduceSum(%s, keepdims=0)
  %y: f32[4] = Mul(%c, %total)
  return %y
}

graph @left(%x: f32[4]) -> (%y: f32[4]) {
  %w: f32[4] = [1.0, 2.0, 3.0, 4.0]
  %h: f32[4] = @inner(%x)
  %y: f32[4] = Mul(%h, %w)
  return %y
}

graph @right(%x: f32[4]) -> (%y: f32[4]) {
  %y: f32[4] = @inner(%x)
  return %y
}

graph @inner(%x: f32[4]) -> (%y: f32[4]) {
  %shape: i64[1] = [4]
  %v: f32[4] = [1.0, 1.0, 1.0, 1.0]
  %r: f32[4] = Sqrt(%x)
  %y: f32[4] = Add(%r, %v)
  return %y
}
"""

VIEWS = """#nncdbg 1
opset 18

graph @main(%x: f32[4,4]) -> (%y: f32[2,4]) {
  %a: f32[4,4] = Relu(%x)
  %r: f32[16] = Reshape(%a, [16])
  %s: f32[2,4] = Slice(%a, [2], [4], [0])
  %i: f32[4,4] = Identity(%a)
  %z: f32[4,4] = Add(%i, 1.0)
  %y: f32[2,4] = Neg(%s)
  return %y
}
"""


class Prompt:
    """A session with a pipe as its screen."""

    def __init__(self, text: str, inputs: dict[str, object], **options: object) -> None:
        self.out = io.StringIO()
        debugger = nncdbg.Debugger(nncdbg.parse(text), inputs, **options)  # type: ignore[arg-type]
        self.session = CommandSession(ProgramTarget(debugger), "model", Screen(self.out, self.out))

    def __call__(self, line: str) -> list[str]:
        self.out.seek(0)
        self.out.truncate()
        self.session.execute(line)
        return self.out.getvalue().splitlines()

    def rows(self, line: str) -> list[list[str]]:
        return [each.split() for each in self(line)[1:]]


@pytest.fixture
def shared() -> Prompt:
    return Prompt(SHARED, {"x": np.array([4, 4, 1, -1.0], np.float32)})


def test_a_layer_includes_the_layers_that_it_calls_and_a_tree_is_shown_once(shared: Prompt) -> None:
    title, *rows = shared("layers @main")
    assert title.split() == ["layer", "calls", "statements", "ops", "parameters", "nan", "inf", "largest"]
    assert [row.split()[:5] for row in rows] == [
        ["@main", "1", "10", "5", "11"],
        ["@left", "1", "4", "3", "8"],
        ["@inner", "1", "2", "2", "4"],
        ["@right", "2", "3", "2", "4"],
        ["@inner", "1", "2", "2", "4"],
    ]
    assert rows[2].index("@") - rows[1].index("@") == 2
    assert {tuple(row.split()[5:]) for row in rows} == {("-", "-", "-")}, "nothing is computed yet"


def test_layers_show_the_worst_value_of_all_calls(shared: Prompt) -> None:
    shared("break @right")
    shared("continue")
    found = {row[0]: row[5:] for row in shared.rows("layers")}
    assert found["@inner"] == ["1", "0", "3"]
    assert found["@left"] == ["1", "0", "6"]
    assert found["@right"] == ["1", "0", "3"], "its layer @inner was called by @left"


def test_each_layer_is_a_place(shared: Prompt) -> None:
    for name, *_ in shared.rows("layers @main"):
        assert "Breakpoint" in shared(f"break {name}")[0]
        assert f"graph {name}" in shared(f"list {name}")[0]
        assert "error" not in shared(f"table {name}")[0]


def test_a_graph_is_the_argument_of_a_command_that_shares_its_name_with_a_value() -> None:
    prompt = Prompt(SHARED.replace("%a", "%table").replace("%b", "%list"), {"x": np.ones(4, np.float32)})
    prompt("continue")
    assert prompt.rows("table @left")[0][0] == "%h"
    assert "graph @left" in prompt("list @left")[0]
    assert prompt("table @ list") == prompt("p %table @ %list")


def test_odd_names_are_accepted() -> None:
    text = SHARED.replace("@left", '@"a layer"').replace("%h", '%"a value"')
    prompt = Prompt(text, {"x": np.ones(4, np.float32)}, allocator="plain")
    prompt("continue")
    assert prompt.rows('table @"a layer"')[0][:2] == ['%"a', 'value"']
    assert prompt('layers @"a layer"')[1].startswith('@"a layer" ')
    assert prompt('info buffers %"a value"')[0].startswith('%"a value": 0x')


def test_a_table_has_the_latest_value_of_each_statement(shared: Prompt) -> None:
    shared("continue")
    rows = json.loads(shared("table @inner --json")[0])
    assert [(row["name"], row["op"], row["nan"]) for row in rows] == [("r", "Sqrt", 1), ("y", "Add", 1)]
    assert rows[1]["max"] == pytest.approx(
        float(np.nanmax(shared.session.target.python_names()["debugger"].value("c")))
    )
    assert [row[0] for row in shared.rows("table Mul")] == ["%y", "%y"]


def test_a_table_of_a_layer_has_the_values_that_a_pattern_selects(shared: Prompt) -> None:
    shared("continue")
    every = json.loads(shared("table --json")[0])
    inner = json.loads(shared("table @inner --json")[0])
    assert json.loads(shared("table @inner * --json")[0]) == inner
    assert [row["name"] for row in json.loads(shared("table @inner r* --json")[0])] == ["r"]
    assert json.loads(shared("table @inner Add --json")[0]) == [row for row in inner if row["op"] == "Add"]
    assert json.loads(shared("table Mu* --json")[0]) == [row for row in every if row["op"] == "Mul"]
    assert json.loads(shared("table %y --json")[0]) == [row for row in every if row["name"] == "y"]
    assert "no value of @inner Mul is computed" in shared("table @inner Mul")[0]


def test_the_option_sort_completes_to_columns(shared: Prompt) -> None:
    assert candidates(shared.session, "table @inner --sort m") == ("m", ["max", "mean", "min"])
    assert candidates(shared.session, "table --so") == ("--so", ["--sort"])
    assert candidates(shared.session, "table --sort=na") == ("na", ["name", "nan"])


@pytest.mark.parametrize(
    ("key", "reverse"), [("name", False), ("line", False), ("min", False), ("max", True), ("nan", True)]
)
def test_a_table_is_sorted_by_a_column(shared: Prompt, key: str, reverse: bool) -> None:
    shared("continue")
    found = [row[key] for row in json.loads(shared(f"table --sort {key} --json")[0])]
    assert found == sorted(found, reverse=reverse)
    assert len(found) > 5


def test_values_without_statistics_are_last() -> None:
    prompt = Prompt(
        "opset 18\ngraph @main(%x: f32[2]) -> (%b: f32[2]) {\n"
        "  %a: f32[2] = Log(%x)\n  %b: f32[2] = Exp(%x)\n  return %b\n}\n",
        {"x": np.full(2, np.nan, np.float32)},
    )
    prompt("next 2")
    prompt("set %b = 2")
    assert [(row[0], row[4]) for row in prompt.rows("table --sort min")] == [("%b", "2"), ("%a", "-")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("table Sofmax", "the program has no op, graph, value or node Sofmax"),
        ("table --sort q", "the table has no column q"),
        ("table @nope", "the program has no graph @nope"),
        ("layers @nope", "the program has no graph @nope"),
        ("info buffers", "`info buffers` needs a value"),
        ("info buffers %totl", "there is no value `%totl` here"),
        ("info buffers %y", "%y is not computed yet"),
    ],
)
def test_invalid_arguments_are_reported(shared: Prompt, line: str, words: str) -> None:
    first, *rest = shared(line)
    assert first == f"error: {words}"
    assert any(each.startswith("  hint: ") for each in rest)


def test_values_that_the_history_lost_are_counted(shared: Prompt) -> None:
    lean = Prompt(SHARED, {"x": np.ones(4, np.float32)}, history=0)
    lean("continue")
    assert any("not included: dropped" in line for line in lean("table @main"))


def test_table_and_layers_complete_graphs_and_ops(shared: Prompt) -> None:
    assert candidates(shared.session, "table Sq")[1] == ["Sqrt"]
    assert "@inner" in candidates(shared.session, "layers @in")[1]
    assert "%total" in candidates(shared.session, "info buffers %tot")[1]


def test_info_model_shows_the_interface_and_the_parameters(shared: Prompt) -> None:
    assert shared("info model") == [
        "input %x: f32[4]",
        "output %y: f32[4]",
        "parameters: 11 in 3 tensors, 44 bytes",
        "statements: 10 in 4 graphs",
        "ops: Mul 2, ReduceSum 1, Sqrt 1, Add 1",
    ]


def test_info_buffers_names_views_and_aliases() -> None:
    prompt = Prompt(VIEWS, {"x": np.ones((4, 4), np.float32)}, allocator="plain")
    prompt("continue")
    first, *rest = prompt("info buffers %a")
    assert first.endswith("64 bytes, f32[4,4], computed by Relu at line 5")
    assert rest == [
        "  %r of @main: same memory, as f32[16], computed by Reshape at line 6",
        "  %s of @main: its 32 bytes at offset 32 overlap, computed by Slice at line 7",
        "  %i of @main: same elements, computed by Identity at line 8",
    ]
    assert prompt("info buffers %z")[1:] == ["  no other value in the history shares this memory"]


def test_info_buffers_reports_reused_memory() -> None:
    prompt = Prompt(VIEWS, {"x": np.ones((4, 4), np.float32)}, allocator="arena")
    prompt("continue")
    lines = prompt("info buffers %a")
    assert lines[1].startswith("  no longer valid: its memory was freed")
