"""Every feature works at each position of a text in the old and in the new notation, with equal answers."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from lsprotocol import types

from nncdbg.errors import ParseError
from nncdbg.textual_repr import parse, print_program
from nncdbg.textual_repr.language_server.analysis import Analysis
from nncdbg.textual_repr.language_server.code_actions import code_actions
from nncdbg.textual_repr.language_server.completion import completions
from nncdbg.textual_repr.language_server.decorations import code_lenses, encoded, inlay_hints
from nncdbg.textual_repr.language_server.document import Document, Place
from nncdbg.textual_repr.language_server.documentation import hover_text, signature_help
from nncdbg.textual_repr.language_server.formatting import formatted
from nncdbg.textual_repr.language_server.navigation import (
    definition_span,
    document_links,
    folding_ranges,
    prepared,
    reference_spans,
    selection_range,
    symbols,
)
from nncdbg.textual_repr.language_server.tokens import Span, kind_of_line

ROOT = Path(__file__).parents[3]
PASSING = """\
#nncdbg 1
opset 18

graph @main(%x: f32[2]) -> (%y, ...) {
  %h, ... =
      @layers.0(%x) : f32[2] loc("net.py":3)
  %y = Relu(%h) : f32[2] loc("net.py":12, node "a")
  %g = Neg(%y) : f32[2]
  ... = @layers.0.backward(%g, ...)
  return %y, ...
}

graph @layers.0(%x: f32[2]) -> (%h: f32[2], ...) {
  %.a = Add(%x, %.w) : f32[2]
  %h = Mul(%.a,
      %.w)
      : f32[2]
  return %h, ...
}

graph @layers.0.backward(%g: f32[2], ...) -> (...) {
  %.w.grad = Mul(%g, %.a) : f32[2]
  return ...
}

states layers.0 {
  %.w: f32[2] = [1.0, 2.0]
  %.m: f32[2] = zeros for %.w
}
"""
"""Values that pass between graphs, states behind the graphs, and statements of several lines."""

SPELLED_OUT = """\
#nncdbg 1
opset 18

state %layers.0.w: f32[2] = [1.0, 2.0]
state %layers.0.m: f32[2] = zeros for %layers.0.w

graph @main(%x: f32[2]) -> (%y, %layers.0.w.grad: f32[2]) {
  %h: f32[2], %layers.0.a: f32[2] = @layers.0(%x) loc("net.py":3)
  %y: f32[2] = Relu(%h) loc("net.py":12, node "a")
  %g: f32[2] = Neg(%y)
  %layers.0.w.grad: f32[2] = @layers.0.backward(%g, %layers.0.a)
  return %y, %layers.0.w.grad
}

graph @layers.0(%x: f32[2]) -> (%h: f32[2], %layers.0.a: f32[2]) {
  %layers.0.a: f32[2] = Add(%x, %layers.0.w)
  %h: f32[2] = Mul(%layers.0.a, %layers.0.w)
  return %h, %layers.0.a
}

