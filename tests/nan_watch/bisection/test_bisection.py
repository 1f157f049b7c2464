"""The statements that must stay f32, in programs with a known answer, and the mixed-precision programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.comparison.tolerance import Tolerance
from nncdbg.engine.divergence.casting import mixed_program
from nncdbg.errors import UsageError
from nncdbg.nan_watch.bisection import Bisection
from nncdbg.nan_watch.configuration import WatchConfiguration

HEAD = "#nncdbg 1\nopset 21\n"
X = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)

RMS = (
    HEAD
    + """graph @main(%x: f32[4,16]) -> (%y) {
  %h = Mul(%x, 3000.0)
  %square = Mul(%h, %h)
  %mean = ReduceMean(%square, keepdims=1)
  %root = Sqrt(%mean)
  %n = Div(%h, %root)
  %c = Add(%n, 1.0)
  %y = Relu(%c)
  return %y
}
"""
)

SMALL_EPSILON = (
    HEAD
    + """graph @main(%x: f32[4,16]) -> (%y) {
  %z = Mul(%x, 0.0)
  %d = Add(%z, 1e-9)
  %r = Div(%z, %d)
  %y = Add(%r, %x)
  return %y
}
"""
)

LAYERS = (
    HEAD
    + """graph @main(%x: f32[4,16]) -> (%y) {
  %a = @square(%x)
  %b = Mul(%x, 1000.0)
  %c = @square(%b)
  %d = Sqrt(%c)
  %y = Add(%a, %d)
  return %y
}
graph @square(%v) -> (%s) {
  %s = Mul(%v, %v)
  return %s
}
"""
)

LOOP = (
    HEAD
    + """graph @main(%x: f32[4,16]) -> (%y) {
  %scale: f32[] = 16.0
  while @grow (%i: i64[] = 0, %s = %x) {
    %go = Less(%i, 5)
    break unless %go
    %t = Mul(%s, %scale)
    %i1 = Add(%i, 1)
    next %i = %i1, %s = %t
  } -> (%grown = %s)
  %y = Div(%grown, 1048576.0)
  return %y
}
"""
)

BRANCH = (
    HEAD
    + """graph @main(%x: f32[4,16], %up: bool[]) -> (%y) {
  %h = Add(%x, 1.0)
  if %up {
    %a = Mul(%h, 1e6)
    %b = Mul(%a, 1e-6)
    yield %b
  } else {
    yield %h
  } -> (%y)
  return %y
}
"""
)

GROWTH = (
    HEAD
    + """graph @main(%x: f32[4,16]) -> (%y) {
  %big = Add(%x, 1000.0)
  %back = Sub(%big, 1000.0)
  %y = Mul(%back, 1.5)
  return %y
}
"""
)

FINE = (
    HEAD
    + """graph @main(%x: f32[4,16]) -> (%y) {
  %h = Mul(%x, 2.0)
  %y = Tanh(%h)
  return %y
}
"""
)

NAMED = (
    HEAD
    + """graph @main(%x: f32[2,3,8,8]) -> (%y, %shape) {
  %sizes: f32[4] = [1, 1, 2, 2]
  %r = Resize(%x, _, %sizes, mode="nearest")
  %shape = Shape(%r)
  %zeros = ConstantOfShape(%shape)
  %c = Cast(%shape, to=1)
  %big = Mul(%c, 10000.0)
  %m = ReduceMax(%big, keepdims=0)
  %s = Add(%r, %zeros)
  %n = Div(%s, %m)
  %y = Mul(%n, 160000.0)
  return %y, %shape
}
"""
)

CASES: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    # name: text, inputs, value of each statement that must stay -> reason
    "a square that overflows": (
        RMS,
        {"x": X},
        {"square": "overflow", "mean": "overflow", "root": "overflow"},
    ),
    "an epsilon that is 0": (SMALL_EPSILON, {"x": X}, {"d": "error", "r": "not a number"}),
    "a layer that is called twice": (LAYERS, {"x": X}, {"s": "overflow", "d": "overflow"}),
    "an iteration of a loop": (LOOP, {"x": X}, {"t": "overflow", "y": "overflow"}),
    "a branch": (BRANCH, {"x": X, "up": True}, {"a": "overflow", "b": "overflow"}),
    "an error that grows": (GROWTH, {"x": X}, {"big": "error", "back": "error"}),
    "nothing": (FINE, {"x": X}, {}),
}


def search(text: str, inputs: dict[str, Any], **fields: Any) -> Bisection:
    return Bisection(nncdbg.parse(text), inputs, WatchConfiguration(allocator="plain"), **fields)


@pytest.mark.parametrize("name", CASES)
def test_the_statements_that_must_stay_wide_are_found(name: str) -> None:
    text, inputs, expected = CASES[name]
    bisection = search(text, inputs, tolerance=Tolerance(1e-2, 1e-3))
    places = bisection.run()
    kept = bisection.reasons(places)
    assert [each.site.value for each in kept] == [*expected]
    for each in kept:
        assert each.factor > 1
        if expected[each.site.value] != "error":
            assert each.reason == expected[each.site.value]
            assert each.detail


@pytest.mark.parametrize("name", CASES)
def test_the_set_is_minimal_and_the_mixed_program_is_accurate(name: str) -> None:
    text, inputs, _ = CASES[name]
    bisection = search(text, inputs)
    places = bisection.run()
    assert bisection.outcome(places)[0] <= 1
    assert not any(bisection.outcome([p for p in places if p != left])[0] <= 1 for left in places)
    mixed = bisection.mixed(places)
    again = nncdbg.parse(str(mixed))
    assert again == mixed
    wanted = nncdbg.Debugger(bisection.program, inputs)
    wanted.run()
    got = nncdbg.Debugger(again, inputs)
    got.run()
    assert wanted.outputs is not None
    assert got.outputs is not None
    assert got.outputs.keys() == wanted.outputs.keys()
    for key, value in wanted.outputs.items():
        assert got.outputs[key].dtype == value.dtype
        np.testing.assert_allclose(got.outputs[key], value, rtol=3e-2, atol=1e-2)


def test_a_program_with_all_statements_wide_is_unchanged() -> None:
    for text, _, _ in CASES.values():
        program = nncdbg.parse(text)
        assert mixed_program(program, [], "f16", {}) == program


def test_narrow_statements_run_in_the_narrow_type() -> None:
    bisection = search(RMS, {"x": X})
    places = bisection.run()
    debugger = nncdbg.Debugger(bisection.mixed(places), {"x": X})
    debugger.run()
    narrow = {"h", "n", "c", "y.f16"}
    wide = {"square", "mean", "root", "y", "h.f32"}
    for name in narrow | wide:
        assert debugger.value(name).dtype == (np.float16 if name in narrow else np.float32), name


def test_a_result_that_is_returned_and_read_is_cast_once() -> None:
    text = """
