"""Features of the language server for names with a prefix."""

from __future__ import annotations

from nncdbg.textual_repr.language_server.code_actions import flatten, group, selected
from nncdbg.textual_repr.language_server.document import Document
from nncdbg.textual_repr.language_server.formatting import formatted
from tests.textual_repr.language_server.client import Client
from tests.textual_repr.language_server.edits import applied
from tests.textual_repr.language_server.marked import of_protocol, ranges

from .test_features import at, opened

TEXT = """#nncdbg 1
opset 18
prefix rnn "/model/rnn/"

graph @main(%x: f32[2]) -> (%y: f32[2]) {
  ⟦%rnn::h⟧: f32[2] = Relu(%x)
  %rnn::"q:0": f32[2] = Neg(⟦%rnn::h⟧) loc(node rnn::Neg)
  %rnn::z: f32[2] = Add(⟦%/model/rnn/h⟧, %rnn::"q:0")
  %y: f32[2] = Mul(%rnn::z, ⟦%"/model/rnn/h"⟧)
  return %y
}
"""


def test_definition_and_references_find_every_spelling(client: Client) -> None:
    text, marks = ranges(TEXT)
    uri = opened(client, text)
    for line, start, _ in marks:
        places = client.request_at("references", uri, line, start + 2, context={"includeDeclaration": True})
        assert sorted(of_protocol(places)) == marks
        assert of_protocol([client.request_at("definition", uri, line, start + 2)]) == marks[:1]


def test_hover_shows_the_full_name(client: Client) -> None:
    text, _ = ranges(TEXT)
    answer, _ = at(client, "hover", text.replace("Neg(%rnn::h", "Neg(%rn‸n::h"))
    assert "%/model/rnn/h: f32[2]" in answer["contents"]["value"]


def test_rename_keeps_the_prefix(client: Client) -> None:
    text, marks = ranges(TEXT)
    uri = opened(client, text)
    line, start, _ = marks[0]
    for wanted in ("/model/rnn/hidden", "rnn::hidden", "%rnn::hidden"):
        answer = client.request_at("rename", uri, line, start + 2, newName=wanted)
        edits = answer["changes"][uri]
        assert {edit["newText"] for edit in edits} == {"rnn::hidden"}
        assert sorted(of_protocol(edits)) == [(line, start + 1, end) for line, start, end in marks]


def test_completion_matches_the_label_and_the_full_name(client: Client) -> None:
    text, _ = ranges(TEXT)
    for typed in ("%rnn::h", "%/model/rnn/h", "%h"):
        answer, _ = at(client, "completion", text.replace("Neg(%rnn::h", f"Neg({typed}‸"))
        found = {item["label"]: item for item in answer["items"]}
        item = found["%rnn::h"]
        assert item["textEdit"]["newText"] == "%rnn::h"
        letters = iter(item["filterText"])
        assert all(letter in letters for letter in typed)


def test_a_changed_prefix_analyzes_its_lines_again() -> None:
    text, _ = ranges(TEXT)
    document = Document("file:///a.nnc", text)
    assert [problem.message for problem in document.analysis.problems] == []
    document.change([((2, 0, 2, 24), 'prefix rnn "/other/"')])
    messages = {problem.message for problem in document.analysis.problems if problem.code == "undefined"}
    assert messages == {"%/model/rnn/h is not defined"}
    document.change([((2, 0, 2, 20), "")])
    messages = {problem.message for problem in document.analysis.problems}
    assert "the prefix rnn is not declared" in messages


def test_formatting_keeps_the_prefixes() -> None:
    text, _ = ranges(TEXT)
    wanted = formatted(text.split("\n"))
    assert wanted[2] == 'prefix rnn "/model/rnn/"'
    assert wanted[7] == '  %rnn::z = Add(%rnn::h, %rnn::"q:0") : f32[2]'


def test_layers_are_grouped_and_flattened_with_prefixes() -> None:
    text, _ = ranges(TEXT)
    document = Document("file:///a.nnc", text)
    selection = selected(document.analysis, 6, 7)
    assert selection is not None
    grouped = applied(text, group(document, selection))
    assert "%rnn::z = @layer(%rnn::h) : f32[2]" in grouped
    again = Document("file:///a.nnc", grouped)
    assert [problem.message for problem in again.analysis.problems] == []
    line = next(i for i, row in enumerate(again.lines) if "= @layer(" in row)
    flat = Document("file:///a.nnc", applied(grouped, flatten(again, line)))
    assert [problem.message for problem in flat.analysis.problems] == []
    assert '%rnn::"q:0": f32[2] = Neg(%rnn::h)' in flat.lines[line]
