"""Diagnostics: all errors of a text, each underlined at its cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from nncdbg.errors import ParseError
from nncdbg.textual_repr import parse
from nncdbg.textual_repr.language_server.document import Document
from nncdbg.textual_repr.language_server.tokens import Problem
from tests.textual_repr.language_server.marked import of_spans, ranges
from tests.textual_repr.test_groups import TRAINING

HEAD = "#nncdbg 1\nopset 18\ngraph @main(%x: f32[2,3], %c: bool[], %n: i64[]) -> (%out: f32[2,3]) {\n"
TAIL = "\n%out = Relu(%x)\nreturn %out\n}\n"
LAYER = "graph @layer(%t: f32[N,3]) -> (%u: f32[N,3]) {\n%u = Relu(%t)\nreturn %u\n}\n"


def problems(text: str) -> list[Problem]:
    return list(Document("file:///a.nnc", text).analysis.problems)


# (statements with the underlined text, the code of each mark, a part of the first message)
TABLE = [
    ("⟦%_a⟧ = Identity(%x)", "unused", "%_a is never used"),
    ("⟦%a⟧ = Relu(⟦%zz⟧)", "unused undefined", "%a is never used"),
    ("⟦%a⟧ = Relu(%x)\n⟦%a⟧ = Neg(%x)", "unused redefined", ""),
    ("Relu(%x, ⟦%x, %n⟧)", "arity", "Relu takes 1 operand, not 3"),
    ("⟦Relu⟧()", "arity", "Relu takes 1 operand, not 0"),
    ("Conv(%x, ⟦_⟧)", "arity", "Conv needs its operand W"),
    ("%b, ⟦%d⟧ = Relu(%x)\nAdd(%b, %d)", "arity", "Relu has 1 output, not 2"),
    ("Softmax(%x, ⟦axes⟧=1)", "attribute", "Softmax has no attribute 'axes'"),
    ("Softmax(%x, ⟦axis=1.5⟧)", "attribute", "not an integer"),
    ("⟦Concat⟧(%x, %x)", "attribute", "Concat needs the attribute 'axis'"),
    ("Softmax(%x, ⟦a⟧=1, ⟦b⟧=2)", "attribute attribute", "no attribute 'a'"),
    ("⟦Frob⟧(%x)", "unknown-op", "ONNX has no op Frob"),
    ("⟦Reluu⟧(%x)", "unknown-op", "ONNX has no op Reluu"),
    ("⟦my.Frob⟧(%x)", "unknown-op", "my.Frob has an unknown domain"),
    ("MatMul(%x, ⟦%x⟧)", "type", "a has 3 columns, but b has 2 rows"),
    ("⟦%y⟧: ⟦f32[5]⟧ = Relu(%x)", "unused type", ""),
    ("⟦%y⟧ = ⟦@layr⟧(%x)", "unused unknown-graph", ""),
    ("⟦%y⟧ = ⟦@layer⟧(%x, %x)", "unused arity", ""),
    ("⟦%y⟧ = @layer(⟦%n⟧)", "unused type", ""),
    ("⟦%y⟧: ⟦f32[7,3]⟧ = @layer(%x)", "unused type", ""),
    ("if ⟦%n⟧ {\nyield %x\n} else {\nyield %x\n}", "type", "the condition must be a bool, not i64[]"),
    ("if %c {\nyield %x\n} else {\nyield %x\n} -> (⟦%y⟧: ⟦i64[2]⟧)", "unused type", ""),
    ("while (%s: f32[2,3] = ⟦%q⟧) {\nnext %s = %s\n}", "undefined", "%q is not defined"),
    ("while (%s: ⟦i64[]⟧ = %x) {\nnext %s = %s\n}", "type", "%s is declared i64[]"),
    ("while (%s: f32[2,3] = %x) {\n%t = Shape(%s)\nnext %s = ⟦%t⟧\n}", "type", "%t is i64[2]"),
    ("while (%s: f32[2,3] = %x) {\n⟦return %s⟧\n}", "syntax", "return in a loop's body"),
    ("⟦%k⟧: i64[2] = [1, 2]", "unused", "%k is never used"),
    ("%k: i64[3] = ⟦[1, 2]⟧\nRelu(%k)", "syntax", "the data has the sizes [2]"),
    ("%y = Relu(%x ⟦foo⟧)\nNeg(%y)", "syntax", "expected ',' or ')'"),
]


@pytest.mark.parametrize(("statements", "codes", "message"), TABLE)
def test_each_problem_is_underlined(statements: str, codes: str, message: str) -> None:
    text, marks = ranges(HEAD + statements + TAIL + LAYER)
    called = "@layer" in statements
    found = [p for p in problems(text) if called or "@layer is never called" not in p.message]
    assert (of_spans(p.span for p in found), [p.code for p in found]) == (marks, codes.split())
    assert message in found[0].message


def test_a_valid_text_has_no_problems() -> None:
    assert problems(HEAD.rstrip() + TAIL) == []


def test_a_second_definition_refers_to_the_first() -> None:
    found = problems(HEAD + "%a = Relu(%x)\n%a = Relu(%x)\nNeg(%a)" + TAIL)
    assert [(p.code, of_spans(s for s, _ in p.related)) for p in found] == [("redefined", [(3, 0, 13)])]


def test_a_second_graph_of_a_name_refers_to_the_first() -> None:
    text = (
        HEAD
        + "Neg(%x)"
        + TAIL
        + LAYER
        + LAYER
        + "graph @b() -> () {\n%x: f32[1,3] = [[1,1,1]]\n@layer(%x)\nreturn\n}"
    )
    found = [p for p in problems(text) if p.code == "redefined"]
    assert [(p.span.line, [s.line for s, _ in p.related]) for p in found] == [(11, [7])]


def test_problems_have_severities() -> None:
    found = problems(HEAD + "%a = Frob(%x)\nmy.Frob(%q)" + TAIL)
    assert [(p.code, p.severity) for p in found] == [
        ("unused", "hint"),
        ("unknown-op", "warning"),
        ("unknown-op", "information"),
        ("undefined", "error"),
    ]


def test_types_flow_through_calls_blocks_and_loops() -> None:
    body = """%y = @layer(%x)
