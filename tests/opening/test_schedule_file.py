"""A schedule as a file: read back as it was written, and bad files named in one line with a hint."""

import json
from pathlib import Path
from typing import Any

import pytest

import nncdbg
from nncdbg.engine.schedules.scheduler import with_schedule
from nncdbg.errors import UsageError
from nncdbg.opening.schedule_file import read_schedule, schedule_text

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.nnc"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_file_and_text_have_the_same_schedule(example: Path, tmp_path: Path) -> None:
    program = nncdbg.load(example)
    made = with_schedule(program, streams=3, devices={"*": "cuda:0"})
    file = tmp_path / "schedule.json"
    file.write_text(schedule_text(made))
    assert read_schedule(file, program) == made
    assert nncdbg.Program.parse(made.text()).text() == made.text()


PROGRAM = nncdbg.Program.parse(
    "graph @main(%x: f32[2]) -> (%y: f32[2]) {\n  %y: f32[2] = Neg(%x)\n  return %y\n}\n"
)


def document(graphs: Any, **fields: Any) -> str:
    return json.dumps({"nncdbg_schedule": 1, "graphs": graphs, **fields})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a schedule"),
        ("[1]", "is not a schedule"),
        ("{", "is not a schedule"),
        ("[" * 100_000, "is not a schedule"),
        (document({}, nncdbg_schedule=2), "has unsupported schedule version 2"),
        (document({"mian": {"y": "s0"}}), "the program has no graph 'mian'"),
        (document({"main": {"z": "s0"}}), "main has no statement z"),
        (document({"main": {"y": 5}}), "is not a schedule"),
        (document({"main": {"y": "q0"}}), "y of main: expected s and a number, found 'q0'"),
        (document({"main": {"y": "s0 wait"}}), "y of main: expected e and a number"),
        (document({"main": {"y": "s0 record e1 wait e2"}}), "y of main: this is not part of a margin"),
        (document({"main": {"y": "s0 {"}}), "y of main:"),
        (document({"main": {}}, streams={"x": "cuda:0"}), "'x' is not the number of a stream"),
    ],
)
def test_bad_files_are_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "schedule.json").write_text(text)
    with pytest.raises(UsageError) as raised:
        read_schedule(tmp_path / "schedule.json", PROGRAM)
    assert message in raised.value.message
    assert raised.value.hint


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the schedule"):
        read_schedule(tmp_path / "missing.json", PROGRAM)
