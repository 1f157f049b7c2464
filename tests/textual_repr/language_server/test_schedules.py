"""The language server shows the problems of a schedule at the margins."""

from pathlib import Path

from nncdbg.textual_repr.language_server.analyzer import schedule_problems

EXAMPLE = Path(__file__).parents[3] / "examples" / "two_streams.nnc"


def test_problems_are_at_the_margins_with_the_other_statement() -> None:
    lines = EXAMPLE.read_text().splitlines()
    race = next(each for each in schedule_problems(lines) if each.code == "race")
    assert lines[race.span.line][race.span.start : race.span.end] == "| s0 wait e2"
    assert "s1 writes %scaled at line 10" in race.message
    assert [place.line for place, _ in race.related] == [9]


def test_a_text_with_errors_or_without_schedule_has_no_such_problem() -> None:
    lines = EXAMPLE.read_text().splitlines()
    assert not [*schedule_problems([*lines, "%broken = | s1"])]
    assert not [*schedule_problems(["graph @main() -> () {", "  return", "}", "# a | b"])]
