"""`track` lines: printed as they are read, with errors that point at the fault."""

from __future__ import annotations

import pytest

from nncdbg.errors import ParseError
from nncdbg.expression.tracked import parse_tracked
from nncdbg.ir.records import TrackLine
from nncdbg.textual_repr import parse
from tests.engine.tracking.programs import EVALUATE, TRACKS, TRAIN
from tests.textual_repr.language_server.marked import ranges

WHOLE = (
    TRAIN
    + TRACKS
    + '## the largest weight\ntrack "odd name#" = max(%"w") + 0 * mean(%"odd # data")\n'
    + EVALUATE
)


def test_the_text_is_printed_as_it_was_read() -> None:
    program = parse(WHOLE)
    assert program.text() == WHOLE
    assert parse(program.text()) == program


def test_a_track_belongs_to_the_line_before_it() -> None:
    (run,) = parse(WHOLE).runs
    (evaluation,) = run.evaluations
    assert [each.name for each in run.tracks] == ["acc", "loss", "norm", "odd name#"]
    assert run.tracks[-1].comment == "the largest weight"
    assert evaluation.tracks == (
        TrackLine("acc", "mean(argmax(%y, 1) == %test_labels)"),
        TrackLine("right", "sum(argmax(%y, 1) == %test_labels)"),
    )


def test_spaces_and_comments_around_an_expression() -> None:
    (run,) = parse(TRAIN + "track  a=  mean( %z )   # the mean\n").runs
    assert run.tracks == (TrackLine("a", "mean( %z )"),)


def test_an_op_with_the_name_of_the_keyword_is_quoted() -> None:
    text = '#nncdbg 1\n\ngraph @main(%x: f32[2]) -> (%y) {\n  %y = "track"(%x)\n  return %y\n}\n'
    assert parse(text).graph.nodes[0].op == "track"
    assert '"track"(%x)' in parse(text).text()


# (the lines after the run line, the message, a part of the hint); ⟦ ⟧ enclose the underlined text
FAULTS = [
    ("track acc = mean(%z⟦⟧", "expected `,` or `)`", None),
    ("track acc = ⟦foo⟧(%z)", "there is no value or function `foo`", "did you mean"),
    ("track acc = mean(%z, ⟦axs⟧=1)", "`mean` has no argument `axs`", None),
    ("track ⟦=⟧ 3", "expected the name of the track, found '='", "a track looks like"),
    ("track acc⟦⟧", "expected '=', found the end of the line", "a track looks like"),
    ("track acc =⟦⟧", "expected an expression, found the end of the line", "a track looks like"),
    ("track acc = ⟦prev(%z)⟧", "a track cannot use `prev`", "track that value"),
    ("track acc = norm(⟦grad(%l, %z)⟧)", "a track cannot use `grad`", "track that value"),
    ("track acc = ⟦$out⟧", "a track cannot read `$out`", "$step and $epoch"),
    ("track acc = ⟦$steps⟧", "a track cannot read `$steps`", "did you mean step?"),
    ("track acc = %l\ntrack ⟦acc⟧ = %l", "two tracks of `run` lines are named acc", "another name"),
    (
        "track acc = %l\nevaluate @predict for %x batch 2\ntrack a = max(%y)\ntrack ⟦a⟧ = min(%y)",
        "two tracks of `evaluate` lines are named a",
        "another name",
    ),
]


@pytest.mark.parametrize(("lines", "message", "hint"), FAULTS, ids=[each[0] for each in FAULTS])
def test_faults_are_underlined(lines: str, message: str, hint: str | None) -> None:
    text, (place,) = ranges(TRAIN + lines)
    with pytest.raises(ParseError) as raised:
        parse(text)
    (error,) = raised.value.errors
    assert message in error.message
    assert error.excerpt is not None
    start, width = error.excerpt.column - 1, error.excerpt.width
    assert (error.excerpt.line - 1, start) == place[:2]
    assert width == max(1, place[2] - place[1])
    assert hint is None or hint in (error.hint or "")


INSIDE = TRAIN.replace("  return %l", "track a = 1\n  return %l")


@pytest.mark.parametrize("text", ["track a = 1\n" + TRAIN, INSIDE])
def test_a_track_needs_a_run(text: str) -> None:
    with pytest.raises(ParseError, match="track without a run"):
        parse(text)


@pytest.mark.parametrize(
    ("expression", "values", "data"),
    [
        ("mean(argmax(%y, 1) == %labels)", {"y"}, ("labels",)),
        ("%labels.mean() / %labels/2", set(), ("labels",)),
        ("mean(%a/b) + %c/2", {"a/b"}, ("c",)),
        ("%h.T @ %h", {"h"}, ()),
        ("max(h) + $step", {"h"}, ()),
        ('sum(%"odd name")', set(), ("odd name",)),
    ],
)
def test_names_that_no_value_has_are_data(expression: str, values: set[str], data: tuple[str, ...]) -> None:
    found = parse_tracked(expression, {"y", "h", "a/b"})
    assert found.data == data
    assert found.expression.names == values | {*data}


def test_a_prefix_of_the_text_is_a_prefix_in_tracks() -> None:
    text = TRAIN.replace("opset 18\n", 'opset 18\nprefix deep "deep/"\n').replace("%z", "%deep::z")
    (run,) = parse(text + "track a = mean(%deep::z)\n").runs
    assert run.tracks[0].expression == "mean(%deep::z)"
