"""Flattening a call and grouping statements keep the results of the program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lsprotocol import types

import nncdbg
from nncdbg.textual_repr.language_server.code_actions import code_actions, flatten, group, selected
from nncdbg.textual_repr.language_server.document import Document
from tests.textual_repr.language_server.edits import applied, selected_lines

LAYERED = """\
#nncdbg 1
opset 18

graph @main(%x: f32[2,3], %c: bool[]) -> (%y: f32[2,3]) {
  %k: f32[] = 2.0
  ## the first
  ‸%h: f32[2,3] = @layer(%x, %k)
  %y = Add(%h, %x)
  return %y
}

## a layer
graph @layer(%t: f32[N,3], %k: f32[]) -> (%u: f32[N,3]) {
  ##! about the layer
  %h: f32[N,3] = Mul(%t, %k)
  ## an inner comment
  %u: f32[N,3] = Relu(%h) loc("net.py":3)
  return %u
}
"""

LOOP = """\
graph @main(%x: f32[2,3], %c: bool[]) -> (%y: f32[2,3], %z: f32[2,3]) {
  while @w (%s: f32[2,3] = %x) count %i: i64[] times 3 {
    ‸%h, %same, _ = @layer(%s, 2.0, %c)
    %g = Sub(%h, %same)
    next %s = %g
  } -> (%y: f32[2,3] = %s)
  %z, _, _ = @layer(%y, 3.0, %c)
  return %y, %z
}
graph @layer(%t: f32[M,N], %k: f32[], %c: bool[]) -> (%r: f32[M,N], %t: f32[M,N], %u: f32[M,N]) {
  %one: f32[] = 1.0
  if %c @then {
    %h: f32[M,N] = Mul(%t, %k)
    yield %h
  } else @other {
    %h: f32[M,N] = Sub(%t, %one)
    yield %h
  } -> (%u: f32[M,N])
  while (%s: f32[M,N] = %u) count %i: i64[] times 2 {
    %h = Add(%s, %one)
    %go = Less(%i, 5)
    break unless %go
    next %s = %h collect %h
  } -> (%r: f32[M,N] = %s, %all: f32[?,M,N] = collect[0])
  %"odd name" = ReduceMax(%all)
  return %r, %t, %u
}
"""

QUOTED = """\
graph @main(%"a b": f32[2,3], %c: bool[]) -> (%y: f32[2,3]) {
  ‸%y = @"my layer"(%"a b")
  return %y
}
graph @"my layer"(%x: f32[2,3]) -> (%"x:0": f32[2,3]) {
  %"é" = Neg(%x)
  %"x:0" = Relu(%"é")
  return %"x:0"
}
"""

STRAIGHT = """\
graph @main(%x: f32[N,3], %c: bool[]) -> (%y: f32[N,3]) {
⟦  %k: f32[] = 2.0
  ## doubled
  %a = Mul(%x, %k)
  %b = Relu(%a)⟧
  %y = Add(%b, %k)
  return %y
}
"""

BLOCKS = """\
graph @main(%x: f32[2,3], %c: bool[]) -> (%y: f32[2,3], %b: f32[2,3]) {
  %a = Neg(%x)
⟦  if %c @then {
    %n = Relu(%a)
    yield %n
  } else @other {
    yield %x
  } -> (%b)
  while (%s: f32[2,3] = %b) count %i: i64[] times 3 {
    %n = Mul(%s, 0.5)
    %go = Less(%i, 2)
    break unless %go
    next %s = %n
  } -> (%y: f32[2,3] = %s)⟧

  return %y, %b
}
"""

INSIDE = """\
graph @main(%x: f32[2,3], %c: bool[]) -> (%y: f32[2,3]) {
  %k: f32[] = 3.0
  while @layer (%s: f32[2,3] = %x) times 3 {
⟦    %n = Mul(%s, %k)
    %m = Add(%n, %x)⟧
    next %s = %m
  } -> (%y: f32[2,3] = %s)
  return %y
}
"""


def outputs(text: str) -> list[np.ndarray]:
    program = nncdbg.parse(text)
    inputs = {}
    for value in program.graphs[program.entry].inputs:
        small = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
        inputs[value.name] = np.array(True) if value.name == "c" else small
    debugger = nncdbg.Debugger(program, inputs=inputs)
    while debugger.run().reason != "end":
        pass
    assert debugger.outputs is not None
    return [np.asarray(value) for value in debugger.outputs.values()]


def action(document: Document, kind: str, first: int, last: int) -> types.CodeAction:
    end = len(document.lines[last])
    place = types.Range(types.Position(first, 0), types.Position(last, end))
    found = [a for a in code_actions(document, place) if a.kind == kind]
    assert len(found) == 1
    return found[0]


def rewritten(text: str, kind: str) -> str:
    plain, first, last = selected_lines(text)
    document = Document("file:///a.nnc", plain)
    edit = action(document, kind, first, last).edit
    assert edit is not None
    assert edit.changes is not None
    return applied(plain, edit.changes[document.uri])


@pytest.mark.parametrize("text", [LAYERED, LOOP, QUOTED], ids=["plain", "loop", "quoted"])
def test_flattening_keeps_the_results(text: str) -> None:
    before = selected_lines(text)[0]
    after = rewritten(text, "refactor.inline")
    assert after != before
    assert not [p for p in Document("file:///a.nnc", after).analysis.problems if p.severity == "error"]
    for old, new in zip(outputs(before), outputs(after), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("text", [STRAIGHT, BLOCKS, INSIDE], ids=["straight", "blocks", "inside"])
def test_grouping_keeps_the_results(text: str) -> None:
    before = selected_lines(text)[0]
    after = rewritten(text, "refactor.extract")
    assert len(nncdbg.parse(after).graphs) == 2
    assert not [p for p in Document("file:///a.nnc", after).analysis.problems if p.severity == "error"]
    for old, new in zip(outputs(before), outputs(after), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_flattened_layer_is_plain_statements() -> None:
    assert (
        rewritten(LAYERED, "refactor.inline")
        == """\
