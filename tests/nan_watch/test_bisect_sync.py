"""A14: `nncdbg bisect --sync` names the fewest waits of the host that hide the races."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nncdbg.errors import UsageError
from nncdbg.nan_watch.commands.bisect import main

EXAMPLE = "examples/two_streams.nnc"

ORDERED = """#nncdbg 1
opset 18

graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %a: f32[4] = Relu(%x) | s0 record e1
  %y: f32[4] = Neg(%a) | s1 wait e1 record e2
  return %y | host wait e2
}
"""

FREED = """#nncdbg 1
opset 18

graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %a: f32[4] = Relu(%x) | s0
  %b: f32[4] = Neg(%x) | s0 free %a
  %y: f32[4] = Add(%a, %b) | s0 record e1
  return %y | host wait e1
}
"""


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(arguments)
    return code, capsys.readouterr().out


def test_two_races_between_two_statements_need_one_wait(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = printed(capsys, EXAMPLE, "--sync")
    assert code == 0
    assert text.startswith("1 wait of the host for all streams hides the races:\n  between lines 10 and 11\n")


def test_json_has_the_lines_and_what_was_played(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(printed(capsys, EXAMPLE, "--sync", "--schedules", "50", "--json")[1])
    assert document["sync"] == [{"after": 10, "before": 11}]
    assert (document["outcomes"], document["differing"], document["complete"]) == (2, 1, True)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [(ORDERED, 0, "there is no race to hide"), (FREED, 1, "no wait of the host hides the faults")],
)
def test_there_may_be_nothing_to_hide_or_nothing_that_hides(
    text: str, code: int, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "model.nnc"
    file.write_text(text)
    result = printed(capsys, str(file), "--sync", "--input", "x=[1,2,3,4]")
    assert result[0] == code
    assert words in result[1]


@pytest.mark.parametrize(
    "arguments",
    [["--sync", "--rtol", "1"], ["--streams", "2"], ["--schedules", "5"], ["--sync", "--schedules", "0"]],
)
def test_options_of_the_other_search_are_refused(arguments: list[str]) -> None:
    with pytest.raises((UsageError, SystemExit)):
        main([EXAMPLE, *arguments])
