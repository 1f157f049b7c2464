"""Images as inputs of the commands: an ONNX classifier that is run on pictures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import nncdbg
from nncdbg.engine.data_specs import FORMS
from nncdbg.terminal.main import main
from nncdbg.terminal.options import INPUT_FORMS
from nncdbg.terminal.recorded_setup import setup_of

Capture = pytest.CaptureFixture[str]
COLOURS = ("red", "green", "blue")


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A model that classifies a picture by its strongest colour: f32[N,3,16,16] to f32[N,3]."""
    weights = np.zeros((3, 3, 3, 3), np.float32)
    weights[range(3), range(3), 1, 1] = 1
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["features"], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["features"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probs"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, 16, 16])],
        [helper.make_tensor_value_info("probs", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path / "classifier.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def picture(folder: Path, colour: str) -> Path:
    path = folder / f"{colour}.png"
    Image.new("RGB", (64, 48), colour).save(path)
    return path


@pytest.mark.parametrize("colour", COLOURS)
def test_run_classifies_a_picture(classifier: Path, tmp_path: Path, capsys: Capture, colour: str) -> None:
    spec = f"image={picture(tmp_path, colour)}:imagenet,resize"
    assert main(["run", str(classifier), "--json", "--input", spec, "--save-outputs", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["notes"] == [f"input %image: {colour}.png, 64x48 RGB, resized to 16x16, imagenet, NCHW"]
    assert int(np.load(document["outputs"][0]["file"]).argmax()) == COLOURS.index(colour)


def test_run_prints_what_was_done(classifier: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["run", str(classifier), "--input", f"image={picture(tmp_path, 'red')}:/255,crop"]) == 0
    note = "note: input %image: red.png, 64x48 RGB, scaled and cropped to 16x16, /255, NCHW\n"
    assert capsys.readouterr().err == note


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("", "the scale from 0..255 to f32 is missing"),
        (":/255", "the image is 64x48, the input needs 16x16 (width x height)"),
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
    assert f"hint: {sys.executable} -m pip install pillow" in capsys.readouterr().err


def test_python_takes_paths(classifier: Path, tmp_path: Path) -> None:
    outputs = nncdbg.run(classifier, {"image": f"{picture(tmp_path, 'blue')}:/255,resize"})
    assert outputs["probs"].argmax() == 2


def test_recordings_keep_the_path_of_an_input(tmp_path: Path) -> None:
    program = nncdbg.parse("graph @main(%x: u8[48,64,3]) -> (%y) {\n  %y = Identity(%x)\n  return %y\n}\n")
    debugger = nncdbg.Debugger(program, {"x": picture(tmp_path, "blue")})
    assert setup_of(debugger, "m.nnc").inputs["x"].given == str(tmp_path / "blue.png")


def test_help_and_errors_list_the_same_forms() -> None:
    assert INPUT_FORMS.removesuffix("[SIZES]") in FORMS
