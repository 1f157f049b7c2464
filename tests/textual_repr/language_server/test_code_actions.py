"""Quick fixes and rewriting as the text before and after, and inlay hints of omitted types."""

from __future__ import annotations

import pytest
from lsprotocol import types

from nncdbg.textual_repr.language_server.code_actions import code_actions
from nncdbg.textual_repr.language_server.decorations import inlay_hints
from nncdbg.textual_repr.language_server.document import Document
from tests.textual_repr.language_server.edits import applied

HEAD = "opset 18\ngraph @main(%input: f32[2,3], %c: bool[]) -> (%out: f32[2,3]) {\n"
TAIL = "\n%out = Relu(%input)\nreturn %out\n}"

# (the lines, a part of the title, the lines after it)
TABLE = [
    ("%_a = Relu(%inptu)", "Replace by %input", "%_a = Relu(%input)"),
    ("%_a = Reluu(%input)", "Replace by Relu", "%_a = Relu(%input)"),
    ("%_a = Softmax(%input, axes=1)", "Replace by axis", "%_a = Softmax(%input, axis=1)"),
    ("%_a: f23[2,3] = Relu(%input)", "Replace by f32", "%_a: f32[2,3] = Relu(%input)"),
    ("%_a = @mian(%input, %c)", "Replace by @main", "%_a = @main(%input, %c)"),
    ("%a:0 = Relu(%input)", 'Quote the name: %"a:0"', '%"a:0" = Relu(%input)'),
    ("%a-b: f32[2,3] = Relu(%input)", 'Quote the name: %"a-b"', '%"a-b": f32[2,3] = Relu(%input)'),
    (
        "%a:0 = Relu(%input)\n%b = Add(%a:0, %a:0)",
        'Quote the name: %"a:0"',
        '%"a:0" = Relu(%input)\n%b = Add(%"a:0", %"a:0")',
    ),
    ("%é = Relu(%input)", 'Quote the name: %"é"', '%"é" = Relu(%input)'),
    ("%a = Relu(%input)", "Remove the statement that defines %a", None),
    ("## of a\n%a: i64[] = 5", "Remove the statement that defines %a", None),
    ("%a, %i = TopK(%input, [1])\nNeg(%a)", "Omit %i", "%a, _ = TopK(%input, [1])\nNeg(%a)"),
    (
        "%a: f32[2,1], %i: i64[2,1] = TopK(%input, [1])\nNeg(%i)",
        "Omit %a",
        "_, %i: i64[2,1] = TopK(%input, [1])\nNeg(%i)",
    ),
    (
        "if %c {\nyield %c\n} else {\nyield %c\n} -> (%a: bool[])",
        "Omit %a",
        "if %c {\nyield %c\n} else {\nyield %c\n} -> (_)",
    ),
    (
        "while (%s = %input) count %i: i64[] times 2 {\nnext %s = %s\n}",
        "Omit %i",
        "while (%s = %input) times 2 {\nnext %s = %s\n}",
    ),
    (
        "while (%s = %input) {\nnext %s = %s collect %s\n} -> (%a = %s, %b = collect[0])",
        "Omit %a",
        "while (%s = %input) {\nnext %s = %s collect %s\n} -> (%b = collect[0])",
    ),
    (
        "while (%s = %input) {\nnext %s = %s collect %s\n} -> (%a = %s, %b: f32[?,2,3] = collect[0])",
        "Omit %b",
        "while (%s = %input) {\nnext %s = %s collect %s\n} -> (%a = %s)",
    ),
    ("%_a = Relu(%input)", "Write the type: %_a: f32[2,3]", "%_a = Relu(%input) : f32[2,3]"),
    (
        "%a = Relu(%input)\n%b = Greater(%a, 1)",
        "Write 2 missing types",
        "%a = Relu(%input) : f32[2,3]\n%b = Greater(%a, 1) : bool[2,3]",
    ),
    (
        "%a: f32[2,1], %i = TopK(%input, [1])\nNeg(%a)\nNeg(%i)",
        "Write the type: %i: i64[2,?]",
        "%a: f32[2,1], %i: i64[2,?] = TopK(%input, [1])\nNeg(%a)\nNeg(%i)",
    ),
    (
        "%a, %i = TopK(%input, [1]) : f32[2,1], _\nNeg(%a)\nNeg(%i)",
        "Write the type: %i: i64[2,?]",
        "%a, %i = TopK(%input, [1]) : f32[2,1], i64[2,?]\nNeg(%a)\nNeg(%i)",
    ),
    (
        "%a, %i = TopK(%input,\n  [1])\nNeg(%a)",
        "Omit %i",
        "%a, _ = TopK(%input,\n  [1])\nNeg(%a)",
    ),
    (
        "%a = Relu(%input)\n  : f32[2,3]",
        "Remove the statement that defines %a",
        None,
    ),
    (
        "%a = aten.detach(%input)",
        "Remove the view",
        None,
    ),
]


