"""`track` lines in an editor: problems, completion, hover, definitions, renaming, colors, formatting."""

from __future__ import annotations

import pytest
from lsprotocol import types

from nncdbg.textual_repr.language_server.completion import completions
from nncdbg.textual_repr.language_server.decorations import TYPES, encoded
from nncdbg.textual_repr.language_server.document import Document, Place
from nncdbg.textual_repr.language_server.documentation import hover_text
from nncdbg.textual_repr.language_server.formatting import formatted
from nncdbg.textual_repr.language_server.tokens import Problem
from tests.engine.tracking.programs import EVALUATE, TRACKS, TRAIN
from tests.textual_repr.language_server.marked import cursor, of_spans, ranges


def document(text: str) -> Document:
    return Document("file:///a.nnc", text)


def place(lines: str) -> Place:
    text, line, column = cursor(TRAIN + lines)
    found = document(text)
    return Place(found, found.analysis, line, column)


def problems(text: str) -> list[Problem]:
    """Return the problems of a text, which may leave the graph of the evaluation uncalled."""
    return [each for each in document(text).analysis.problems if not each.message.startswith("@predict")]


def labels(lines: str) -> list[str]:
    items = completions(place(lines)).items
    return [item.label for item in sorted(items, key=lambda item: item.sort_text or "")]


def hover(lines: str) -> str | None:
    here = place(lines)
    token = here.analysis.token_at(here.line, here.column)
    assert token is not None
    return hover_text(here)


@pytest.mark.parametrize(
    ("lines", "message", "severity"),
    [
        ("track a = ⟦foo⟧(%z)", "there is no value or function `foo`", "error"),
        ("track a = mean(%z⟦⟧", "expected `,` or `)`", "error"),
        ("track a = mean(⟦%labels⟧)", "%labels is data: no graph of the step computes it", "information"),
        ("track a = %l\ntrack ⟦a⟧ = %l", "two tracks of `run` lines are named a", "error"),
    ],
)
def test_problems_have_their_place(lines: str, message: str, severity: str) -> None:
    text, marks = ranges(TRAIN + lines)
    (problem,) = problems(text)
    assert message in problem.message
    assert problem.severity == severity
    (span,) = of_spans([problem.span])
    assert span[:2] == marks[0][:2]


def test_a_text_with_tracks_has_no_problem_but_notes_on_its_data() -> None:
    found = problems(TRAIN + TRACKS + EVALUATE)
    assert [each.message.split()[0] for each in found] == ["%labels", "%test_labels", "%test_labels"]


def test_a_value_that_only_a_track_uses_is_used() -> None:
    text = TRAIN.replace(
        "  return %l\n", "  %hits: i64[N] = ArgMax(%x, axis=1, keepdims=0)\n  return %l\n", 1
    )
    (problem,) = problems(text)
    assert problem.message == "%hits is never used"
    assert problems(text + "track a = mean(%hits)\n") == []


def test_completion_offers_the_values_of_the_step_and_functions() -> None:
    found = labels("track a = ‸")
    assert found.index("%l") < found.index("mean")
    for name in ("%z", "%y", "%w", "%d_w", "argmax"):
        assert name in found
    assert not {"prev", "grad", "Relu", "%test_x"} & {*found}
    assert {*labels("track a = mean(%‸)")} == {name for name in found if name[0] == "%"}
    assert "track" in labels("‸")


def test_completion_after_an_evaluation_offers_the_values_of_its_graph() -> None:
    found = labels("evaluate @predict for %x batch 2\ntrack a = mean(%‸)")
    assert "%y" in found
    assert "%z" not in found


def test_hover() -> None:
    value = hover("track a = mean(%‸z)")
    assert value is not None
    assert "%z: f32[N,3]" in value
    function = hover("track a = arg‸max(%z, 1)")
    assert function is not None
    assert "argmax(x, [axis], [keepdims])" in function
    assert hover("track a = mean(%la‸bels)") is None
    keyword = hover("tra‸ck a = %l")
    assert keyword is not None
    assert "a number that each step computes" in keyword


def test_references_include_tracks() -> None:
    text, marks = ranges(
        TRAIN.replace("%z = @net", "⟦%z⟧ = @net").replace("Loss(%z,", "Loss(⟦%z⟧,")
        + "track a = mean(⟦%z⟧) + max(⟦%z⟧)\ntrack b = %l\n"
    )
    analysis = document(text).analysis
    line = marks[-1][0]
    mention = analysis.mention_at(line, marks[-1][1] + 1)
    assert mention is not None
    definition = analysis.definition_of(line, mention)
    assert definition is not None
    assert of_spans(analysis.references(definition)) == marks


def test_colors() -> None:
    found = document(TRAIN + "track a = mean(argmax(%z, axis=1) == %labels)  # all\n")
    line = len(found.lines) - 2
    data = encoded(found.analysis, found.units, line, line + 1, line)
    words, column = [], 0
    for at in range(0, len(data), 5):
        column += data[at + 1]
        words.append((found.lines[line][column : column + data[at + 2]], TYPES[data[at + 3]]))
    for expected in (
        ("track", "keyword"),
        ("mean", "function"),
        ("argmax", "function"),
        ("%z", "variable"),
        ("1", "number"),
        ("# all", "comment"),
    ):
        assert expected in words


def test_formatting_keeps_comments_and_is_stable() -> None:
    text = TRAIN + "# before\n## of a\ntrack   a   =  mean( %z )  # behind\n" + EVALUATE
    once = formatted(text.split("\n"))
    assert "# before" in once
    assert once[once.index("# before") + 1 :][:2] == ["## of a", "track a = mean( %z )  # behind"]
    assert formatted(once) == once


def test_the_keyword_is_a_completion_item_of_the_client() -> None:
    item = next(each for each in completions(place("‸")).items if each.label == "track")
    assert item.kind == types.CompletionItemKind.Keyword
