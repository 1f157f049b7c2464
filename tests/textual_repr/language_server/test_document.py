"""A changed document equals a newly opened document with the same text."""

from __future__ import annotations

import random

import pytest

from nncdbg.textual_repr.language_server.document import ColumnEncoding, Document, split

TEXT = """#nncdbg 1
opset 18
prefix p "deep/er/"

graph @main(%x: f32[2,3], %c: bool[]) -> (%y: f32[2,3]) {
  %w: f32[2,3] = [[1, 2, 3], [4, 5, 6]]
  %a: f32[2,3] = Add(%x, %w)
  %p::a: f32[2,3] = Add(%a, %w)
  %p::"b c": f32[2,3] = Relu(%"deep/er/a")
  %"odd 𝒳": f32[2,3] = @layer(%p::"b c")
  while @body (%s: f32[2,3] = %"odd 𝒳") count %i: i64[] {
    %go: bool[] = Less(%i, 5)
    break unless %go
    %t: f32[2,3] = Relu(%s)
    next %s = %t
  } -> (%z: f32[2,3] = %s)
  if %c @then {
    %b: f32[2,3] = Neg(%z)
    yield %b
  } else @other {
    yield %z
  } -> (%y: f32[2,3])
  return %y
}

graph @layer(%t: f32[N,3]) -> (%u: f32[N,3]) {
  %u: f32[N,3] = Relu(%t)
  return %u
}
"""

PIECES = [
    "",
    " ",
    "\n",
    "%",
    "%x",
    "%a",
    "graph @g() -> () {\n",
    "}",
    "}\n",
    "Relu(%x)",
    "=",
    '"',
    "𝒳",
    "é",
    "\r\n",
    "%p::a",
    "p",
    "::",
    "deep/",
    'prefix q "deep/"\n',
]
PIECES += [
    "return %y\n",
    "next %s = %t\n",
    "opset 12\n",
    "# c",
    "## d\n",
    "f32[2]",
    "(",
    ")",
    "@layer",
    "axis=1",
]


def results_of(document: Document) -> list[object]:
    """Return all results of the analysis of a document."""
    analysis = document.analysis
    values = [
        (d.name, d.span, d.role, d.written, d.type, analysis.references(d))
        for chunk in analysis.chunks
        for d in analysis.definitions(chunk)
    ]
    problems = [(p.span, p.message, p.code, p.severity, p.hint, p.related) for p in analysis.problems]
    return [values, sorted(problems, key=repr), dict(analysis.opsets), list(analysis.graphs)]


@pytest.mark.parametrize("seed", range(12))
def test_a_document_after_any_edits_equals_a_new_one(seed: int) -> None:
    chance = random.Random(seed)
    document = Document("file:///a.nnc", TEXT)
    for _ in range(60):
        lines = document.lines
        first = chance.randrange(len(lines))
        last = min(len(lines) - 1, first + chance.choice([0, 0, 0, 1, 3]))
        start = chance.randrange(len(lines[first]) + 1)
        end = chance.randrange(len(lines[last]) + 1)
        if first == last:
            start, end = min(start, end), min(max(start, end), start + 3)
        units = document.units
        place = first, units.outwards(lines[first], start), last, units.outwards(lines[last], end)
        text = chance.choice(PIECES)
        wanted = "\n".join(
            [*lines[:first], lines[first][:start] + text + lines[last][end:], *lines[last + 1 :]]
        )
        document.change([(place, text)])
        assert document.lines == split(wanted)
        if chance.random() < 0.1:
            document.change([(None, TEXT)])
        assert results_of(document) == results_of(Document("file:///a.nnc", "\n".join(document.lines)))


def test_a_change_outside_a_graph_keeps_its_analysis() -> None:
    document = Document("file:///a.nnc", TEXT)
    before = document.analysis.graphs["layer"]
    document.change([((4, 0, 4, 0), "\n\n")])
    after = document.analysis.graphs["layer"]
    assert after.start == before.start + 2
    assert after.reading is before.reading
    assert after.types is before.types


def test_a_changed_callee_is_checked_in_its_callers() -> None:
    document = Document("file:///a.nnc", TEXT)
    assert [p.code for p in document.analysis.problems] == []
    line = next(i for i, text in enumerate(document.lines) if text.startswith("graph @layer"))
    column = document.lines[line].index("f32[N,3]")
    document.change([((line, column, line, column + 3), "f64")])
    assert [p.message for p in document.analysis.problems if p.span.line < line] == [
        "@layer takes f64[N,3] as %t, not f32[2,3]"
    ]


def test_a_changed_opset_checks_attributes_again() -> None:
    text = "opset 12\ngraph @main(%x: f32[2,3]) -> (%y) {\n%y = ReduceSum(%x, axes=[0])\nreturn %y\n}\n"
    document = Document("file:///a.nnc", text)
    assert [p.code for p in document.analysis.problems] == []
    document.change([((0, 6, 0, 8), "18")])
    assert [p.code for p in document.analysis.problems] == ["attribute"]
    document.change([((0, 6, 0, 8), "12")])
    assert [p.code for p in document.analysis.problems] == []


# (the encoding, a line, pairs of a character's column and the client's)
UNITS = [
    ("utf-16", "a𝒳é", [(0, 0), (1, 1), (2, 3), (3, 4)]),
    ("utf-8", "a𝒳é", [(0, 0), (1, 1), (2, 5), (3, 7)]),
    ("utf-32", "a𝒳é", [(0, 0), (1, 1), (2, 2), (3, 3)]),
    ("utf-16", "\u202eabc", [(0, 0), (1, 1), (4, 4)]),
]


@pytest.mark.parametrize(("encoding", "text", "pairs"), UNITS)
def test_columns_are_converted_for_each_encoding(
    encoding: str, text: str, pairs: list[tuple[int, int]]
) -> None:
    units = ColumnEncoding(encoding)
    assert [(own, units.outwards(text, own)) for own, _ in pairs] == pairs
    assert [(units.inwards(text, theirs), theirs) for _, theirs in pairs] == pairs
    assert units.inwards(text, 1000) == len(text)


def test_a_position_inside_a_character_is_its_start() -> None:
    assert ColumnEncoding("utf-16").inwards("𝒳", 1) == 0


@pytest.mark.parametrize(
    ("text", "lines"), [("a\r\nb\rc\n", ["a", "b", "c", ""]), ("\ufeffa", [" a"]), ("", [""])]
)
def test_a_text_is_split_at_every_line_ending(text: str, lines: list[str]) -> None:
    assert split(text) == lines


def test_a_changed_opset_checks_a_line_with_a_syntax_error_again() -> None:
    """The attributes of a statement with an invalid type are checked again too."""
    text = (
        "opset 12\ngraph @main(%x: f32[2,3]) -> (%y) {\n%y: f33[2] = ReduceSum(%x, axes=[0])\nreturn %y\n}\n"
    )
    document = Document("file:///a.nnc", text)
    assert [p.code for p in document.analysis.problems] == ["syntax"]
    document.change([((0, 6, 0, 8), "18")])
    assert [p.code for p in document.analysis.problems] == ["syntax", "attribute"]
