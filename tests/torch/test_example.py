"""The example of a training in PyTorch: its NaN is found in the recorded step, and mended at the prompt."""

import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
from nncdbg.terminal.main import main  # noqa: E402

STEP = 4
"""The step in which the NaN originates."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("example")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        source = Path(__file__).parents[2] / "examples" / "torch_training.py"
        shutil.copy(source, root)
        assert main(["record", "torch_training.py", "--step", str(STEP), "-o", "step4"]) == 0
    return root / "step4"


def test_the_loss_of_the_example_is_nan_after_the_step(folder, capfd):
    runpy.run_path(str(folder.parent / "torch_training.py"), run_name="__main__")
    losses = [line.split()[-1] for line in capfd.readouterr().out.splitlines()]
    assert [loss == "nan" for loss in losses] == [False] * STEP + [True] * 2


def test_the_infinity_and_the_nan_of_the_example_originate_in_the_backward_pass_of_sqrt(folder):
    report = nncdbg.watch(folder)
    first, second = report.findings[:2]
    assert (first.kind, first.op, second.kind, second.op) == (
        "inf",
        "aten.div.Tensor",
        "nan",
        "aten.mul.Tensor",
    )
    debugger = nncdbg.Debugger(folder)
    debugger.catch("inf")
    stop = debugger.run()
    assert stop.node is not None
    assert stop.node.op == "aten.div.Tensor"
    location = stop.node.location
    assert location is not None
    assert location.line is not None
    assert location.name == "SqrtBackward0"
    assert "sqrt()" in (folder.parent / location.file).read_text().splitlines()[location.line - 1]


def test_a_gradient_that_is_edited_ends_in_finite_weights(folder):
    plain = nncdbg.run(folder)
    assert any(np.isnan(array).any() for array in plain.values())
    debugger = nncdbg.Debugger(folder)
    debugger.catch("inf")
    debugger.run()
    gradient = debugger.value("%div.1").copy()
    gradient[np.isinf(gradient)] = 0
    debugger.set_value("%div.1", gradient)
    debugger.uncatch()
    assert debugger.run().reason == "end"
    outputs = debugger.outputs
    assert outputs is not None
    assert all(np.isfinite(array).all() for array in outputs.values())
    debugger.step_back()
    assert debugger.stop.reason != "end"


def test_the_report_in_the_readme_is_that_of_the_example(capfd, monkeypatch):
    root = Path(__file__).parents[2]
    shown = (root / "README.md").read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    command, *lines = shown.splitlines()
    monkeypatch.chdir(root)
    assert main(command.removeprefix("$ nncdbg ").split()) == 1
    printed = "".join(capfd.readouterr()).splitlines()
    assert [line for line in lines if line not in printed] == []
