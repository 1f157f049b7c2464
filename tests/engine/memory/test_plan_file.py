"""Memory plans as files: valid plans, and the errors for invalid ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import nncdbg
from nncdbg.engine.memory.plan_file import parse_plan, plan_text, read_plan

MODEL = nncdbg.parse("""opset 18
graph @main(%x: f32[3]) -> (%y: f32[3]) {
  %h = Neg(%x)
  %"odd name" = Exp(%h)
  %go = Greater([1.0], 0.0)
  if %go @then {
    %r = Neg(%h)
    %p = Neg(%r)
    yield %p
  } else @other {
    %r = Exp(%h)
    yield %r
  } -> (%m: f32[3])
  %l: f32[3] = @layer(%m)
  %y = Add(%l, %"odd name")
  return %y
}

graph @layer(%i: f32[3]) -> (%o: f32[3]) {
  %o = Neg(%i)
  return %o
}
""")


def document(**graphs: Any) -> str:
    return json.dumps({"nncdbg_plan": 1, "alignment": 4, "graphs": graphs})


def test_values_are_found_by_graph_block_and_name() -> None:
    graphs = {
        "main": {
            "h": {"offset": 0, "size": 12},
            "%p": {"offset": 12, "size": 12, "lives": [7, 8]},
            "odd name": {"alias": "h"},
            "o": {"offset": 48, "size": 16},
        },
        "main/3/1": {"r": {"offset": 24, "size": 12}},
    }
    plan = parse_plan(document(**graphs), MODEL)
    rows = {site: (place.offset, place.size, place.lives) for site, place in plan.places.items()}
    assert rows == {
        (("main",), "h"): (0, 12, None),
        (("main", 3, 0), "p"): (12, 12, (7, 8)),
        (("main",), "odd name"): (0, 12, None),
        (("layer",), "o"): (48, 16, None),
        (("main", 3, 1), "r"): (24, 12, None),
    }
    assert plan.places[("main",), "odd name"].root == (("main",), "h")
    assert (plan.extent, plan.alignment) == (64, 4)
    assert parse_plan(plan_text(plan), MODEL).places == plan.places


def test_an_empty_plan_is_valid() -> None:
    plan = parse_plan(document(), MODEL)
    assert (dict(plan.places), plan.extent) == ({}, 0)
    assert parse_plan(plan_text(plan), MODEL).places == {}


AT = {"offset": 0, "size": 12}
WRONG = {
    "invalid JSON": ("{", "is not a memory plan", "write JSON"),
    "not an object": ("[]", "is not a memory plan", "write JSON"),
    "no graphs": ('{"nncdbg_plan": 1}', "missing required field `graphs`", "write JSON"),
    "an unknown field": (
        '{"nncdbg_plan": 1, "graphs": {}, "offsets": []}',
        "unknown field `offsets`",
        "write JSON",
    ),
    "another version": (
        '{"nncdbg_plan": 2, "graphs": {}}',
        "unsupported memory plan version 2",
        "use version 1",
    ),
    "no alignment": (
        '{"nncdbg_plan": 1, "graphs": {}, "alignment": 0}',
        "the alignment cannot be 0",
        "1 byte or more",
    ),
    "an unknown graph": (document(layre={}), "the program has no graph 'layre'", "did you mean layer?"),
    "an unknown block": (
        document(**{"main/3/2": {}}),
        "the program has no graph 'main/3/2'",
        "did you mean main/3/",
    ),
    "an unknown value": (document(main={"hh": AT}), "%hh does not exist in main", "did you mean %h?"),
    "a name of two blocks": (
        document(main={"r": AT}),
        "occurs in several blocks of",
        "main/3/0, main/3/1",
    ),
    "a value twice": (
        document(main={"p": AT}, **{"main/3/0": {"p": AT}}),
        "places %p of main/3/0 twice",
        None,
    ),
    "no size": (document(main={"h": {"offset": 0}}), "%h of main has no size", "`offset` and `size`"),
    "a negative offset": (
        document(main={"h": {"offset": -4, "size": 12}}),
        "offset cannot be -4",
        "0 or more",
    ),
    "a size out of range": (
        document(main={"h": {"offset": 0, "size": 1 << 60}}),
        "size cannot be",
        "number of bytes",
    ),
    "text for a number": (
        document(main={"h": {"offset": "0", "size": 12}}),
        "%h of main: Expected `int",
        "write an object such as",
    ),
    "an unknown field of a value": (
        document(main={"h": AT | {"at": 1}}),
        "unknown field `at`",
        "write an object such as",
    ),
    "an alias of a missing value": (
        document(main={"h": {"alias": "q"}}),
        "is an alias of %q, which is not in the plan",
        "add the value",
    ),
    "a cycle of aliases": (
        document(main={"h": {"alias": "m"}, "m": {"alias": "h"}}),
        "is an alias of %",
        "set `offset` and `size`",
    ),
}


@pytest.mark.parametrize(("text", "message", "hint"), WRONG.values(), ids=WRONG.keys())
def test_an_invalid_plan_is_a_usage_error(text: str, message: str, hint: str | None, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(nncdbg.UsageError) as raised:
        read_plan(file, MODEL)
    assert message in raised.value.message
    assert str(file) in raised.value.message
    assert raised.value.exit_code == 2
    assert (hint or "") in (raised.value.hint or "")


@pytest.mark.parametrize("name", ["missing.json", "folder", "nul\0"])
def test_an_unreadable_plan_file_is_a_usage_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(nncdbg.UsageError, match="cannot read the memory plan"):
        read_plan(f"{tmp_path}/{name}", MODEL)


def test_a_plan_that_is_not_utf8_is_a_usage_error() -> None:
    with pytest.raises(nncdbg.UsageError, match="is not a memory plan"):
        parse_plan(b"\xff\xfe{}", MODEL)