if %c {
%a = Neg(%y)
yield %a
} else {
yield %y
} -> (%z)
while (%s: f32[2,3] = %z) times %n {
%t = Add(%s, 1)
next %s = %t collect %t
} -> (%w = %s, %all = collect[0])
Identity(%w)
Identity(%all)"""
    document = Document("file:///a.nnc", HEAD + body + TAIL + LAYER)
    analysis = document.analysis
    assert list(analysis.problems) == []
    types = {d.name: str(d.type) for d in analysis.definitions(analysis.graphs["main"])}
    assert {name: types[name] for name in ("y", "a", "z", "t", "w", "all")} == {
        "y": "f32[2,3]",
        "a": "f32[2,3]",
        "z": "f32[2,3]",
        "t": "f32[2,3]",
        "w": "f32[2,3]",
        "all": "f32[?,2,3]",
    }


FOLDER = Path(__file__).parents[1] / "errors"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.nnc")), ids=lambda path: path.stem)
def test_errors_of_the_parser_are_diagnostics(path: Path) -> None:
    """The language server reports every error of the parser at the same place."""
    text = path.read_text("utf-8")
    try:
        parse(text)
        wanted = set()
    except ParseError as error:
        wanted = {(e.excerpt.line, e.excerpt.column, e.message) for e in error.errors if e.excerpt}
    found = {(p.span.line + 1, p.span.start + 1, p.message) for p in problems(text)}
    assert wanted <= found


def test_groups_and_operands_in_place_have_diagnostics() -> None:
    assert problems(TRAINING) == []
    (wrong,) = problems(TRAINING.replace("%half = Mul(%g, 0.5)", "%half = Mul(%g, 0.5, 1.0)"))
    assert (wrong.span.line, wrong.message) == (14, "Mul takes 2 operands, not 3")
    (wrong,) = problems(TRAINING.replace("MatMul(%x, %layer.w)", "MatMul(%layer.w, %layer.w)"))
    assert (wrong.span.line, wrong.message) == (21, "a has 2 columns, but b has 3 rows")
    (wrong,) = problems(TRAINING.replace("by (%params)", "by (%layer.w)"))
    assert (wrong.span.line, wrong.message) == (15, "%half has no value for %layer.b")


def test_an_edit_of_a_group_or_a_backward_line_changes_the_graphs_that_use_it() -> None:
    document = Document("file:///a.nnc", TRAINING)
    assert not document.analysis.problems
    for old, new in (("by (%params)", "by (%layer.w)"), ("= %layer.w, %layer.b", "= %layer.w")):
        text = TRAINING.replace(old, new)
        document.change([(None, text)])
        fresh = [(each.span, each.message) for each in problems(text)]
        assert [(each.span, each.message) for each in document.analysis.problems] == fresh