def actions(document: Document, first: int, last: int) -> list[types.CodeAction]:
    place = types.Range(types.Position(first, 0), types.Position(last, len(document.lines[last])))
    return list(code_actions(document, place))


@pytest.mark.parametrize(("before", "title", "after"), TABLE, ids=[f"{r[1]}: {r[0][:20]}" for r in TABLE])
def test_an_action_makes_the_edit_of_its_title(before: str, title: str, after: str | None) -> None:
    document = Document("file:///a.nnc", HEAD + before + TAIL)
    found = [a for a in actions(document, 2, 2 + before.count("\n")) if a.title.startswith(title)]
    assert found, [a.title for a in actions(document, 2, 2 + before.count("\n"))]
    edit = found[0].edit
    assert edit is not None
    assert edit.changes is not None
    expected = HEAD + after + TAIL if after is not None else HEAD + TAIL.lstrip()
    text = applied(document.text, edit.changes[document.uri])
    assert text == expected
    problems = Document("file:///a.nnc", text).analysis.problems
    assert [p.message for p in problems if p.severity in ("error", "warning")] == []


def test_an_uncalled_graph_can_be_removed() -> None:
    text = HEAD + TAIL.lstrip() + "\n\n## spare\ngraph @spare() -> () {\nreturn\n}\n"
    document = Document("file:///a.nnc", text)
    line = document.lines.index("graph @spare() -> () {")
    (found,) = [a for a in actions(document, line, line) if a.title == "Remove @spare"]
    assert found.edit is not None
    assert found.edit.changes is not None
    assert applied(text, found.edit.changes[document.uri]) == HEAD + TAIL.lstrip() + "\n"


@pytest.mark.parametrize(
    "line", ["%a: f32[2,3] = Relu(%input)", "%a:f32[2,3] = Relu(", "%a: seq(f32[2]) = F("]
)
def test_valid_names_are_not_quoted(line: str) -> None:
    document = Document("file:///a.nnc", HEAD + line + TAIL)
    assert not [a for a in actions(document, 2, 2) if a.title.startswith("Quote")]


def test_omitted_types_are_hints_in_the_requested_lines() -> None:
    text = HEAD + '%a = Relu(%input)\n%"é" = Neg(%a)\n%b: f32[2,3] = Neg(%a)\nFrob(%a)\n%d = my.Op(%a)' + TAIL
    document = Document("file:///a.nnc", text)
    place = types.Range(types.Position(2, 0), types.Position(6, 0))
    found = [(h.position.line, h.position.character, h.label) for h in inlay_hints(document, place)]
    assert found == [(2, 17, " : f32[2,3]"), (3, 14, " : f32[2,3]")]
    (hint,) = inlay_hints(document, types.Range(types.Position(3, 0), types.Position(3, 1)))
    assert hint.text_edits is not None
    assert applied(text, hint.text_edits).split("\n")[3] == '%"é" = Neg(%a) : f32[2,3]'


def test_hints_are_inside_the_text() -> None:
    document = Document("file:///a.nnc", HEAD + TAIL.lstrip())
    found = inlay_hints(document, types.Range(types.Position(0, 0), types.Position(900, 0)))
    assert [hint.label for hint in found] == [" : f32[2,3]"]
