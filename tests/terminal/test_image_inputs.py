"""Images as inputs of the commands: an ONNX classifier on pictures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg.commands.recording.setup import setup_of
from nncdbg.engine.inputs.data_specs import FORMS
from nncdbg.opening.configuration import INPUT_FORMS
from nncdbg.target.program import ProgramTarget
from nncdbg.terminal.main import main
from tests.models.colour_classifier import COLOURS, picture, save_classifier

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    return save_classifier(tmp_path)


@pytest.mark.parametrize("colour", COLOURS)
def test_run_classifies_a_picture(classifier: Path, tmp_path: Path, capsys: Capture, colour: str) -> None:
    spec = f"image={picture(tmp_path, colour)}:imagenet,resize"
    assert main(["run", str(classifier), "--json", "--input", spec, "--save-outputs", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["notes"] == [f"input %image: {colour}.png, 64x48 RGB, resized to 16x16, imagenet, NCHW"]
    assert int(np.load(document["outputs"][0]["file"]).argmax()) == COLOURS.index(colour)


def test_run_prints_the_conversion(classifier: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["run", str(classifier), "--input", f"image={picture(tmp_path, 'red')}:/255,crop"]) == 0
    note = "note: input %image: red.png, 64x48 RGB, scaled and cropped to 16x16, /255, NCHW\n"
    assert capsys.readouterr().err == note


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("", "the scale from 0..255 to f32 is missing"),
        (":/255", "the image is 64x48, but the input needs 16x16 (width x height)"),
        (":/255,resise", "did you mean resize?"),
    ],
)
def test_a_picture_that_does_not_fit_is_wrong_usage(
    classifier: Path, tmp_path: Path, capsys: Capture, steps: str, message: str
) -> None:
    path = picture(tmp_path, "red")
    assert main(["run", str(classifier), "--input", f"image={path}{steps}"]) == 2
    assert message in capsys.readouterr().err
    path.write_bytes(path.read_bytes()[:60])
    assert main(["run", str(classifier), "--input", f"image={path}:/255,resize"]) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_watch_reports_the_conversion(classifier: Path, tmp_path: Path, capsys: Capture) -> None:
    spec = f"image={picture(tmp_path, 'blue')}:/255,resize"
    assert main(["watch", str(classifier), "--json", "--input", spec]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert "input %image: blue.png, 64x48 RGB, resized to 16x16, /255, NCHW" in notes


def test_prompt_sets_a_value_from_a_picture(classifier: Path, tmp_path: Path, capsys: Capture) -> None:
    script = tmp_path / "commands"
    path = picture(tmp_path, "green")
    lines = [f"set %image = {path}:/255,resize", f'load %image = "{path}:raw,crop"', "info inputs", "quit"]
    script.write_text("\n".join(lines))
    assert main([str(classifier), "--input", f"image={path}:imagenet,crop", "-x", str(script)]) == 0
    out = capsys.readouterr().out
    assert "%image: green.png, 64x48 RGB, resized to 16x16, /255, NCHW" in out
    assert "%image: green.png, 64x48 RGB, scaled and cropped to 16x16, raw 0..255, NCHW" in out
    assert "  input %image: green.png, 64x48 RGB, scaled and cropped to 16x16, imagenet, NCHW" in out


def test_without_pillow_commands_end_with_a_hint(
    classifier: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = f"image={picture(tmp_path, 'red')}:/255"
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert main(["run", str(classifier), "--input", spec]) == 2
    assert f"hint: run {sys.executable} -m pip install pillow" in capsys.readouterr().err


def test_python_takes_paths(classifier: Path, tmp_path: Path) -> None:
    outputs = nncdbg.run(classifier, {"image": f"{picture(tmp_path, 'blue')}:/255,resize"})
    assert outputs["probs"].argmax() == 2


def test_recordings_keep_the_path_of_an_input(tmp_path: Path) -> None:
    program = nncdbg.parse("graph @main(%x: u8[48,64,3]) -> (%y) {\n  %y = Identity(%x)\n  return %y\n}\n")
    debugger = nncdbg.Debugger(program, {"x": picture(tmp_path, "blue")})
    assert setup_of(ProgramTarget(debugger), "m.nnc").inputs["x"].given == str(tmp_path / "blue.png")


def test_help_and_errors_list_the_same_forms() -> None:
    assert INPUT_FORMS.removesuffix("[SIZES]") in FORMS
