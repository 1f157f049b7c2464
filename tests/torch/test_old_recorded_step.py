"""A folder that an earlier nncdbg recorded: parameters and moments are inputs, not states.

``golden/recorded_step`` is step 2 of ``golden/train.py``.  All numbers of the step are exact.
"""

import runpy
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
from nncdbg.terminal.main import main  # noqa: E402

GOLDEN = Path(__file__).parent / "golden"
FOLDER = GOLDEN / "recorded_step"


@pytest.fixture(scope="module")
def trained():
    """The parameters, gradients and moments after the step, by the names of the program's outputs."""
    script = runpy.run_path(str(GOLDEN / "train.py"))
    found = {}
    for name, parameter in script["net"].named_parameters():
        found[f"{name}.1"] = parameter.detach()
        found[f"{name}.grad"] = parameter.grad
        found[f"{name}.momentum_buffer.2"] = script["optimizer"].state[parameter]["momentum_buffer"]
    return {name: tensor.numpy() for name, tensor in found.items()}


def assert_ends_as_trained(debugger, trained):
    debugger.run()
    assert debugger.stop.reason == "end"
    assert trained.keys() <= debugger.outputs.keys()
    for name, expected in trained.items():
        assert expected.any()
        np.testing.assert_array_equal(debugger.outputs[name], expected, strict=True)


def test_folder_opens_without_states_and_runs_bit_equal(trained):
    debugger = nncdbg.Debugger(nncdbg.load(FOLDER))
    assert debugger.program.states == ()
    assert "0.weight.momentum_buffer" in [value.name for value in debugger.program.graph.inputs]
    assert_ends_as_trained(debugger, trained)


def test_step_back_to_the_start_and_run_again(trained):
    debugger = nncdbg.Debugger(nncdbg.load(FOLDER))
    debugger.run()
    statements = debugger.timeline.tick
    seen = []
    while debugger.timeline.tick:
        debugger.step_back()
        seen.append(debugger.timeline.tick)
    assert seen[0] < statements
    assert seen == sorted(seen, reverse=True)
    assert_ends_as_trained(debugger, trained)


def test_edit_of_a_parameter_begins_a_branch(trained):
    debugger = nncdbg.Debugger(nncdbg.load(FOLDER))
    debugger.set_value("2.bias", np.array([4], np.float32))
    debugger.run()
    assert debugger.outputs is not None
    assert not np.array_equal(debugger.outputs["2.bias.1"], trained["2.bias.1"])


def test_commands_open_the_folder(capfd):
    assert main(["run", str(FOLDER), "--verify-determinism"]) == 0
    output, error = capfd.readouterr()
    assert "%2.bias.momentum_buffer.2 f32[1]" in output
    assert "other bits" not in output + error
    assert main(["watch", str(FOLDER)]) == 0
    assert main(["diff", str(FOLDER), str(FOLDER)]) == 0
    assert "the sides agree" in capfd.readouterr().out
