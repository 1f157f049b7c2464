"""`--fallback`: `run` and the prompt report ops that ran on NumPy for lack of a kernel."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nncdbg.terminal.main import main

MODEL = """#nncdbg 1
opset 18
graph @main(%x: f32[2,3]) -> (%y) {
  %a = RandomNormalLike(%x)
  %b = Relu(%a)
  %c = RandomNormalLike(%b)
  %d = RandomUniformLike(%c)
  %y = Add(%d, %b)
  return %y
}
"""
NOTES = [
    "line 4: RandomNormalLike ran on NumPy because onnxruntime has no kernel for it",
    "line 6: RandomNormalLike ran on NumPy because onnxruntime has no kernel for it",
    "line 7: RandomUniformLike ran on NumPy because onnxruntime has no kernel for it",
]

Call = Callable[..., tuple[str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """`call(*arguments, typed="")` runs the model on onnxruntime, with --fallback: (out, err)."""
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.nnc").write_text(MODEL)

    def run(*arguments: str, typed: str = "") -> tuple[str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        options = ["m.nnc", "--input", "x=ones", "--backend", "onnxruntime", "--fallback"]
        assert main([*arguments, *options]) == 0
        out, err = capsys.readouterr()
        return out, err

    return run


def test_run_lists_every_statement(call: Call) -> None:
    _, err = call("run")
    assert [line.removeprefix("note: ") for line in err.splitlines()] == NOTES


def test_run_json_lists_every_fallback(call: Call) -> None:
    out, _ = call("run", "--json")
    assert json.loads(out)["fallbacks"] == [
        {"line": 4, "op": "RandomNormalLike"},
        {"line": 6, "op": "RandomNormalLike"},
        {"line": 7, "op": "RandomUniformLike"},
    ]


@pytest.mark.parametrize("typed", ["n\n" * 5, "c\n", "until 5\nc\n", "n\nback\nn\nn\nc\n"])
def test_the_prompt_reports_each_op_once(call: Call, typed: str) -> None:
    _, err = call(typed=typed)
    assert [line.removeprefix("note: ") for line in err.splitlines()] == [NOTES[0], NOTES[2]]


def test_the_note_is_printed_at_the_step_of_the_op(call: Call) -> None:
    assert call(typed="")[1] == ""
    assert call(typed="n\nn\nn\n")[1] == f"note: {NOTES[0]}\n"


def test_info_lists_every_statement(call: Call) -> None:
    out, _ = call(typed="info fallbacks\nc\ninfo fa\n")
    assert "every statement so far ran on onnxruntime" in out
    assert out.splitlines()[-3:] == NOTES