graph @layers.0.backward(%g: f32[2], %layers.0.a: f32[2]) -> (%layers.0.w.grad: f32[2]) {
  %layers.0.w.grad: f32[2] = Mul(%g, %layers.0.a)
  return %layers.0.w.grad
}
"""
"""The same program in the old notation."""

_behind = re.compile(r"^(\s*)(%\S+) = ([^#]*\)) : ([a-z0-9]+\[[^\]\"]*\])(?=$| loc\(| \|)")


def in_old_notation(text: str) -> str:
    """Return a text with the types of statements of one line in front of the call."""
    return "\n".join(_behind.sub(r"\1\2: \4 = \3", line) for line in text.split("\n"))


@cache
def texts() -> dict[str, str]:
    found = {"passing": PASSING, "spelled-out": SPELLED_OUT}
    for folder in ("examples", "tests/golden"):
        for path in sorted((ROOT / folder).glob("*.nnc")):
            text = path.read_text("utf-8")
            found[path.stem] = text
            try:
                found[f"{path.stem}-printed"] = print_program(parse(text))
            except ParseError:
                continue
            found[f"{path.stem}-old"] = in_old_notation(found[f"{path.stem}-printed"])
    return found


def document(text: str) -> Document:
    return Document("file:///a.nnc", text)


def place(of: Document, line: int, column: int) -> Place:
    return Place(of, of.analysis, *of.place_in_statement(line, column))


def width(of: Document, line: int) -> int:
    """Return the length of a line as the protocol counts it."""
    return of.units.outwards(of.lines[line], len(of.lines[line]))


def ask_all(of: Document, line: int, column: int) -> None:
    """Ask each feature about a place; ranges of the answers are in the text."""
    at = place(of, line, column)
    position = types.Position(line, column)
    hover_text(at)
    signature_help(at)
    prepared(at)
    spans = reference_spans(at)
    own = definition_span(at)
    assert own is None or own in spans
    for span in spans:
        where = of.range(span)
        assert where.start <= where.end
        assert where.end.character <= width(of, where.end.line)
    around: types.SelectionRange | None = selection_range(at)
    while around is not None and around.parent is not None:
        assert around.parent.range.start <= around.range.start <= position or around.range.end >= position
        around = around.parent
    list(code_actions(of, types.Range(position, position)))


def ask_whole(of: Document) -> None:
    list(code_lenses(of))
    list(document_links(of))
    assert all(fold.start_line < fold.end_line < len(of.lines) for fold in folding_ranges(of))
    waiting = symbols(of)
    while waiting:
        symbol = waiting.pop()
        assert symbol.range.start <= symbol.selection_range.start
        assert symbol.selection_range.end <= symbol.range.end
        waiting += symbol.children or ()
    data = encoded(of.analysis, of.units, 0, len(of.lines))
    line = column = 0
    for down, right, length in zip(data[::5], data[1::5], data[2::5], strict=True):
        line, column = line + down, right if down else column + right
        assert 0 < length <= width(of, line) - column
    everything = types.Range(types.Position(0, 0), types.Position(len(of.lines), 0))
    inlay_hints(of, everything)
    list(code_actions(of, everything))


@pytest.mark.parametrize("name", texts())
def test_features_work_at_every_position(name: str) -> None:
    of = document(texts()[name])
    ask_whole(of)
    places = [(line, column) for line, text in enumerate(of.lines) for column in range(len(text) + 1)]
    draw = random.Random(name)
    for line, column in places if name == "passing" else draw.sample(places, 40):
        ask_all(of, line, column)
    for line, column in draw.sample(places, 15):
        for item in completions(place(of, line, column)).items:
            assert isinstance(item.text_edit, types.TextEdit)
            assert item.text_edit.range.start.line == item.text_edit.range.end.line == line


def values(analysis: Analysis) -> Iterator[tuple[str, list[str]]]:
    """Yield each definition with its references, by graph and name, without those that only pass it on."""
    for chunk in analysis.chunks:
        for definition in analysis.definitions(chunk):
            spans = analysis.references(definition)
            yield (
                f"{chunk.name} {definition.name}: {definition.type}",
                [_row(analysis, span) for span in spans],
            )
    for name in analysis.states:
        mention = next(m for m in analysis.mentions(analysis.states[name]) if m.defines)
        found = analysis.definition_of(analysis.states[name], mention)
        assert found is not None
        spans = analysis.references(found)
        rows = [_row(analysis, span) for span in spans if analysis.node_at(span.line) is not None]
        yield f"state {name}: {found.type}", rows


def _row(analysis: Analysis, span: Span) -> str:
    """Return the graph of a reference, and the op or the first word of its statement."""
    node = analysis.node_at(span.line)
    what = kind_of_line(analysis.lines[span.line]) if node is None else node.op
    return f"{analysis.chunk_at(span.line).name}: {what}"


PRINTED = [name.removesuffix("-old") for name in texts() if name.endswith("-old")]


@pytest.mark.parametrize("name", PRINTED)
def test_both_notations_have_the_same_values_and_problems(name: str) -> None:
    new, old = document(texts()[f"{name}-printed"]).analysis, document(texts()[f"{name}-old"]).analysis
    assert dict(values(new)) == dict(values(old))
    found = [
        [(problem.span.line, problem.message, problem.code) for problem in analysis.problems]
        for analysis in (new, old)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", [name for name in texts() if name.endswith("-printed")])
def test_a_printed_text_keeps_its_form(name: str) -> None:
    lines = texts()[name].split("\n")
    assert formatted(lines) == lines


def test_passed_values_are_the_same_values_spelled_out() -> None:
    assert parse(PASSING) == parse(SPELLED_OUT)
    new, old = document(PASSING).analysis, document(SPELLED_OUT).analysis
    assert [problem.message for problem in new.problems] == []
    assert [problem.message for problem in old.problems if problem.severity == "error"] == []
    ours, theirs = dict(values(new)), dict(values(old))
    assert ours["state layers.0.w: f32[2]"] == theirs["state layers.0.w: f32[2]"]
    assert ours["layers.0 layers.0.a: f32[2]"] == [
        "layers.0: Add",
        "layers.0: Mul",
        "layers.0.backward: Mul",
    ]
