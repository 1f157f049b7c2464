"""`nncdbg profile`: tables of times for each kind of program, and what they are compared with."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def example(repository: Path) -> Callable[[str], str]:
    return lambda name: str(repository / "examples" / name)


def document(command: Call, *arguments: str) -> dict[str, Any]:
    code, out, err = command("profile", *arguments, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def test_kernels_and_the_time_around_and_between_add_up_to_the_run(
    command: Call, example: Callable[[str], str]
) -> None:
    found = document(command, example("first_steps.nnc"), "--runs", "5", "--warmup", "1")
    assert (found["runs"], found["warmup"], found["statements"]) == (5, 1, 35)
    assert (found["backend"], found["allocator"]) == ("numpy", "plain")
    parts = [found[name] for name in ("kernels", "around", "between")]
    assert all(part > 0 for part in parts)
    assert sum(parts) == pytest.approx(found["wall"])
    assert found["wall_min"] <= found["wall_median"]
    assert 0 < found["clock"] < found["measuring"]
    assert {row["calls"] for row in found["rows"]} == {5, 25, 30}, "warm-up runs do not count"
    assert found["steps"] is None


def test_the_text_has_the_table_and_the_time_of_nncdbg_itself(
    command: Call, example: Callable[[str], str]
) -> None:
    code, out, _ = command("profile", example("first_steps.nnc"), "--runs", "2", "--top", "3")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == [
        "share",
        "median",
        "min",
        "total",
        "calls",
        "line",
        "value",
        "op",
        "shapes",
        "where",
    ]
    assert lines[4].startswith("and 9 rows more with ")
    assert "2 runs after 3 runs, backend numpy, allocator plain" in lines
    for part in (" in kernels", " around kernels: allocation and checks", " per statement", "measuring adds"):
        assert part in out


@pytest.mark.parametrize("by", ["statement", "op", "layer", "line"])
def test_csv_has_all_rows(command: Call, example: Callable[[str], str], by: str) -> None:
    code, out, _ = command(
        "profile", example("first_steps.nnc"), "--runs", "2", "--by", by, "--csv", "--top", "1"
    )
    assert code == 0
    rows = [*csv.DictReader(io.StringIO(out))]
    assert len(rows) > 3
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1)


def test_a_training_is_profiled_by_its_steps(command: Call, example: Callable[[str], str]) -> None:
    found = document(command, example("train_mlp.nnc"), "--steps", "7", "--by", "layer")
    assert (found["runs"], found["warmup"]) == (1, 0)
    assert found["steps"]["steps"] == 7
    assert 0 < found["steps"]["min"] <= found["steps"]["median"]


def test_an_onnx_model_is_profiled_by_its_layers(command: Call, repository: Path) -> None:
    model = str(repository / "tests" / "models" / "exported" / "convolutional_script.onnx")
    rows = document(command, model, "--runs", "2", "--by", "layer")["rows"]
    assert {row["layer"] for row in rows} >= {"@main_graph", "@body"}
    rows = document(command, model, "--runs", "2")["rows"]
    assert "Conv" in {row["op"] for row in rows}
    assert any(row["where"].startswith('node "/body/') for row in rows)


def test_a_recorded_step_is_profiled_by_lines_of_its_script(command: Call, repository: Path) -> None:
    pytest.importorskip("torch")
    script = str(repository / "examples" / "torch_training.py")
    assert command("record", script, "-o", "step1")[0] == 0
    found = document(command, "step1", "--runs", "2", "--by", "line")
    assert found["backend"] == "torch"
    lines = {row["where"].rpartition("torch_training.py:")[2] for row in found["rows"]}
    source = Path(script).read_text().splitlines()
    assert any(".step()" in source[int(line) - 1] for line in lines)
    assert any(".backward()" in source[int(line) - 1] for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runs", "0"], "at least 1 run is necessary"),
        (["--runs", "1.5"], "is not a number of at least 0"),
        (["--warmup", "-1"], "is not a number of at least 0"),
        (["--by", "color"], "invalid choice"),
        (["--json", "--csv"], "cannot be combined"),
    ],
)
def test_invalid_options_are_refused(
    command: Call, example: Callable[[str], str], arguments: list[str], message: str
) -> None:
    code, out, err = command("profile", example("first_steps.nnc"), *arguments)
    assert code == 2
    assert message in out + err


def test_a_run_that_fails_ends_with_the_exit_code_of_a_run(
    command: Call, example: Callable[[str], str]
) -> None:
    code, _, err = command("profile", example("attention.nnc"), "--max-ops", "3")
    assert code == 4
    assert "after 3 statements" in err