graph @main(%x: f32[4,16]) -> (%y: f32[4,16], %z: f32[4,16]) {
  %y = Relu(%x)
  %z = Neg(%y)
  return %y, %z
}
"""
    bisection = search(text, {"x": X})
    places = bisection.run()
    assert places == []
    casts = [node.inputs for node in bisection.mixed(places).graph.nodes if node.op == "Cast"]
    assert casts == [("x",), ("y.f16",), ("z.f16",)]


def test_types_in_attributes_and_shared_operand_types_are_narrowed() -> None:
    x = np.ones((2, 3, 8, 8), np.float32)
    bisection = search(NAMED, {"x": x})
    places = bisection.run()
    assert {bisection.reasons([place])[0].site.op for place in places} <= {"Mul", "ReduceMax", "Div", "Cast"}
    debugger = nncdbg.Debugger(bisection.mixed(places), {"x": x})
    assert debugger.run().reason == "end"
    assert debugger.value("r").dtype == np.float16
    assert debugger.value("zeros").dtype == np.float16
    assert debugger.value("shape").dtype == np.int64


def test_bf16_needs_no_wide_statement_for_range() -> None:
    assert search(RMS, {"x": X}, dtype="bf16").run() == []


def test_the_tolerance_determines_the_set() -> None:
    loose = search(GROWTH, {"x": X}, tolerance=Tolerance(None, 1.0)).run()
    tight = search(GROWTH, {"x": X}, tolerance=Tolerance(1e-6, 1e-7)).run()
    assert loose == []
    assert len(tight) == 3


def test_only_executed_statements_are_tried() -> None:
    bisection = search(BRANCH, {"x": X, "up": False})
    assert bisection.run() == []
    assert {place[0] for place in bisection.alone} == {("main",)}


def test_random_ops_are_noted() -> None:
    statements = "  %r = RandomNormalLike(%x)\n  %y = Add(%r, %x)\n  return %y\n"
    text = HEAD + f"graph @main(%x: f32[4]) -> (%y) {{\n{statements}}}\n"
    bisection = search(text, {"x": X[0, :4]})
    bisection.run()
    assert len(bisection.notes) == 1
    assert bisection.notes[0].startswith("RandomNormalLike (line 4) draws different numbers")


def test_an_unknown_type_is_an_error() -> None:
    with pytest.raises(UsageError, match="cannot narrow"):
        search(FINE, {"x": X}, dtype="f8")


# -- the command --------------------------------------------------------------------------------------


@pytest.fixture
def command(
    tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> Callable[..., tuple[int, str, str]]:
    (tmp_path / "rms.nnc").write_text(RMS)
    (tmp_path / "fine.nnc").write_text(FINE)
    (tmp_path / "int.nnc").write_text(
        HEAD + "graph @main(%x: i64[2]) -> (%y) {\n  %y = Neg(%x)\n  return %y\n}\n"
    )
    (tmp_path / "bad.nnc").write_text(
        HEAD + "graph @main(%x: f32[2]) -> (%y) {\n  %z = Sub(%x, %x)\n  %y = Div(%z, %z)\n  return %y\n}\n"
    )
    np.save(tmp_path / "x.npy", X)

    return partial(command, "bisect")


def test_the_command_prints_the_set_and_writes_the_program(command: Any, tmp_path: Path) -> None:
    code, out, err = command("rms.nnc", "--input", "x=x.npy", "-o", "mixed.nnc")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "3 of 7 statements must keep their types; all others run in f16:"
    assert "    5 | %square = Mul(%h, %h)" in lines
    assert any("the largest f16 is 65504" in line for line in lines)
    assert err == "note: the mixed-precision program is in mixed.nnc\n"
    mixed = nncdbg.load(tmp_path / "mixed.nnc")
    assert sum(node.op == "Cast" for node in mixed.graphs["main"].nodes) >= 3


def test_the_command_reports_that_all_statements_can_be_narrow(command: Any) -> None:
    assert command("fine.nnc", "--input", "x=x.npy")[:2] == (0, "all 2 statements can run in f16\n")


def test_the_command_prints_json(command: Any) -> None:
    code, out, err = command("rms.nnc", "--input", "x=x.npy", "--json")
    document = json.loads(out)
    assert (code, err, document["status"], document["dtype"]) == (0, "", "ok", "f16")
    assert [each["value"] for each in document["keep"]] == ["square", "mean", "root"]
    assert [each["line"] for each in document["keep"]] == [5, 6, 7]
    assert document["statements"] == 7


@pytest.mark.parametrize(
    ("arguments", "expected", "message"),
    [
        (["none.nnc"], 3, "there is no file"),
        (["rms.nnc", "--dtype", "f8"], 2, "invalid choice"),
        (["rms.nnc", "--rtol", "-1"], 2, "rtol cannot be -1"),
        (["rms.nnc", "--input", "q=zeros"], 2, 'has no input "q"'),
        (["int.nnc"], 2, "nothing to narrow"),
        (["bad.nnc"], 2, "already has NaN in the declared types"),
        (["rms.nnc", "-o", "none/mixed.nnc"], 2, "cannot write"),
    ],
)
def test_wrong_use_is_an_error(command: Any, arguments: list[str], expected: int, message: str) -> None:
    code, out, err = command(*arguments)
    assert (code, out) == (expected, "")
    assert message in err


def test_an_interruption_prints_the_smallest_set_so_far(
    command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = Bisection.outcome

    def stopped(self: Bisection, kept: Any) -> Any:
        if self.best is not None:
            raise KeyboardInterrupt
        return outcome(self, kept)

    monkeypatch.setattr(Bisection, "outcome", stopped)
    code, out, err = command("rms.nnc", "--input", "x=x.npy")
    assert code == 130
    assert "%square = Mul(%h, %h)" in out
    assert "not checked: minimal set: the search was interrupted; this is the smallest set so far" in err
    document = json.loads(command("rms.nnc", "--input", "x=x.npy", "--json")[1])
    assert [(each["check"], each["result"]) for each in document["checks"]] == [
        ("outputs", "passed"),
        ("minimal set", "not checked"),
    ]


def test_an_interruption_before_the_first_set_prints_none(
    command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(self: Bisection, kept: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Bisection, "outcome", stopped)
    code, out, err = command("rms.nnc", "--input", "x=x.npy")
    assert (code, out, err) == (130, "", "interrupted\n")
