"""`nncdbg autotune`: its output, the kernel file, and runs with the choice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import nncdbg
from nncdbg.commands.execute import execute
from nncdbg.terminal.main import main

PROGRAM = """graph @main(%x: f32[2,4]) -> (%y: f32[2,4]) {
  %r = RandomNormalLike(%x)
  %h = Exp(%x)
  %z = Add(%h, %r)
  %y = Softmax(%z)
  return %y
}
"""

TRAINING = Path(__file__).parents[3] / "examples" / "train_mlp.nnc"

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.nnc").write_text(PROGRAM, encoding="utf-8")


def test_each_statement_has_a_line_with_its_kernels(capsys: Capture) -> None:
    assert main(["autotune", "m.nnc", "--candidate", "numpy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "line 2: RandomNormalLike %r: left out: it draws random numbers"
    assert [line.partition(": numpy ")[0] for line in lines[1:4]] == [
        "line 3: Exp %h",
        "line 4: Add %z",
        "line 5: Softmax %y",
    ]
    assert lines[4] == "0 of 4 statements run faster on another backend than numpy, by 0 us per run"


def test_a_run_pins_the_choice_of_a_kernel_file(capsys: Capture) -> None:
    """E7: the choice of autotune is written, read and recorded in the result of a run."""
    pytest.importorskip("onnxruntime")
    options = ["--candidate", "numpy", "--candidate", "onnxruntime", "-o", "k.json"]
    assert main(["autotune", "m.nnc", *options]) == 0
    assert "wrote k.json: nncdbg run m.nnc --kernels k.json" in capsys.readouterr().err
    kernels = nncdbg.read_kernels("k.json")
    assert {*kernels} == {"%h", "%z", "%y"}
    assert main(["run", "m.nnc", "--kernels", "k.json", "--kernel", "%h=onnxruntime", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["backend"] == "numpy"
    assert {f"%{each['value']}": each["backend"] for each in found["kernels"]} == {
        **kernels,
        "%h": "onnxruntime",
    }
    assert {each["reason"] for each in found["kernels"]} == {"chosen"}


def test_outputs_are_those_of_a_run_without_autotune(capsys: Capture) -> None:
    """E9: `nncdbg autotune` and a choice of the same kernels change no bit of an output."""
    plain = nncdbg.run("m.nnc", seed=5)
    assert main(["autotune", "m.nnc", "--candidate", "numpy", "-o", "k.json", "--seed", "5"]) == 0
    chosen = nncdbg.run("m.nnc", seed=5, kernels=nncdbg.read_kernels("k.json"))
    assert chosen["y"].tobytes() == plain["y"].tobytes()


def test_the_document_has_the_measurements(capsys: Capture) -> None:
    assert main(["autotune", "m.nnc", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nncdbg_kernels"] == 1
    assert {*found["kernels"]} == {"%h", "%z", "%y"}
    exp = next(each for each in found["statements"] if each["op"] == "Exp")
    assert exp["kernels"][0]["backend"] == "numpy"
    assert exp["kernels"][0]["seconds"] > 0


def test_a_failing_program_has_the_exit_code_of_a_run(capsys: Capture) -> None:
    Path("m.nnc").write_text(PROGRAM.replace("Exp(%x)", "nowhere.Exp(%x)"), encoding="utf-8")
    assert main(["autotune", "m.nnc", "-o", "k.json"]) == 3
    assert "nowhere.Exp has no kernel" in capsys.readouterr().err
    assert not Path("k.json").exists()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "cannot read the kernel file k.json: No such file"),
        ("{", "k.json is not a kernel file"),
        ("[]", "k.json is not a kernel file"),
        ('{"nncdbg_kernels": 1, "kernels": {"Exp": 3}}', "k.json is not a kernel file"),
        ('{"nncdbg_kernels": 2, "kernels": {}}', "unsupported kernel file version 2"),
        ('{"nncdbg_kernels": 1, "kernels": {"%gone": "numpy"}}', "no statement with a kernel matches %gone"),
        ('{"nncdbg_kernels": 1, "kernels": {"3 Add": "numpy"}}', "no statement with a kernel matches 3 Add"),
    ],
)
def test_a_wrong_kernel_file_is_an_error(content: str | None, error: str, capsys: Capture) -> None:
    if content is not None:
        Path("k.json").write_text(content, encoding="utf-8")
    assert main(["run", "m.nnc", "--kernels", "k.json"]) == 2
    assert error in capsys.readouterr().err


def test_info_kernels_lists_the_choice() -> None:
    pytest.importorskip("onnxruntime")
    debugger = nncdbg.Debugger("m.nnc", kernels={"Exp": "onnxruntime"})
    assert execute(debugger, "info kernels").splitlines() == [
        "line 3: Exp %h: onnxruntime (chosen by Exp)",
        "3 other statements: numpy",
    ]
    plain = nncdbg.Debugger("m.nnc")
    assert execute(plain, "info kernels") == "all statements: numpy"


def test_a_run_in_a_journal_keeps_its_kernels() -> None:
    pytest.importorskip("onnxruntime")
    from nncdbg.opening.configuration import RunConfiguration
    from nncdbg.opening.programs import open_program

    nncdbg.run(nncdbg.load(TRAINING, steps=2), journal="run.db", kernels={"Tanh": "onnxruntime"})
    opened = open_program(RunConfiguration(program="run.db@1"))
    assert opened.configuration.kernels == {"Tanh": "onnxruntime"}
    assert any(each.reason == "chosen" for each in opened.debugger().loaded.kernels())