#nncdbg 1
opset 18

graph @main(%x: f32[2,3], %c: bool[]) -> (%y: f32[2,3]) {
  %k: f32[] = 2.0
  ## the first
  # about the layer
  %h.1: f32[2,3] = Mul(%x, %k)
  ## an inner comment
  %h: f32[2,3] = Relu(%h.1) loc("net.py":3)
  %y = Add(%h, %x)
  return %y
}
"""
    )


def test_a_grouped_layer_is_a_graph_below() -> None:
    assert (
        rewritten(STRAIGHT, "refactor.extract")
        == """\
graph @main(%x: f32[N,3], %c: bool[]) -> (%y: f32[N,3]) {
  %k, %b = @layer(%x) : f32[], f32[N,3]
  %y = Add(%b, %k)
  return %y
}

graph @layer(%x: f32[N,3]) -> (%k: f32[], %b: f32[N,3]) {
  %k: f32[] = 2.0
  ## doubled
  %a = Mul(%x, %k)
  %b = Relu(%a)
  return %k, %b
}
"""
    )


def test_grouping_and_flattening_are_inverse() -> None:
    plain = selected_lines(BLOCKS)[0]
    grouped = rewritten(BLOCKS, "refactor.extract")
    call = next(line for line in grouped.split("\n") if "= @layer(" in line)
    again = rewritten(grouped.replace(call, f"‸{call}"), "refactor.inline")
    one, two = nncdbg.parse(plain), nncdbg.parse(again)
    assert [n.op for n in one.graphs["main"].nodes] == [n.op for n in two.graphs["main"].nodes]
    for old, new in zip(outputs(plain), outputs(again), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_layer_with_other_calls_is_kept() -> None:
    assert "graph @layer" in rewritten(LOOP, "refactor.inline")
    assert "graph @" not in rewritten(LAYERED, "refactor.inline").split("main", 1)[1]


REFUSED = [
    ("a part of a block", "⟦  if %c {\n  yield %x⟧\n  } else {\n  yield %x\n  } -> (%q)"),
    ("the last line of a block", "  if %c {\n⟦  yield %x⟧\n  } else {\n  yield %x\n  } -> (%q)"),
    ("the break of a loop", "  while (%s = %x) {\n⟦  break unless %c⟧\n  next %s = %s\n  }"),
    ("a fault", "⟦  %q = Relu(%zz)⟧"),
    ("a comment", "⟦  # nothing⟧"),
    ("constants alone", "⟦  %q: i64[] = 4⟧"),
    ("a brace and more", "  if %c {\n  yield %x\n⟦  } else {\n  yield %x\n  } -> (%q)⟧"),
]


@pytest.mark.parametrize(("case", "statements"), REFUSED, ids=[row[0] for row in REFUSED])
def test_incomplete_selections_are_not_grouped(case: str, statements: str) -> None:
    head = "graph @main(%x: f32[2,3], %c: bool[]) -> (%y: f32[2,3]) {\n"
    text, first, last = selected_lines(f"{head}{statements}\n  %y = Relu(%x)\n  return %y\n}}\n")
    document = Document("file:///a.nnc", text)
    place = types.Range(types.Position(first, 0), types.Position(last, len(document.lines[last])))
    assert not [a for a in code_actions(document, place) if a.kind == "refactor.extract"], case


def test_the_action_title_mentions_random_numbers() -> None:
    text = LAYERED.replace("Relu(%h)", "RandomNormalLike(%h)")
    plain, first, last = selected_lines(text)
    found = action(Document("file:///a.nnc", plain), "refactor.inline", first, last)
    assert found.title.endswith("(random numbers will differ)")


def test_a_grouped_statement_keeps_its_comment() -> None:
    program = nncdbg.parse(rewritten(STRAIGHT, "refactor.extract"))
    node = program.graphs["layer"].nodes[0]
    assert (node.op, node.comment) == ("Mul", "doubled")


EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("name", ["refine_loop", "nan_softmax", "overflow_f16", "first_steps"])
def test_grouping_and_flattening_keep_the_results_of_an_example(name: str) -> None:
    text = (EXAMPLES / f"{name}.nnc").read_text("utf-8")
    document = Document("file:///a.nnc", text)
    wanted = run_with_seed(text)
    tried = 0
    for first in range(len(document.lines)):
        for last in (first, first + 2, first + 4):
            selection = selected(document.analysis, first, min(last, len(document.lines) - 1))
            if selection is None:
                continue
            tried += 1
            grouped = applied(text, group(document, selection))
            again = Document("file:///a.nnc", grouped)
            line = next(i for i, t in enumerate(again.lines) if "@layer(" in t and "graph" not in t)
            for each in (grouped, applied(grouped, flatten(again, line))):
                for old, new in zip(wanted, run_with_seed(each), strict=True):
                    np.testing.assert_array_equal(old, new)
    assert tried > 3


def run_with_seed(text: str) -> list[np.ndarray]:
    debugger = nncdbg.Debugger(nncdbg.parse(text), seed=0)
    while debugger.run().reason != "end":
        pass
    assert debugger.outputs is not None
    return [np.asarray(value) for value in debugger.outputs.values()]
